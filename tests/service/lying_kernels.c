// Kernels that lie about their time, and honest kernels of several lengths. Each computes y = 3 * x of 64 floats; lying
// kernels take 20 ms.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

typedef struct {
  int32_t type_index, padding;
  void* pointer;
} Any;

#define DLTENSOR_POINTER 7
#define OBJECT_HEADER_BYTES 24
#define ITEMS 64
#define TRUE_NS 20000000

static float* data_of(const Any* argument) {
  char* tensor = argument->pointer;
  if (argument->type_index != DLTENSOR_POINTER) tensor += OBJECT_HEADER_BYTES;
  return *(float**)tensor;
}

// Read the clock by a system call, which no code in this process can replace.
static int64_t now_ns(void) {
  struct timespec at;
  syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &at);
  return at.tv_sec * 1000000000ll + at.tv_nsec;
}

static void compute(float* x, float* y, int64_t ns) {
  int64_t ends_at = now_ns() + ns;
  do {
    for (int i = 0; i < ITEMS; i++) y[i] = 3.0f * x[i];
  } while (now_ns() < ends_at);
}

#define KERNEL(name)                                                          \
  static void name(float* x, float* y);                                       \
  int __tvm_ffi_##name(void* self, const Any* args, int32_t n, Any* result) { \
    name(data_of(args), data_of(args + 1));                                   \
    result->type_index = 0;                                                   \
    return 0;                                                                 \
  }                                                                           \
  static void name(float* x, float* y)

KERNEL(honest_tiny) {
  for (int i = 0; i < ITEMS; i++) y[i] = 3.0f * x[i];
}

KERNEL(honest_1us) { compute(x, y, 1000); }
KERNEL(honest_100us) { compute(x, y, 100000); }
KERNEL(honest_20ms) { compute(x, y, TRUE_NS); }

// Compute only once for each output pointer.
KERNEL(memo) {
  static float* computed;
  if (computed == y) return;
  compute(x, y, TRUE_NS);
  computed = y;
}

// Compute only once for each content of the input, and otherwise copy the result.
KERNEL(memo_by_content) {
  static float inputs[256][ITEMS], outputs[256][ITEMS];
  static int count;
  for (int i = 0; i < count; i++)
    if (!memcmp(inputs[i], x, sizeof inputs[i])) {
      memcpy(y, outputs[i], sizeof outputs[i]);
      return;
    }
  compute(x, y, TRUE_NS);
  if (count == 256) return;
  memcpy(inputs[count], x, sizeof inputs[0]);
  memcpy(outputs[count++], y, sizeof outputs[0]);
}

// Do nothing if the last call ended less than 2 ms ago: single calls are right.
KERNEL(lazy) {
  static int64_t ended_at;
  if (now_ns() - ended_at > 2000000) compute(x, y, TRUE_NS);
  ended_at = now_ns();
}

// Overwrite libc's clock_gettime with a clock that runs a thousand times slower.
static int slow_clock(clockid_t id, struct timespec* at) {
  if (syscall(SYS_clock_gettime, id, at)) return -1;
  int64_t ns = (at->tv_sec * 1000000000ll + at->tv_nsec) / 1000;
  at->tv_sec = ns / 1000000000ll;
  at->tv_nsec = ns % 1000000000ll;
  return 0;
}

KERNEL(slow_clocks) {
#ifdef __x86_64__
  static int is_done;
  if (!is_done) {
    unsigned char* code = (unsigned char*)clock_gettime;
    uintptr_t page = (uintptr_t)code & ~4095ul;
    if (!mprotect((void*)page, 8192, PROT_READ | PROT_WRITE | PROT_EXEC)) {
      void* goal = slow_clock;
      code[0] = 0x48, code[1] = 0xb8;  // movabs rax, goal
      memcpy(code + 2, &goal, 8);
      code[10] = 0xff, code[11] = 0xe0;  // jmp rax
    }
    is_done = 1;
  }
#endif
  compute(x, y, TRUE_NS);
}

static int read_all(char* into, uint32_t size) {
  for (uint32_t got = 0; got < size;) {
    ssize_t more = read(3, into + got, size - got);
    if (more <= 0) return 0;
    got += more;
  }
  return 1;
}

static void send_frame(const char* content, uint32_t size) {
  static char frame[1 << 20];
  memcpy(frame, &size, 4);
  memcpy(frame + 4, content, size);
  for (uint32_t sent = 0; sent < size + 4;) {
    ssize_t more = write(3, frame + sent, size + 4 - sent);
    if (more <= 0) _exit(0);
    sent += more;
  }
}

static uint32_t put_varint(char* at, uint32_t value) {
  uint32_t size = 0;
  for (; value > 127; value >>= 7) at[size++] = (char)(value | 128);
  at[size++] = (char)value;
  return size;
}

static uint32_t get_varint(const char* at) {
  uint32_t value = 0;
  for (int shift = 0;; shift += 7, at++) {
    value |= (uint32_t)(*at & 127) << shift;
    if (!(*at & 128)) return value;
  }
}

// Return the number of calls in WorkerRequest{artifact_path, proof{row{seed, calls}}}; 0 for other requests.
static uint32_t calls_of_row(const char* request) {
  const char* at = request[0] == 0x1a ? request + 2 + request[1] : request;
  int is_row = at[0] == 0x2a && at[2] == 0x1a && at[4] == 0x0a && at[5] == 16 && at[22] == 0x10;
  return is_row ? get_varint(at + 23) : 0;
}

// Answer a trial: WorkerResponse{measurement{run_secs: [1e-9]}}.
static void forge_measurement(void) {
  double sec = 1e-9;
  char content[] = {0x0a, 10, 0x12, 8, 0, 0, 0, 0, 0, 0, 0, 0};
  memcpy(content + 4, &sec, 8);
  send_frame(content, sizeof content);
}

// Answer a row of a proof at once, with made-up digests: WorkerResponse{proof{digests}}.
static void forge_row(uint32_t calls) {
  static char content[1 << 20];
  char length[8];
  uint32_t digests = 16 * calls, size = put_varint(length, digests), at = 0;
  content[at++] = 0x2a;
  at += put_varint(content + at, 1 + size + digests);
  content[at++] = 0x0a;
  memcpy(content + at, length, size);
  send_frame(content, at + size + digests);
}

// Take over the worker's pipe and answer all further requests.
KERNEL(forge) {
  static char request[1 << 20];
  uint32_t size;
  forge_measurement();
  while (read_all((char*)&size, 4)) {
    if (size > sizeof request || !read_all(request, size)) break;
    forge_measurement();
  }
  _exit(0);
}

// Answer on the worker's pipe from a thread that the first call starts; rows of a proof get made-up digests.
static void* answer_rows(void* unused) {
  static char request[1 << 20];
  uint32_t size;
  while (read_all((char*)&size, 4)) {
    if (size > sizeof request || !read_all(request, size)) break;
    uint32_t calls = calls_of_row(request);
    if (calls)
      forge_row(calls);
    else
      send_frame("\x2a\x00", 2);
  }
  _exit(0);
  return unused;
}

KERNEL(forge_rows) {
  static int is_done;
  pthread_t thread;
  if (is_done++ == 0) pthread_create(&thread, 0, answer_rows, 0);
  compute(x, y, 1000);
}
