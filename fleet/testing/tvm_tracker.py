"""pytest plugin: runs test files of Apache TVM, unchanged, with a fleet in place of TVM's tracker.

    pytest -p fleet.testing.tvm_tracker test_runtime_rpc.py

`tvm.rpc.tracker.Tracker` starts a tracker, an agent and a gateway of ours, which take the same clients and servers at
one port. TVM's wheel has RPC, but its build flags do not list it: without this plugin these tests are skipped.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys

import tvm.rpc.tracker
import tvm.testing.env

from fleet.local.children import bound_to_me

_START_SEC = 60.0
_STOP_SEC = 20.0


class Tracker:
    """A fleet, made and ended like TVM's `Tracker`. It listens on the loopback only."""

    def __init__(
        self, host: str = "0.0.0.0", port: int = 9190, port_end: int = 9199, *_: object, **_ignored: object
    ) -> None:
        """Args:
        host: kept as an attribute, for callers that connect to it.
        port: first port to try.
        port_end: end of the ports to try.
        """
        command = bound_to_me([sys.executable, "-m", "fleet.testing.stock_fleet", str(port), str(port_end)])
        self.host = host
        self._owner = os.getpid()
        self._process: subprocess.Popen[bytes] | None = subprocess.Popen(command, stdout=subprocess.PIPE)
        self.port = self._read_port(self._process)

    def terminate(self) -> None:
        """End the fleet. Idempotent; without effect in a fork of the process that made it."""
        process, self._process = self._process, None
        if process is None or os.getpid() != self._owner:
            return
        process.send_signal(signal.SIGTERM)
        process.wait(_STOP_SEC)
        if process.stdout is not None:
            process.stdout.close()

    def __del__(self) -> None:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired, AttributeError):
            self.terminate()

    def _read_port(self, process: subprocess.Popen[bytes]) -> int:
        line = process.stdout.readline() if process.stdout is not None else b""
        if not line:
            self.terminate()
            raise RuntimeError("the fleet in place of TVM's tracker did not start; its reason is above")
        return int(line)


_build_flag_enabled = tvm.testing.env.build_flag_enabled


def _is_enabled(flag: str) -> bool:
    """Tell whether TVM was built with a flag. The wheel has RPC, and does not list it."""
    return flag == "USE_RPC" or bool(_build_flag_enabled(flag))


tvm.rpc.tracker.Tracker = Tracker
tvm.testing.env.build_flag_enabled = _is_enabled
