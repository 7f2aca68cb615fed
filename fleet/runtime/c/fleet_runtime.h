/* Runs models that `fleet export` made, from C.
 *
 *   python -m zipfile -e model.fleet model             unpack it once, where it is installed
 *   cc app.c $(python -m fleet.runtime.c_flags) -o app
 *
 *   fleet_model *model = fleet_model_open("model");
 *   if (model == NULL) { puts(fleet_error()); return 1; }
 *   memcpy(fleet_model_input(model, 0)->data, image, ...);
 *   if (fleet_model_run(model) != 0) ...
 *   const float *scores = fleet_model_output(model, 0)->data;
 *
 * It needs libtvm_ffi.so and libtvm_runtime.so of the release that the manifest names, libtvm_runtime_extra.so for models
 * that sort, and no compiler. A model runs one call at a time; two models may run in two threads.
 */
#ifndef FLEET_RUNTIME_H_
#define FLEET_RUNTIME_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fleet_model fleet_model;

/* An input or output. Row-major, without padding. How large an output is may depend on the data (as many boxes as a
 * detector finds): its shape and size_bytes are those of the last run. */
typedef struct {
  const char *name;
  const char *dtype; /* "float32", "int64", ... */
  int ndim;
  const int64_t *shape;
  size_t size_bytes;
  void *data; /* of an input: yours to fill, 64-byte aligned; of an output: valid until the next run, not to be written */
} fleet_tensor;

/* Loads a model from the folder that its archive was unpacked to. NULL where it does not fit this machine, is damaged, or
 * cannot be read: fleet_error() says why. */
fleet_model *fleet_model_open(const char *folder);
void fleet_model_close(fleet_model *model); /* NULL is allowed */

size_t fleet_model_input_count(const fleet_model *model);
size_t fleet_model_output_count(const fleet_model *model);

/* Returns NULL for an index that is too large. */
const fleet_tensor *fleet_model_input(const fleet_model *model, size_t index);
const fleet_tensor *fleet_model_output(const fleet_model *model, size_t index);

/* A model takes each set of shapes that it was exported for, at least one, and begins with the first. */
size_t fleet_model_shapes_count(const fleet_model *model);

/* An input in one of the sets: its name, dtype and shape. Returns NULL for an index that is too large. */
const fleet_tensor *fleet_model_shapes_input(const fleet_model *model, size_t set, size_t index);

/* Takes a set. Then the model's inputs and outputs are others: ask for them again, and fill the inputs. -1 where there is
 * no such set. */
int fleet_model_use_shapes(fleet_model *model, size_t set);

/* Takes the first set in which this input has this shape, as above. -1 where no set has it: fleet_error() names the shapes
 * that there are. */
int fleet_model_set_shape(fleet_model *model, size_t index, int ndim, const int64_t *shape);

/* How many threads it runs on: at first as many as it was tuned with. Takes effect with the next run. */
int fleet_model_threads(const fleet_model *model);
void fleet_model_set_threads(fleet_model *model, int threads);

/* Runs the model on what its inputs hold. 0: its outputs are there; else fleet_error() says why not. */
int fleet_model_run(fleet_model *model);

/* Why this thread's last call failed. */
const char *fleet_error(void);

#ifdef __cplusplus
}
#endif

#endif
