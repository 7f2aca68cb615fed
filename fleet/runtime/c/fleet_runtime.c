/* See fleet_runtime.h. The Relax VM of TVM's runtime does the work, by functions that are found by their names. */
#define _GNU_SOURCE
#include "fleet_runtime.h"

#include <sched.h>
#include <sys/utsname.h>

#include "fleet_values.h"

#define FORMAT 1
#define ALIGNMENT 64
#define MAX_CPU_TEXT 12
#define MAX_SHAPES_TEXT 1000 /* of an error; what is longer is cut */
#define ONE_CORE_PER_THREAD (-2) /* of tvm::runtime::threading::ThreadGroup::AffinityMode */
#define SHARED_CORES (-3)
#define POOLED_ALLOCATOR 2 /* the one that relax.VirtualMachine uses by default */

typedef struct {
  size_t count;
  fleet_tensor *items;
} tensors;

typedef struct { /* one set of shapes that the model takes */
  tensors inputs, outputs;
} variant;

struct fleet_model {
  TVMFFIAny machine; /* the Relax VM */
  TVMFFIAny main;
  TVMFFIAny returned; /* what the last run returned: the outputs point into it */
  variant *variants, *current;
  size_t variant_count;
  int threads, binds_cores;
  cpu_set_t processors; /* that its process might use when it was opened */
};

/* The folder. */

static char *path_of(const char *folder, const char *name) {
  size_t size = strlen(folder) + strlen(name) + 2;
  char *path = malloc(size);
  if (path != NULL) snprintf(path, size, "%s/%s", folder, name);
  return path;
}

static char *read_all(const char *path) {
  FILE *file = fopen(path, "rb");
  if (file == NULL) return NULL;
  char *read = NULL;
  if (fseek(file, 0, SEEK_END) == 0) {
    long size = ftell(file);
    read = size < 0 ? NULL : calloc(1, (size_t)size + 1);
    rewind(file);
    if (read != NULL && fread(read, 1, (size_t)size, file) != (size_t)size) {
      free(read);
      read = NULL;
    }
  }
  fclose(file);
  return read;
}

static int read_manifest(const char *folder, TVMFFIAny *manifest) {
  char *path = path_of(folder, "manifest.json"), *json = path == NULL ? NULL : read_all(path);
  int status = json == NULL ? fail("cannot read %s: unpack the model there", path) : 0;
  if (status == 0) {
    TVMFFIAny args[] = {text(json)};
    status = call_global("ffi.json.Parse", args, 1, manifest);
  }
  if (status == 0 && manifest->type_index != kTVMFFIMap) {
    drop(manifest);
    status = fail("%s is no manifest", path);
  }
  free(json);
  free(path);
  return status;
}

static size_t element_bytes(const char *dtype) {
  TVMFFIByteArray name = {dtype, strlen(dtype)};
  DLDataType found;
  if (TVMFFIDataTypeFromString(&name, &found) != 0) {
    raised(dtype);
    return 0;
  }
  return ((size_t)found.bits * found.lanes + 7) / 8;
}

static int read_shape(TVMFFIAny map, fleet_tensor *tensor) {
  TVMFFIAny sizes;
  if (field(map, "shape", kTVMFFIArray, &sizes) != 0) return -1;
  int64_t ndim = length(sizes);
  int64_t *shape = ndim < 0 ? NULL : calloc((size_t)ndim + 1, sizeof *shape);
  int status = shape == NULL ? -1 : 0;
  for (int64_t at = 0; status == 0 && at < ndim; ++at) {
    TVMFFIAny size;
    status = item(sizes, at, &size);
    if (status == 0) {
      shape[at] = size.v_int64;
      tensor->size_bytes *= (size_t)size.v_int64;
      drop(&size);
    }
  }
  tensor->shape = shape;
  tensor->ndim = (int)ndim;
  drop(&sizes);
  return status;
}

static int read_tensor(TVMFFIAny map, fleet_tensor *tensor, int allocates) {
  tensor->name = text_field(map, "name");
  tensor->dtype = text_field(map, "dtype");
  if (tensor->name == NULL || tensor->dtype == NULL) return -1;
  tensor->size_bytes = element_bytes(tensor->dtype);
  if (tensor->size_bytes == 0 || read_shape(map, tensor) != 0) return -1;
  if (!allocates) return 0;
  size_t rounded = (tensor->size_bytes + ALIGNMENT) / ALIGNMENT * ALIGNMENT;
  tensor->data = aligned_alloc(ALIGNMENT, rounded);
  if (tensor->data == NULL) return fail("no memory for input %s", tensor->name);
  memset(tensor->data, 0, rounded);
  return 0;
}

static int read_tensors(TVMFFIAny manifest, const char *name, tensors *found, int allocates) {
  TVMFFIAny list;
  if (field(manifest, name, kTVMFFIArray, &list) != 0) return -1;
  int64_t count = length(list);
  int status = count < 0 ? -1 : 0;
  found->items = calloc((size_t)(count < 0 ? 0 : count) + 1, sizeof *found->items);
  if (found->items == NULL) status = fail("no memory");
  for (int64_t at = 0; status == 0 && at < count; ++at) {
    TVMFFIAny map;
    status = item(list, at, &map);
    if (status == 0) {
      found->count = (size_t)at + 1;
      status = read_tensor(map, &found->items[at], allocates);
      drop(&map);
    }
  }
  drop(&list);
  return status;
}

static int read_variant(TVMFFIAny map, variant *found) {
  if (read_tensors(map, "inputs", &found->inputs, 1) != 0) return -1;
  return read_tensors(map, "outputs", &found->outputs, 0);
}

static int read_variants(fleet_model *model, TVMFFIAny manifest) {
  TVMFFIAny others, args[] = {manifest, text("others")}; /* which older files do not have */
  int64_t count = 0;
  if (call_global("ffi.MapCount", args, 2, &others) != 0) return -1;
  int has_others = others.v_int64 > 0;
  if (has_others && field(manifest, "others", kTVMFFIArray, &others) != 0) return -1;
  if (has_others) count = length(others);
  model->variants = count < 0 ? NULL : calloc((size_t)count + 1, sizeof *model->variants);
  int status = model->variants == NULL ? fail("no memory") : 0;
  if (status == 0) {
    model->current = model->variants;
    model->variant_count = 1;
    status = read_variant(manifest, model->current);
  }
  for (int64_t at = 0; status == 0 && at < count; ++at) {
    TVMFFIAny map;
    status = item(others, at, &map);
    if (status == 0) {
      status = read_variant(map, &model->variants[model->variant_count++]);
      drop(&map);
    }
  }
  if (has_others) drop(&others);
  return status;
}

/* Whether it runs here: asked before the library is loaded, since a wrong one would crash instead of complaining. */

static int has_word(const char *line, const char *word) {
  size_t size = strlen(word);
  for (const char *at = strstr(line, word); at != NULL; at = strstr(at + 1, word))
    if ((at == line || at[-1] == ' ' || at[-1] == '\t') && strchr(" \n", at[size]) != NULL) return 1;
  return 0;
}

static int check_features(TVMFFIAny manifest) {
  static char line[16384];
  FILE *file = fopen("/proc/cpuinfo", "r");
  int is_told = 0;
  while (file != NULL && !is_told && fgets(line, sizeof line, file) != NULL)
    is_told = strncmp(line, "flags", 5) == 0 || strncmp(line, "Features", 8) == 0;
  if (file != NULL) fclose(file);
  if (!is_told) return 0;

  TVMFFIAny features;
  if (field(manifest, "cpu_features", kTVMFFIArray, &features) != 0) return -1;
  int64_t count = length(features);
  int status = 0;
  for (int64_t at = 0; status == 0 && at < count; ++at) {
    TVMFFIAny value;
    if (item(features, at, &value) != 0) return -1;
    char *feature = string_of(&value);
    drop(&value);
    if (feature != NULL && !has_word(line, feature))
      status = fail("the model may use the CPU feature %s, which this machine lacks; export it for a target without it", feature);
    free(feature);
  }
  drop(&features);
  return status;
}

static int check_here(TVMFFIAny manifest) {
  int64_t format;
  if (number_field(manifest, "format", &format) != 0) return -1;
  if (format > FORMAT) return fail("the model has format %lld, this reads %d; update fleet_runtime.c", (long long)format, FORMAT);
  char *device = text_field(manifest, "device_type"), *machine = text_field(manifest, "machine");
  int is_here = device != NULL && machine != NULL;
  if (is_here && strcmp(device, "cpu") != 0) {
    fail("the model is exported for %s; this loader runs those for processors, Python's runs it", device);
    is_here = 0;
  }
  free(device);
  if (!is_here) {
    free(machine);
    return -1;
  }
  struct utsname here;
  uname(&here);
  const char *own = strcmp(here.machine, "armv8l") == 0 || (sizeof(void *) == 4 && strcmp(here.machine, "aarch64") == 0)
                        ? "armv7l"
                        : here.machine;
  int status = strcmp(machine, own) == 0 ? 0 : fail("the model is exported for %s, this machine is %s", machine, own);
  free(machine);
  return status != 0 ? status : check_features(manifest);
}

/* Loading and running. */

static int load_library(fleet_model *model, const char *path) {
  TVMFFIAny library, ignored, args[] = {text(path)}, nothing[1];
  TVMFFIAny device[] = {number(kDLCPU), number(0), number(POOLED_ALLOCATOR)};
  if (call_global("ffi.ModuleLoadFromFile", args, 1, &library) != 0) return -1;
  int status = call_method(library, "vm_load_executable", nothing, 0, &model->machine);
  drop(&library);
  if (status == 0) status = call_method(model->machine, "vm_initialization", device, 3, &ignored);
  if (status == 0) status = method(model->machine, "main", &model->main);
  return status;
}

static int read_settings(fleet_model *model, TVMFFIAny manifest) {
  int64_t threads;
  char *affinity = text_field(manifest, "affinity");
  if (affinity == NULL) return -1;
  model->binds_cores = strcmp(affinity, "cores") == 0;
  free(affinity);
  if (number_field(manifest, "threads", &threads) != 0) return -1;
  model->threads = (int)threads;
  return sched_getaffinity(0, sizeof model->processors, &model->processors) == 0 ? 0 : fail("sched_getaffinity failed");
}

static int open_model(fleet_model *model, const char *folder, TVMFFIAny manifest) {
  if (check_here(manifest) != 0 || read_settings(model, manifest) != 0) return -1;
  if (read_variants(model, manifest) != 0) return -1;
  char *name = text_field(manifest, "library"), *path = name == NULL ? NULL : path_of(folder, name);
  int status = path == NULL ? -1 : load_library(model, path);
  free(path);
  free(name);
  return status;
}

fleet_model *fleet_model_open(const char *folder) {
  fleet_model *model = calloc(1, sizeof *model);
  TVMFFIAny manifest;
  if (model == NULL) {
    fail("no memory");
    return NULL;
  }
  int status = read_manifest(folder, &manifest);
  if (status == 0) {
    status = open_model(model, folder, manifest);
    drop(&manifest);
  }
  if (status == 0) return model;
  fleet_model_close(model);
  return NULL;
}

static void free_tensors(tensors *found, int owns_data) {
  for (size_t at = 0; at < found->count; ++at) {
    free((void *)found->items[at].name);
    free((void *)found->items[at].dtype);
    free((void *)found->items[at].shape);
    if (owns_data) free(found->items[at].data);
  }
  free(found->items);
}

void fleet_model_close(fleet_model *model) {
  if (model == NULL) return;
  drop(&model->returned);
  drop(&model->main);
  drop(&model->machine);
  for (size_t at = 0; at < model->variant_count; ++at) {
    free_tensors(&model->variants[at].inputs, 1);
    free_tensors(&model->variants[at].outputs, 0);
  }
  free(model->variants);
  free(model);
}

static _Thread_local int pool_threads, pool_binds; /* how this thread's pool is configured; 0 threads: not yet */

/* Has this thread's pool run on so many threads: TVM keeps one for each caller. They get cores of their own only where
 * they fill all processors of this process; otherwise two processes would meet on the first ones. */
static int use_threads(const fleet_model *model) {
  if (pool_threads == model->threads && pool_binds == model->binds_cores) return 0;
  int count = CPU_COUNT(&model->processors), at = 0;
  char(*names)[MAX_CPU_TEXT] = calloc((size_t)count, sizeof *names);
  TVMFFIAny *processors = calloc((size_t)count, sizeof *processors), list = none(), ignored;
  int status = names == NULL || processors == NULL ? fail("no memory") : 0;
  for (int cpu = 0; status == 0 && at < count; ++cpu) {
    if (!CPU_ISSET(cpu, &model->processors)) continue;
    snprintf(names[at], MAX_CPU_TEXT, "%d", cpu);
    processors[at] = text(names[at]);
    ++at;
  }
  if (status == 0) status = call_global("ffi.Array", processors, count, &list);
  if (status == 0) {
    int mode = model->binds_cores && model->threads >= count ? ONE_CORE_PER_THREAD : SHARED_CORES;
    TVMFFIAny args[] = {number(mode), number(model->threads), list};
    status = call_global("runtime.config_threadpool", args, 3, &ignored);
  }
  drop(&list);
  free(processors);
  free(names);
  if (status != 0) return status;
  pool_threads = model->threads;
  pool_binds = model->binds_cores;
  return 0;
}

static DLTensor view_of(const fleet_tensor *tensor) {
  TVMFFIByteArray name = {tensor->dtype, strlen(tensor->dtype)};
  DLTensor view = {.data = tensor->data, .device = {kDLCPU, 0}, .ndim = tensor->ndim, .shape = (int64_t *)tensor->shape};
  TVMFFIDataTypeFromString(&name, &view.dtype);
  return view;
}

static int point_output(fleet_tensor *output, const TVMFFIAny *value) {
  if (value->type_index != kTVMFFITensor) return fail("output %s is no tensor", output->name);
  const DLTensor *tensor = content(value);
  if (tensor->ndim != output->ndim) return fail("output %s has %d axes, not %d", output->name, tensor->ndim, output->ndim);
  output->data = (char *)tensor->data + tensor->byte_offset;
  output->size_bytes = ((size_t)tensor->dtype.bits * tensor->dtype.lanes + 7) / 8;
  for (int axis = 0; axis < tensor->ndim; ++axis) { /* how much is found may depend on the data */
    ((int64_t *)output->shape)[axis] = tensor->shape[axis];
    output->size_bytes *= (size_t)tensor->shape[axis];
  }
  return 0;
}

static int point_outputs(fleet_model *model) {
  if (model->returned.type_index != kTVMFFIArray) return point_output(&model->current->outputs.items[0], &model->returned);
  int status = 0;
  for (size_t at = 0; status == 0 && at < model->current->outputs.count; ++at) {
    TVMFFIAny value;
    status = item(model->returned, (int64_t)at, &value);
    if (status != 0) break;
    status = point_output(&model->current->outputs.items[at], &value); /* `returned` keeps it alive */
    drop(&value);
  }
  return status;
}

int fleet_model_run(fleet_model *model) {
  if (use_threads(model) != 0) return -1;
  size_t count = model->current->inputs.count;
  DLTensor *views = calloc(count + 1, sizeof *views);
  TVMFFIAny *args = calloc(count + 1, sizeof *args);
  int status = views == NULL || args == NULL ? fail("no memory") : 0;
  for (size_t at = 0; status == 0 && at < count; ++at) {
    views[at] = view_of(&model->current->inputs.items[at]);
    args[at] = (TVMFFIAny){.type_index = kTVMFFIDLTensorPtr, .v_ptr = &views[at]};
  }
  if (status == 0) {
    drop(&model->returned);
    status = call(model->main, "main", args, (int)count, &model->returned);
  }
  free(args);
  free(views);
  return status != 0 ? status : point_outputs(model);
}

/* Shapes. */

static int has_shape(const fleet_tensor *tensor, int ndim, const int64_t *shape) {
  return tensor->ndim == ndim && memcmp(tensor->shape, shape, (size_t)ndim * sizeof *shape) == 0;
}

static size_t put_shape(char *goal, size_t size, int ndim, const int64_t *shape) {
  size_t used = 0;
  for (int at = 0; at < ndim && used < size; ++at)
    used += (size_t)snprintf(goal + used, size - used, "%s%lld", at == 0 ? "" : ",", (long long)shape[at]);
  return used < size ? used : size - 1;
}

size_t fleet_model_shapes_count(const fleet_model *model) { return model->variant_count; }

const fleet_tensor *fleet_model_shapes_input(const fleet_model *model, size_t set, size_t index) {
  if (set >= model->variant_count || index >= model->variants[set].inputs.count) return NULL;
  return &model->variants[set].inputs.items[index];
}

int fleet_model_use_shapes(fleet_model *model, size_t set) {
  if (set >= model->variant_count) return fail("there is no set of shapes %zu, of %zu", set, model->variant_count);
  model->current = &model->variants[set];
  return 0;
}

int fleet_model_set_shape(fleet_model *model, size_t index, int ndim, const int64_t *shape) {
  if (index >= model->current->inputs.count) return fail("there is no input %zu", index);
  char wanted[MAX_SHAPES_TEXT] = "", known[MAX_SHAPES_TEXT] = "";
  size_t used = 0;
  for (size_t at = 0; at < model->variant_count; ++at) {
    const fleet_tensor *input = &model->variants[at].inputs.items[index];
    if (has_shape(input, ndim, shape)) return fleet_model_use_shapes(model, at);
    if (at > 0 && used + 4 < sizeof known) used += (size_t)snprintf(known + used, sizeof known - used, " or ");
    used += put_shape(known + used, sizeof known - used, input->ndim, input->shape);
  }
  put_shape(wanted, sizeof wanted, ndim, shape);
  const char *name = model->current->inputs.items[index].name;
  return fail("input %s has shape %s in no set that the model was exported for: %s", name, wanted, known);
}

int fleet_model_threads(const fleet_model *model) { return model->threads; }
void fleet_model_set_threads(fleet_model *model, int threads) { model->threads = threads < 1 ? 1 : threads; }
size_t fleet_model_input_count(const fleet_model *model) { return model->current->inputs.count; }
size_t fleet_model_output_count(const fleet_model *model) { return model->current->outputs.count; }

const fleet_tensor *fleet_model_input(const fleet_model *model, size_t index) {
  return index < model->current->inputs.count ? &model->current->inputs.items[index] : NULL;
}

const fleet_tensor *fleet_model_output(const fleet_model *model, size_t index) {
  return index < model->current->outputs.count ? &model->current->outputs.items[index] : NULL;
}

const char *fleet_error(void) { return error_text; }
