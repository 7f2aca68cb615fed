/* Stands in the place of every program of an emulated board's tree and starts the real one under qemu.
 *
 * The kernel cannot run a foreign program by itself where binfmt_misc is not set up, and setting it up takes rights
 * over the whole machine. A native program in its place needs none: fork, exec, "#!" lines and PATH work as on the
 * board. The real program lies at the same path below STORE; the CPU to be is what the file CPU_FILE says.
 *
 * qemu 7 refuses PR_SET_CHILD_SUBREAPER, which an agent wants for itself and for its fork server. It lasts over exec,
 * so every program gets it here; for those that do not ask for it on a real board it changes next to nothing.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#define STORE "/usr/lib/emulation/programs"
#define QEMU "/usr/lib/emulation/qemu"
#define CPU_FILE "/usr/lib/emulation/cpu"

int main(int argc, char** argv) {
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  static char self[4096], program[8192], cpu[128];
  ssize_t length = readlink("/proc/self/exe", self, sizeof(self) - 1);
  if (length <= 0) {
    fprintf(stderr, "emulated board: /proc is not mounted\n");
    return 126;
  }
  snprintf(program, sizeof(program), STORE "%s", self);
  int file = open(CPU_FILE, O_RDONLY | O_CLOEXEC);
  ssize_t got = file < 0 ? -1 : read(file, cpu, sizeof(cpu) - 1);
  if (got <= 0) {
    fprintf(stderr, "emulated board: no CPU named in " CPU_FILE "\n");
    return 126;
  }
  close(file);
  cpu[strcspn(cpu, "\n")] = 0;
  char** words = calloc((size_t)argc + 8, sizeof(char*));
  if (words == NULL) return 126;
  int count = 0;
  words[count++] = "qemu";
  words[count++] = "-cpu";
  words[count++] = cpu;
  words[count++] = "-0";
  words[count++] = argc > 0 ? argv[0] : self;
  words[count++] = program;
  for (int index = 1; index < argc; index++) words[count++] = argv[index];
  execv(QEMU, words);
  perror("emulated board: " QEMU);
  return 126;
}
