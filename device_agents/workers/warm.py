"""The warm process: has the runtime loaded, has no threads, has not touched the device, and forks workers.

    python -m device_agents.workers.warm --socket FD [--preload MODULE]...

Over the inherited SOCK_SEQPACKET socket it takes packets of JSON and answers with such packets:

    {"op": "fork", "order": {...}} + two descriptors (socket, log)  ->  {"event": "forked", "worker_id", "pid"}
    {"op": "kill", "worker_id"}                                     ->  {"event": "exited", ...}
    {"op": "sweep", "sweep_id"}                                     ->  {"event": "swept", "sweep_id"}
    unasked: {"event": "ready", "pid"}, {"event": "failed", "message"}, and
    {"event": "exited", "worker_id", "code", "signal"} when a worker ends

It is a child subreaper: whatever a worker left behind, however often it forked, becomes its child, and is killed before
the worker's exit is reported. When the socket ends, which is when the agent ends, it kills all workers and strays,
and exits.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from device_agents.machine import linux
from device_agents.workers.worker import WorkerOrder, become_worker

MAX_PACKET_BYTES = 64 * 1024
_STRAY_CHECK_SEC = 1.0
"""How long a process that daemonized itself lives beside its live worker."""

_KILL_SEC = 1.0
"""How long others wait for a killed process to end."""

_POLL_SEC = 0.001


@dataclass(slots=True)
class Nursery:
    """The workers that live."""

    agent: socket.socket
    pids: dict[int, int] = field(default_factory=dict)
    """worker_id to pid."""

    def handle(self, packet: dict[str, Any], descriptors: list[int]) -> None:
        """Do what the agent asks."""
        if packet["op"] == "fork":
            self._fork(WorkerOrder(**packet["order"]), descriptors)
        elif packet["op"] == "kill":
            self._kill(packet["worker_id"])
        elif packet["op"] == "sweep":
            self.kill_strays()
            self._tell(event="swept", sweep_id=packet["sweep_id"])

    def reap(self) -> None:
        """Report workers that ended, after killing what they left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._buried(pid, status)

    def kill_strays(self) -> None:
        """Kill children that are no workers, and their children once they arrive here, until there are none."""
        while True:
            self.reap()
            strays = set(linux.children_of(os.getpid())) - set(self.pids.values())
            if not strays:
                return
            for pid in strays:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if not _await_ends(strays):
                return  # they hang in the kernel: the next round tries again, and the agent is told of others meanwhile

    def kill_all(self) -> None:
        """End everything, without a word to the agent, which is gone."""
        for pid in self.pids.values():
            _kill_group(pid)
        self.pids.clear()
        self.kill_strays()

    def _fork(self, order: WorkerOrder, descriptors: list[int]) -> None:
        socket_fd, log_fd = descriptors
        parent_pid = os.getpid()
        pid = os.fork()
        if pid == 0:
            become_worker(order, socket_fd, log_fd, parent_pid)
        os.close(socket_fd)
        os.close(log_fd)
        self.pids[order.worker_id] = pid
        self._tell(event="forked", worker_id=order.worker_id, pid=pid)

    def _kill(self, worker_id: int) -> None:
        pid = self.pids.get(worker_id)
        if pid is None:
            return
        _kill_group(pid)
        # One that hangs in the kernel ends some time, or never: whenever it does, SIGCHLD says so.
        ends_at = time.monotonic() + _KILL_SEC
        while worker_id in self.pids and time.monotonic() < ends_at:
            time.sleep(_POLL_SEC)
            self.reap()

    def _buried(self, pid: int, status: int) -> None:
        worker_id = next((worker_id for worker_id, known in self.pids.items() if known == pid), None)
        if worker_id is None:
            return
        del self.pids[worker_id]
        # What is left of its group first: a group outlives its leader.
        _kill_group(pid)
        self.kill_strays()
        code = os.waitstatus_to_exitcode(status)
        self._tell(event="exited", worker_id=worker_id, code=max(code, 0), signal=max(-code, 0))

    def _tell(self, **packet: object) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.agent.send(json.dumps(packet).encode())


def main(argv: list[str] | None = None) -> int:
    """Serve the agent until it is gone."""
    parser = argparse.ArgumentParser(prog="python -m device_agents.workers.warm")
    parser.add_argument("--socket", type=int, required=True)
    parser.add_argument("--preload", action="append", default=[])
    arguments = parser.parse_args(argv)
    linux.adopt_orphans()
    # The agent's Ctrl-C is the agent's to handle: it ends this process by closing the socket.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    agent = socket.socket(fileno=arguments.socket)
    agent.set_inheritable(False)
    try:
        for name in arguments.preload:
            importlib.import_module(name).preload()
    except Exception as error:  # noqa: BLE001 - outermost edge of the start: the agent says it in its own words
        agent.send(json.dumps({"event": "failed", "message": f"{type(error).__name__}: {error}"}).encode())
        return 1
    gc.collect()
    # Pages that no collection touches stay shared with the workers.
    gc.freeze()
    nursery = Nursery(agent)
    agent.send(json.dumps({"event": "ready", "pid": os.getpid()}).encode())
    try:
        _loop(nursery, _child_alarm())
    finally:
        nursery.kill_all()
    return 0


def _child_alarm() -> socket.socket:
    """Return a socket that becomes readable when a child ends."""
    alarm, trigger = socket.socketpair()
    alarm.setblocking(False)
    trigger.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(trigger.detach(), warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, _on_terminate)
    return alarm


def _on_terminate(*_: object) -> None:
    raise SystemExit(0)


def _await_ends(pids: set[int]) -> bool:
    """Reap these children, which were killed; False when one does not end within a second."""
    ends_at = time.monotonic() + _KILL_SEC
    waiting = set(pids)
    while waiting:
        for pid in list(waiting):
            try:
                ended, _ = os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                ended = pid
            if ended:
                waiting.discard(pid)
        if waiting and time.monotonic() > ends_at:
            return False
        if waiting:
            time.sleep(_POLL_SEC)
    return True


def _loop(nursery: Nursery, alarm: socket.socket) -> None:
    checked_at = time.monotonic()
    while True:
        readable, _, _ = select.select([nursery.agent, alarm], [], [], _STRAY_CHECK_SEC)
        if alarm in readable:
            with contextlib.suppress(BlockingIOError):
                alarm.recv(4096)
            nursery.reap()
        if nursery.agent in readable:
            content, descriptors, _, _ = socket.recv_fds(nursery.agent, MAX_PACKET_BYTES, 2, socket.MSG_CMSG_CLOEXEC)
            if not content:
                return
            nursery.handle(json.loads(content), descriptors)
        if time.monotonic() - checked_at > _STRAY_CHECK_SEC:
            checked_at = time.monotonic()
            nursery.kill_strays()


def _kill_group(pid: int) -> None:
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
