/* Applies a function on float32, compiled by TVM, to all numbers on stdin; writes the results to stdout. One thread. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#ifndef COUNT
#error "COUNT: how many numbers the function takes"
#endif
#define DL_TENSOR 7
#define ALIGNMENT 64

typedef struct {
  int32_t type_index;
  uint32_t padding;
  void* value;
} Any;

typedef struct {
  void* data;
  struct { int32_t type, id; } device;
  int32_t ndim;
  struct { uint8_t code, bits; uint16_t lanes; } dtype;
  int64_t *shape, *strides;
  uint64_t byte_offset;
} Tensor;

typedef struct {
  void* sync;
  int32_t task_count;
} ParallelGroup;
typedef int (*ParallelTask)(int task, ParallelGroup* group, void* closure);

int __tvm_ffi_main(void* self, const Any* args, int32_t count, Any* result);

static int launch(ParallelTask task, void* closure, int wanted) {
  ParallelGroup group = {NULL, 1};
  (void)wanted;
  return task(0, &group, closure);
}

int (*__TVMBackendParallelLaunch)(ParallelTask, void*, int) = launch;

void TVMFFIErrorSetRaisedFromCStrParts(const char* kind, const char** parts, int32_t count) {
  fputs(kind, stderr);
  for (int32_t at = 0; at < count; ++at) fputs(parts[at], stderr);
}

int main(void) {
  int64_t shape[1] = {COUNT};
  Tensor tensors[2];
  Any args[2], result = {0};
  for (int at = 0; at < 2; ++at) {
    void* data = aligned_alloc(ALIGNMENT, COUNT * sizeof(float));
    tensors[at] = (Tensor){data, {1, 0}, 1, {2, 32, 1}, shape, NULL, 0};
    args[at] = (Any){DL_TENSOR, 0, &tensors[at]};
  }
  while (fread(tensors[0].data, sizeof(float), COUNT, stdin) == COUNT) {
    if (__tvm_ffi_main(NULL, args, 2, &result) != 0) return 1;
    if (fwrite(tensors[1].data, sizeof(float), COUNT, stdout) != COUNT) return 1;
  }
  return 0;
}
