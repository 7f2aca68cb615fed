"""Runs a site in private namespaces: leftover processes can be counted, and end with them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.chaos.checker import Bounds
from tests.chaos.run_site import OVER
from tests.programs import here

_APART = ["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--ipc", "--net"]
_ENTER = 'mount -t tmpfs none /dev/shm && ip link set lo up && exec "$@"'
_SLACK_SEC = 600.0
"""Time for start, end, and calm phases, beyond the time of the faults."""


def run_apart(
    folder: Path, *, seed: int, seconds: float, bounds: Bounds, tunes: bool = False, standby: bool = False
) -> Path:
    """Run a site with its files in `folder`; return the folder of its logs. Ctrl-C ends it orderly.

    Raises:
        CalledProcessError: it did not come to its end; why stands in its output.
    """
    logs = folder.absolute() / "logs"
    logs.mkdir(parents=True)
    for path in (folder, logs):
        path.chmod(0o711)  # workers may be other users, and write into their device's log
    as_root = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    site = [sys.executable, "-m", "tests.chaos.run_site", str(folder.absolute())]
    words = [*site, "--seed", str(seed), "--seconds", str(seconds)]
    words += ["--patience", str(bounds.served_sec), *(["--tunes"] if tunes else [])]
    words += ["--standby"] if standby else []
    command = ["unshare", *as_root, *_APART, "sh", "-c", _ENTER, "sh", *words]
    interrupted = signal.signal(signal.SIGINT, lambda *_: (folder / OVER).touch())
    try:
        subprocess.run(command, check=True, env=here(), timeout=3 * seconds + _SLACK_SEC, start_new_session=True)
    finally:
        signal.signal(signal.SIGINT, interrupted)
    return logs
