"""Process between the agent and one hook: it ends with the hook, and leaves none of the hook's children running.

    python -m device_agents.machine.hook_keeper COMMAND...

It adopts orphans of the command, also of one that left its process group or session. It kills all of them once the
command has ended, or once its stdin is at its end: the agent closes it at the time limit, the kernel if the agent dies.
The exit code is the command's; 128 and the number of the signal for one that was killed; 127 without a command.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence

from device_agents.machine import linux

NOT_FOUND_EXIT_CODE = 127
PASSED = ("PATH", "HOME", "FLEET_DEVICE", "FLEET_LEASE", "FLEET_HOLDER")
"""Environment of the command."""
_KILL_SEC = 2.0
_POLL_SEC = 0.005
_LIFELINE = 0


def main(words: Sequence[str]) -> int:
    """Run a command; return the exit code of this process."""
    linux.adopt_orphans()
    environment = {name: os.environ[name] for name in PASSED if name in os.environ}
    alarm, trigger = socket.socketpair()
    trigger.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(trigger.fileno(), warn_on_full_buffer=False)
    try:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, process_group=0, cwd="/", env=environment)
    except OSError as error:
        sys.stdout.write(f"cannot run {words[0]}: {error.strerror}\n")
        sys.stdout.flush()
        return NOT_FOUND_EXIT_CODE
    while process.poll() is None:
        readable, _, _ = select.select((_LIFELINE, alarm.fileno()), (), ())
        if _LIFELINE in readable and not os.read(_LIFELINE, 1):
            break
        if alarm.fileno() in readable:
            alarm.recv(4096)
    _kill_all(process)
    code = process.returncode
    if code is None:
        return 128 + signal.SIGKILL
    return code if code >= 0 else 128 - code


def _kill_all(process: subprocess.Popen[bytes]) -> None:
    """Kill the command's process group and all descendants, again until none is left or a process hangs."""
    ends_at = time.monotonic() + _KILL_SEC
    while time.monotonic() < ends_at:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        left = [pid for pid in linux.descendants_of(os.getpid()) if linux.is_running(pid)]
        for pid in left:
            linux.kill(pid)
        if not left and process.poll() is not None:
            return
        time.sleep(_POLL_SEC)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
