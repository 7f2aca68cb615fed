/* Applies a function on float32, compiled by TVM, to all numbers on stdin; writes the results to stdout. One thread.

   For 64-bit ARM on Linux. It needs no C library, which zig would take 45 s of processor time to build. */
#include <stddef.h>
#include <stdint.h>

#ifndef COUNT
#error "COUNT: how many numbers the function takes"
#endif
#define DL_TENSOR 7
#define ALIGNMENT 64
#define READ 63
#define WRITE 64
#define EXIT 93

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

static _Alignas(ALIGNMENT) float numbers[2][COUNT];

static long call_system(long number, long file, void* data, size_t size_bytes) {
  register long code __asm__("x8") = number;
  register long first __asm__("x0") = file;
  register void* second __asm__("x1") = data;
  register size_t third __asm__("x2") = size_bytes;
  __asm__ volatile("svc 0" : "+r"(first) : "r"(code), "r"(second), "r"(third) : "memory");
  return first;
}

/* Moves bytes until all are moved; returns 0 at the end of the file and after an error. */
static int move_all(long number, long file, void* data, size_t size_bytes) {
  for (char* at = data; size_bytes > 0;) {
    long moved = call_system(number, file, at, size_bytes);
    if (moved <= 0) return 0;
    at += moved;
    size_bytes -= moved;
  }
  return 1;
}

static int launch(ParallelTask task, void* closure, int wanted) {
  ParallelGroup group = {NULL, 1};
  (void)wanted;
  return task(0, &group, closure);
}

int (*__TVMBackendParallelLaunch)(ParallelTask, void*, int) = launch;

static void print(const char* text) {
  size_t size_bytes = 0;
  while (text[size_bytes]) ++size_bytes;
  move_all(WRITE, 2, (void*)text, size_bytes);
}

void TVMFFIErrorSetRaisedFromCStrParts(const char* kind, const char** parts, int32_t count) {
  print(kind);
  for (int32_t at = 0; at < count; ++at) print(parts[at]);
}

static int run(void) {
  int64_t shape[1] = {COUNT};
  Tensor tensors[2];
  Any args[2], result = {0};
  for (int at = 0; at < 2; ++at) {
    tensors[at] = (Tensor){numbers[at], {1, 0}, 1, {2, 32, 1}, shape, NULL, 0};
    args[at] = (Any){DL_TENSOR, 0, &tensors[at]};
  }
  while (move_all(READ, 0, numbers[0], sizeof numbers[0])) {
    if (__tvm_ffi_main(NULL, args, 2, &result) != 0) return 1;
    if (!move_all(WRITE, 1, numbers[1], sizeof numbers[1])) return 1;
  }
  return 0;
}

void _start(void) { call_system(EXIT, run(), NULL, 0); }
