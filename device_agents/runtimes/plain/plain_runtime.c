/* What compiled TVM functions need of a runtime, and no more: for boards that no libtvm_runtime exists for.
 *
 * A module that TVM exports has one undefined symbol, through which it reports errors, and a few pointers that whoever
 * loads it sets: parallel loops, workspaces, packed functions. Interfaces: tvm/ffi/c_api.h, tvm/ffi/extra/c_env_api.h
 * and tvm/runtime/c_backend_api.h of apache-tvm 0.27. device_agents/runtimes/plain/runtime.py is the only caller; it runs one
 * function at a time. No 64-bit divisions or conversions: 32-bit ARM would need a support library for them.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define EXPORT __attribute__((visibility("default")))
#define ALIGNMENT 64
#define MAX_THREADS 64
#define MAX_FUNCTIONS 64
#define MAX_ERROR 4000
#define SPINS 4000

typedef struct {
  int32_t type_index;
  uint32_t padding;
  union {
    int64_t as_int;
    double as_float;
    void* as_pointer;
    char as_bytes[8];
  } value;
} Any;

typedef int (*SafeCall)(void* self, const Any* args, int32_t count, Any* result);
typedef int (*Callback)(int32_t id, const Any* args, int32_t count, Any* result);
typedef struct {
  void* sync;
  int32_t task_count;
} ParallelGroup;
typedef int (*ParallelTask)(int task, ParallelGroup* group, void* closure);

/* Errors: the first of a call counts, whichever thread it came from. */

static pthread_mutex_t error_lock = PTHREAD_MUTEX_INITIALIZER;
static char error_text[MAX_ERROR];

static void append(char* text, const char* more) {
  size_t used = strlen(text);
  if (more != NULL) snprintf(text + used, MAX_ERROR - used, "%s", more);
}

EXPORT void TVMFFIErrorSetRaisedFromCStrParts(const char* kind, const char** parts, int32_t count) {
  pthread_mutex_lock(&error_lock);
  if (error_text[0] == 0) {
    append(error_text, kind);
    append(error_text, ": ");
    for (int32_t at = 0; at < count; ++at) append(error_text, parts[at]);
  }
  pthread_mutex_unlock(&error_lock);
}

EXPORT void TVMFFIErrorSetRaisedFromCStr(const char* kind, const char* message) {
  TVMFFIErrorSetRaisedFromCStrParts(kind, &message, 1);
}

EXPORT const char* plain_error(void) { return error_text; }

EXPORT void plain_set_error(const char* message) { TVMFFIErrorSetRaisedFromCStr("RuntimeError", message); }

/* Memory: 64-byte aligned, as generated code assumes. */

EXPORT void* plain_alloc(uint32_t size) {
  void* found = NULL;
  return posix_memalign(&found, ALIGNMENT, size ? size : 1) == 0 ? found : NULL;
}

EXPORT void plain_free(void* memory) { free(memory); }

EXPORT void* TVMBackendAllocWorkspace(int device_type, int device_id, uint64_t size, int code, int bits) {
  (void)device_type, (void)device_id, (void)code, (void)bits;
  void* found = size > UINT32_MAX ? NULL : plain_alloc((uint32_t)size);
  if (found == NULL) TVMFFIErrorSetRaisedFromCStr("MemoryError", "out of memory for a workspace");
  return found;
}

EXPORT int TVMBackendFreeWorkspace(int device_type, int device_id, void* memory) {
  (void)device_type, (void)device_id;
  free(memory);
  return 0;
}

/* Packed functions: what an artifact calls by name. */

typedef struct {
  char name[128];
  Callback callback;
  int32_t id;
} Function;

static Function functions[MAX_FUNCTIONS];
static int function_count = 0;

EXPORT int plain_register(const char* name, Callback callback, int32_t id) {
  if (function_count == MAX_FUNCTIONS || strlen(name) >= sizeof functions[0].name) return -1;
  Function* added = &functions[function_count++];
  strcpy(added->name, name);
  added->callback = callback;
  added->id = id;
  return 0;
}

EXPORT int TVMFFIEnvModLookupFromImports(void* context, const char* name, void** out) {
  (void)context;
  for (int at = function_count - 1; at >= 0; --at) {
    if (strcmp(functions[at].name, name) == 0) {
      *out = &functions[at];
      return 0;
    }
  }
  const char* parts[] = {"Cannot find function ", name, " in the imported modules or global registry."};
  /* Not a ValueError, as in TVM's runtime: generated code raises these about its arguments, and nothing else does. */
  TVMFFIErrorSetRaisedFromCStrParts("LookupError", parts, 3);
  return -1;
}

EXPORT int TVMFFIFunctionCall(void* function, Any* args, int32_t count, Any* result) {
  Function* called = function;
  return called->callback(called->id, args, count, result);
}

EXPORT int TVMFFIHandleInitOnce(void** handle, int (*make)(void**)) {
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  int code = 0;
  pthread_mutex_lock(&lock);
  if (*handle == NULL) code = make(handle);
  pthread_mutex_unlock(&lock);
  return code;
}

/* Parallel loops: threads that stay, started at the first loop. */

static struct {
  pthread_mutex_t lock;
  pthread_cond_t begun, done;
  int wanted, started;
  unsigned round;
  ParallelTask task;
  void* closure;
  ParallelGroup group;
  int next, left, failed;
} crew = {.lock = PTHREAD_MUTEX_INITIALIZER, .begun = PTHREAD_COND_INITIALIZER, .done = PTHREAD_COND_INITIALIZER,
          .wanted = 1};
static __thread int is_inside = 0;

EXPORT void plain_set_threads(int count) { crew.wanted = count < 1 ? 1 : count > MAX_THREADS ? MAX_THREADS : count; }

static void take_tasks(void) {
  int task;
  is_inside = 1;
  while ((task = __atomic_fetch_add(&crew.next, 1, __ATOMIC_ACQ_REL)) < crew.group.task_count) {
    if (crew.task(task, &crew.group, crew.closure) != 0) __atomic_store_n(&crew.failed, 1, __ATOMIC_RELEASE);
    if (__atomic_sub_fetch(&crew.left, 1, __ATOMIC_ACQ_REL) == 0) {
      pthread_mutex_lock(&crew.lock);
      pthread_cond_broadcast(&crew.done);
      pthread_mutex_unlock(&crew.lock);
    }
  }
  is_inside = 0;
}

static void* serve(void* round_at_start) {
  unsigned seen = (unsigned)(uintptr_t)round_at_start;
  for (;;) {
    for (int spin = 0; spin < SPINS && __atomic_load_n(&crew.round, __ATOMIC_ACQUIRE) == seen; ++spin) sched_yield();
    pthread_mutex_lock(&crew.lock);
    while (crew.round == seen) pthread_cond_wait(&crew.begun, &crew.lock);
    seen = crew.round;
    pthread_mutex_unlock(&crew.lock);
    take_tasks();
  }
  return NULL;
}

static void start_crew(void) {
  while (crew.started < crew.wanted - 1) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, serve, (void*)(uintptr_t)crew.round) != 0) return;
    pthread_detach(thread);
    ++crew.started;
  }
}

EXPORT int TVMBackendParallelBarrier(int task, ParallelGroup* group) {
  (void)task;
  int32_t* arrived = group->sync;
  int32_t ticket = __atomic_fetch_add(arrived, 1, __ATOMIC_ACQ_REL);
  int32_t passes_at = (ticket / group->task_count + 1) * group->task_count;
  while (__atomic_load_n(arrived, __ATOMIC_ACQUIRE) < passes_at) sched_yield();
  return 0;
}

EXPORT int TVMBackendParallelLaunch(ParallelTask task, void* closure, int count) {
  static int32_t arrived;
  if (is_inside || crew.wanted == 1) {
    /* A loop within a loop, or one thread: one task does all of it, so that no barrier waits for another. */
    int32_t alone = 0;
    ParallelGroup group = {&alone, 1};
    return task(0, &group, closure);
  }
  start_crew();
  int threads = crew.started + 1;
  arrived = 0;
  /* A thread of the last round may still look for tasks: it must find none of this round before all is set. */
  pthread_mutex_lock(&crew.lock);
  crew.task = task;
  crew.closure = closure;
  crew.failed = 0;
  crew.group.sync = &arrived;
  crew.group.task_count = count > 0 && count < threads ? count : threads;
  __atomic_store_n(&crew.left, crew.group.task_count, __ATOMIC_RELEASE);
  __atomic_store_n(&crew.next, 0, __ATOMIC_RELEASE);
  __atomic_store_n(&crew.round, crew.round + 1, __ATOMIC_RELEASE);
  pthread_cond_broadcast(&crew.begun);
  pthread_mutex_unlock(&crew.lock);
  take_tasks();
  for (int spin = 0; spin < SPINS && __atomic_load_n(&crew.left, __ATOMIC_ACQUIRE) > 0; ++spin) sched_yield();
  pthread_mutex_lock(&crew.lock);
  while (__atomic_load_n(&crew.left, __ATOMIC_ACQUIRE) > 0) pthread_cond_wait(&crew.done, &crew.lock);
  __atomic_store_n(&crew.next, MAX_THREADS, __ATOMIC_RELEASE);
  pthread_mutex_unlock(&crew.lock);
  return crew.failed ? -1 : 0;
}

/* Modules. */

static void set_symbol(void* library, const char* name, void* value) {
  void** place = dlsym(library, name);
  if (place != NULL) *place = value;
}

EXPORT void* plain_load(const char* path) {
  error_text[0] = 0;
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    append(error_text, dlerror());
    return NULL;
  }
  set_symbol(library, "__tvm_ffi__library_ctx", library);
  set_symbol(library, "__TVMFFIFunctionCall", (void*)TVMFFIFunctionCall);
  set_symbol(library, "__TVMFFIEnvModLookupFromImports", (void*)TVMFFIEnvModLookupFromImports);
  set_symbol(library, "__TVMFFIHandleInitOnce", (void*)TVMFFIHandleInitOnce);
  set_symbol(library, "__TVMFFIErrorSetRaisedFromCStr", (void*)TVMFFIErrorSetRaisedFromCStr);
  set_symbol(library, "__TVMFFIErrorSetRaisedFromCStrParts", (void*)TVMFFIErrorSetRaisedFromCStrParts);
  set_symbol(library, "__TVMBackendParallelLaunch", (void*)TVMBackendParallelLaunch);
  set_symbol(library, "__TVMBackendParallelBarrier", (void*)TVMBackendParallelBarrier);
  set_symbol(library, "__TVMBackendAllocWorkspace", (void*)TVMBackendAllocWorkspace);
  set_symbol(library, "__TVMBackendFreeWorkspace", (void*)TVMBackendFreeWorkspace);
  return library;
}

EXPORT void* plain_find(void* library, const char* name) { return dlsym(library, name); }

EXPORT void plain_close(void* library) { dlclose(library); }

EXPORT int plain_call(SafeCall function, const Any* args, int32_t count) {
  Any result = {0};
  error_text[0] = 0;
  return function(NULL, args, count, &result);
}

/* Timing: the rules of TVM's time evaluator. */

static double now_sec(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)(int32_t)now.tv_sec + (double)(int32_t)now.tv_nsec * 1e-9;
}

static void rest(int32_t ms) {
  struct timespec pause = {ms / 1000, (ms % 1000) * 1000000};
  while (nanosleep(&pause, &pause) != 0) {
  }
}

typedef struct {
  int32_t number, repeat, min_repeat_ms, limit_zero, cooldown_ms, repeats_to_cooldown;
  uint32_t flush_bytes;
} Knobs;

EXPORT int plain_time(SafeCall function, const Any* args, int32_t count, const Knobs* knobs, double* run_secs) {
  char* pushed = knobs->flush_bytes ? plain_alloc(knobs->flush_bytes) : NULL;
  if (knobs->flush_bytes && pushed == NULL) {
    error_text[0] = 0;
    TVMFFIErrorSetRaisedFromCStr("MemoryError", "out of memory for flushing the cache");
    return -1;
  }
  int code = plain_call(function, args, count);
  double number = knobs->number;
  for (int32_t at = 0; code == 0 && at < knobs->repeat; ++at) {
    double took_sec = 0;
    int32_t zeros = 0;
    do {
      if (took_sec > 0) {
        double enough = (double)(int32_t)(knobs->min_repeat_ms * 1e-3 / (took_sec / number) + 1);
        number = enough > number * 1.618 ? enough : (double)(int32_t)(number * 1.618 + 0.5);
      }
      if (pushed != NULL) memset(pushed, at + zeros, knobs->flush_bytes);
      double started = now_sec();
      for (int32_t run = 0; code == 0 && run < (int32_t)number; ++run) {
        Any result = {0};
        code = function(NULL, args, count, &result);
      }
      took_sec = now_sec() - started;
      if (took_sec <= 0) ++zeros;
    } while (code == 0 && took_sec * 1e3 < knobs->min_repeat_ms && zeros < knobs->limit_zero);
    run_secs[at] = took_sec / number;
    if (knobs->cooldown_ms > 0 && at % knobs->repeats_to_cooldown == 0) rest(knobs->cooldown_ms);
  }
  free(pushed);
  return code;
}
