"""The keeper: a small process between the agent and one worker, which reports the worker's exit status.

The warm process forks a first process, which prepares the jail, forks the keeper and exits, so that the keeper becomes
a child of the agent. The keeper forks the worker. From then on the warm process is not needed: the agent can kill the
worker even if the warm process is stopped or dead.

On its socket the keeper reports `{"event": "kept", "pid"}`, or `{"event": "failed", "message"}` if it cannot make the
jail; the worker reports `{"event": "born", "pid"}` before it closes its copy of that socket; finally the keeper reports
`{"event": "ended", "code", "signal"}`. End of file without that means that the keeper was killed. The
kernel adds each sender's process id as the agent sees it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import time
from typing import NoReturn

from device_agents.jail.confine import furnish, leave_the_agent
from device_agents.jail.layers import Layer
from device_agents.machine import linux
from device_agents.workers.worker import WorkerOrder, become_worker
from fleet.base.inspection import forbid_inspection

_KILL_SEC = 1.0
"""The keeper's wait for processes that it killed; the agent deals with the rest."""

_POLL_SEC = 0.001


def start_keeper(order: WorkerOrder, descriptors: list[int], parents_end: int, *, is_adopted: bool) -> NoReturn:
    """Turn a freshly forked process into the keeper's parent, or into the keeper itself if orphans are not adopted.

    Args:
        descriptors: the worker's socket and log, and the socket for reports.
        parents_end: ends once the process that this runs in has been reaped.
    """
    code = 1
    try:
        os.setsid()
        leave_the_agent(order.jail_spec)
        if is_adopted and os.fork():
            os._exit(0)
        os.read(parents_end, 1)
        os.close(parents_end)
        code = _keep(order, descriptors, is_adopted=is_adopted)
    except OSError as error:
        _report(socket.socket(fileno=descriptors[-1]), event="failed", message=str(error))
    finally:
        os._exit(code)


def _keep(order: WorkerOrder, descriptors: list[int], *, is_adopted: bool) -> int:
    requests, log, reports = descriptors
    agent = socket.socket(fileno=reports)
    alarm = _child_alarm()
    linux.adopt_orphans()
    if is_adopted and Layer.PID in order.jail_spec.layers:
        # Then nothing of the worker outlives the agent, even if this process does nothing.
        linux.die_with_parent(signal.SIGKILL)
    furnish(order.jail_spec)
    forbid_inspection()
    _report(agent, event="kept", pid=os.getpid())
    keeper = os.getpid()
    worker = os.fork()
    if worker == 0:
        _report(agent, event="born", pid=os.getpid())
        agent.close()
        become_worker(order, requests, log, keeper)
    os.close(requests)
    os.close(log)
    status = _await_end(worker, agent, alarm)
    _kill_children()
    if status is not None:
        code = os.waitstatus_to_exitcode(status)
        _report(agent, event="ended", code=max(code, 0), signal=max(-code, 0))
    return 0


def _await_end(worker: int, agent: socket.socket, alarm: socket.socket) -> int | None:
    """Return the worker's wait status; None if the agent ended first."""
    while True:
        readable, _, _ = select.select([agent, alarm], [], [])
        if agent in readable:
            return None  # readable means closed, since the agent never writes
        with contextlib.suppress(BlockingIOError):
            alarm.recv(4096)
        while (ended := _reaped()) is not None:
            if ended[0] == worker:
                return ended[1]


def _reaped() -> tuple[int, int] | None:
    try:
        pid, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    return (pid, status) if pid else None


def _kill_children() -> None:
    """Kill the worker's remaining processes; orphans are reparented here and killed, too."""
    ends_at = time.monotonic() + _KILL_SEC
    while (children := linux.children_of(os.getpid())) and time.monotonic() < ends_at:
        for pid in children:
            linux.kill(pid)
        while _reaped() is not None:
            pass
        time.sleep(_POLL_SEC)


def _child_alarm() -> socket.socket:
    """Return a socket that becomes readable when a child ends."""
    alarm, trigger = socket.socketpair()
    alarm.setblocking(False)
    trigger.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(trigger.detach(), warn_on_full_buffer=False)
    return alarm


def _report(agent: socket.socket, **report: object) -> None:
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        agent.send(json.dumps(report).encode())
