// What a hostile kernel does to the machine that runs it. Each function is called as TVM calls its own; its one argument is an
// int32 tensor of one element, where it says what it achieved.
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct {
  int32_t type_index, padding;
  void* pointer;
} Any;

#define DLTENSOR_POINTER 7
#define OBJECT_HEADER_BYTES 24

#define KERNEL(name)                                                        \
  static int32_t name(void);                                                \
  int __tvm_ffi_##name(void* self, const Any* args, int32_t n, Any* result) { \
    char* tensor = args[0].pointer;                                         \
    if (args[0].type_index != DLTENSOR_POINTER) tensor += OBJECT_HEADER_BYTES; \
    **(int32_t**)tensor = name();                                           \
    result->type_index = 0;                                                 \
    return 0;                                                               \
  }                                                                         \
  static int32_t name(void)

static void name_process(void) { prctl(PR_SET_NAME, "hostile", 0, 0, 0); }

// Send a signal to every process whose command line holds the text.
static int32_t signal_all(const char* text, int number) {
  int32_t sent = 0;
  DIR* processes = opendir("/proc");
  for (struct dirent* entry; processes && (entry = readdir(processes));) {
    int pid = atoi(entry->d_name);
    if (pid <= 0 || pid == getpid()) continue;
    char path[64], line[4096] = {0};
    snprintf(path, sizeof path, "/proc/%d/cmdline", pid);
    int file = open(path, O_RDONLY);
    if (file < 0) continue;
    ssize_t size = read(file, line, sizeof line - 1);
    close(file);
    for (ssize_t i = 0; i < size; i++)
      if (!line[i]) line[i] = ' ';
    if (size > 0 && strstr(line, text)) sent += kill(pid, number) == 0;
  }
  if (processes) closedir(processes);
  return sent;
}

static void spin(void) {
  for (;;) pause();
}

// Leave a process in a session of its own, without environment, descriptors and parent-death signal. Returns once it is there.
static void leave_daemon(void) {
  int ends[2];
  char nothing;
  pipe(ends);
  if (fork()) {
    close(ends[1]);
    read(ends[0], &nothing, 1);
    return;
  }
  setsid();
  if (fork()) _exit(0);
  setsid();
  clearenv();
  prctl(PR_SET_PDEATHSIG, 0, 0, 0, 0);
  name_process();
  for (int file = 0; file < 256; file++) close(file);
  spin();
}

// The warm process and every copy of it have this command line; the worker itself is one of them.
#define WARM "device_agents.workers.warm"

KERNEL(outlive) {
  leave_daemon();
  kill(getppid(), SIGKILL);
  signal_all(WARM, SIGKILL);
  spin();
  return 0;
}

KERNEL(stop_all) {
  name_process();
  prctl(PR_SET_PDEATHSIG, 0, 0, 0, 0);
  leave_daemon();
  kill(getppid(), SIGSTOP);
  signal_all(WARM, SIGSTOP);
  spin();
  return 0;
}

KERNEL(stop_all_and_kill_agent) {
  name_process();
  prctl(PR_SET_PDEATHSIG, 0, 0, 0, 0);
  kill(getppid(), SIGSTOP);
  signal_all(WARM, SIGSTOP);
  signal_all("-m device_agents --tracker", SIGKILL);
  spin();
  return 0;
}

KERNEL(overwrite) {
  int32_t changed = 0;
  const char* folder = getenv("TVM_HOSTILE_STORE");
  DIR* files = opendir(folder);
  for (struct dirent* entry; files && (entry = readdir(files));) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
    chmod(path, 0666);
    int file = open(path, O_WRONLY);
    if (file < 0) continue;
    changed += pwrite(file, "an attacker's code", 18, 0) == 18;
    close(file);
  }
  if (files) closedir(files);
  return changed;
}

// How many of some files, named with colons between, can be opened: each to be read, and to be written.
KERNEL(open_secrets) {
  int32_t opened = 0;
  char* names = strdup(getenv("TVM_HOSTILE_FILES"));
  for (char* name = strtok(names, ":"); name; name = strtok(NULL, ":")) {
    for (int flags = O_RDONLY; flags <= O_WRONLY; flags++) {
      int file = open(name, flags);
      if (file >= 0) close(file);
      opened += file >= 0;
    }
  }
  free(names);
  return opened;
}

// Bits: 1 another process is seen, 2 a network interface that is up, 4 an outsider can be signalled, 8 a namespace can be made,
// 16 root is writable, 32 the parent-death signal can be taken back, 64 the user is root.
KERNEL(look_around) {
  int32_t found = 0, processes = 0;
  DIR* entries = opendir("/proc");
  for (struct dirent* entry; entries && (entry = readdir(entries));) processes += atoi(entry->d_name) > 0;
  if (entries) closedir(entries);
  found |= processes > 2;
  FILE* routes = fopen("/proc/net/if_inet6", "r");
  char line[256];
  if (routes && fgets(line, sizeof line, routes)) found |= 2;
  found |= (kill(getppid(), 0) == 0) << 2;
  found |= (unshare(CLONE_NEWUSER) == 0) << 3;
  found |= (mkdir("/hostile", 0700) == 0) << 4;
  rmdir("/hostile");
  found |= (prctl(PR_SET_PDEATHSIG, 0, 0, 0, 0) == 0) << 5;
  found |= (geteuid() == 0) << 6;
  return found;
}

KERNEL(say_harmless) { return 7; }

KERNEL(answer_with_empty_outputs) {
  static uint8_t frame[4 + 5 + (24 << 20)];
  const uint32_t outputs = 24 << 20, size = outputs + 5;
  memcpy(frame, &size, 4);
  frame[4] = 2 << 3 | 2;  // WorkerResponse.call
  for (int i = 0; i < 4; i++) frame[5 + i] = (outputs >> 7 * i & 0x7f) | (i < 3 ? 0x80 : 0);
  for (uint32_t i = 0; i + 1 < outputs; i += 2) frame[9 + i] = 1 << 3 | 2;  // CallResponse.outputs, empty
  for (size_t sent = 0; sent < size + 4;) {
    ssize_t written = write(3, frame + sent, size + 4 - sent);
    if (written <= 0) break;
    sent += written;
  }
  spin();
  return 0;
}

static void* grow(void* unused) {
  usleep(200000);
  for (;;) {
    memset(malloc(16 << 20), 1, 16 << 20);
    usleep(5000);
  }
}

KERNEL(grow_later) {
  pthread_t thread;
  return pthread_create(&thread, NULL, grow, NULL);
}

static void* fill_unlinked(void* unused) {
  usleep(200000);
  int file = open("unlinked", O_RDWR | O_CREAT, 0600);
  unlink("unlinked");
  static char piece[1 << 20];
  for (;;) {
    if (lseek(file, 0, SEEK_END) > 16 << 20) {
      file = open("unlinked", O_RDWR | O_CREAT, 0600);
      unlink("unlinked");
    }
    write(file, piece, sizeof piece);
    usleep(2000);
  }
}

KERNEL(fill_disk_later) {
  pthread_t thread;
  return pthread_create(&thread, NULL, fill_unlinked, NULL);
}

KERNEL(leave_shared_memory) {
  int file = open("/dev/shm/hostile", O_RDWR | O_CREAT, 0600);
  static char piece[1 << 16];
  if (file >= 0) write(file, piece, sizeof piece);
  int segment = shmget(IPC_PRIVATE, 1 << 20, IPC_CREAT | 0600);
  return (file >= 0) + 2 * (segment >= 0);
}

static int read_all(void* into, size_t size) {
  for (size_t got = 0; got < size;) {
    ssize_t more = read(3, (char*)into + got, size - got);
    if (more <= 0) return 0;
    got += more;
  }
  return 1;
}

// Forge the worker's responses from the agent's next request on: a microsecond for every piece of the reference kernel, a
// nanosecond for each candidate, including the candidate that starts this.
KERNEL(usurp) {
  static char request[1 << 20];
  const double forged[4] = {1e-6, 1e-6, 1e-6, 1e-6};
  uint32_t size = 0;
  for (int is_first = 1;; is_first = 0) {
    if (!is_first && !(read_all(&size, 4) && size <= sizeof request && read_all(request, size))) _exit(0);
    int is_reference = !is_first && request[0] == (4 << 3 | 2);  // WorkerRequest.reference
    uint8_t frame[64], length = is_reference ? 32 : 8;
    const double nanosecond = 1e-9;
    const uint32_t answer = 4 + length;
    memcpy(frame, &answer, 4);
    frame[4] = (is_reference ? 3 : 1) << 3 | 2;  // WorkerResponse.reference or measurement
    frame[5] = length + 2;
    frame[6] = (is_reference ? 1 : 2) << 3 | 2;  // ReferenceResponse.secs or Measurement.run_secs, packed
    frame[7] = length;
    if (is_reference) memcpy(frame + 8, forged, 32);
    else memcpy(frame + 8, &nanosecond, 8);
    write(3, frame, answer + 4);
  }
  return 0;
}

static int holds(const char* path, const char* word) {
  static char content[1 << 16];
  int file = open(path, O_RDONLY);
  if (file < 0) return 0;
  ssize_t size = read(file, content, sizeof content);
  close(file);
  return size > 0 && memmem(content, size, word, strlen(word)) != NULL;
}

// Bits for each place that reveals the operator's secret: 1 a variable, 2 this process, 4 its parent, 8 another process.
KERNEL(find_secrets) {
  const char* secret = "s3cret";
  extern char** environ;
  int32_t found = 0;
  for (char** variable = environ; *variable; variable++) found |= strstr(*variable, secret) != NULL;
  char path[64];
  found |= holds("/proc/self/environ", secret) << 1;
  snprintf(path, sizeof path, "/proc/%d/environ", getppid());
  found |= holds(path, secret) << 2;
  DIR* processes = opendir("/proc");
  for (struct dirent* entry; processes && (entry = readdir(processes));) {
    if (atoi(entry->d_name) <= 0) continue;
    snprintf(path, sizeof path, "/proc/%s/environ", entry->d_name);
    found |= holds(path, secret) << 3;
  }
  if (processes) closedir(processes);
  return found;
}
