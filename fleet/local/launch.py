"""Starts a program that cannot outlive the process that started it: `launch.py SIGNAL PARENT_PID PROGRAM ARGS...`.

Run as a script in the new process, because the alternative, a hook between fork and exec, is unsafe in a process with
threads, and every gRPC process has some. The kernel sends SIGNAL when the parent dies, even by kill -9.
"""

import ctypes
import os
import sys

_PR_SET_PDEATHSIG = 1


def main(argv: list[str]) -> None:
    """Bind this process's life to its parent's and execute the program."""
    signal_number, parent_pid, program = int(argv[0]), int(argv[1]), argv[2:]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal_number, 0, 0, 0)
    if os.getppid() != parent_pid:  # the parent died before the previous line
        sys.exit(1)
    try:
        os.execvp(program[0], program)  # noqa: S606 - becoming the program is the point
    except OSError as error:
        sys.stderr.write(f"cannot run {program[0]}: {error.strerror}\n")
        sys.exit(126 if isinstance(error, PermissionError) else 127)


if __name__ == "__main__":
    main(sys.argv[1:])
