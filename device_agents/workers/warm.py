"""The warm process: has the runtime loaded, has no threads, has not touched the device, and forks workers.

    python -m device_agents.workers.warm --socket FD [--adopted] [--jailed] [--preload MODULE]...

Over the inherited SOCK_SEQPACKET socket it takes orders in JSON, each with three descriptors (socket, log, reports),
and forks a worker for each; see device_agents/workers/keeper.py for what the worker and its keeper report. Unasked it
sends `{"event": "ready", "jail": {...}}` with the layers of its jails, or `{"event": "failed", "message"}`. It ends
when the socket does: when the agent ends.

It forks, and that is all: the agent is the parent of the forked processes, watches and kills them.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import os
import signal
import socket
import sys

from device_agents.jail.layers import OPEN
from device_agents.jail.probe import probe
from device_agents.workers.keeper import start_keeper
from device_agents.workers.worker import WorkerOrder
from fleet.base.inspection import forbid_inspection
from fleet.base.plain import to_plain

MAX_PACKET_BYTES = 64 * 1024
_DESCRIPTORS = 3


def main(argv: list[str] | None = None) -> int:
    """Serve the agent until it ends."""
    parser = argparse.ArgumentParser(prog="python -m device_agents.workers.warm")
    parser.add_argument("--socket", type=int, required=True)
    parser.add_argument("--adopted", action="store_true", help="the agent adopts what loses its parent")
    parser.add_argument("--jailed", action="store_true", help="put workers into a jail of all that this machine has")
    parser.add_argument("--preload", action="append", default=[])
    arguments = parser.parse_args(argv)
    # Ctrl-C is for the agent, which ends this process by closing the socket.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    forbid_inspection()
    agent = socket.socket(fileno=arguments.socket)
    agent.set_inheritable(False)
    jail = probe() if arguments.jailed else OPEN
    try:
        for name in arguments.preload:
            importlib.import_module(name).preload()
    except Exception as error:  # noqa: BLE001 - outermost edge of the start: the agent says it in its own words
        agent.send(json.dumps({"event": "failed", "message": f"{type(error).__name__}: {error}"}).encode())
        return 1
    gc.collect()
    # Pages that the garbage collector does not touch stay shared with the workers.
    gc.freeze()
    agent.send(json.dumps({"event": "ready", "jail": to_plain(jail)}).encode())
    while True:
        content, descriptors, _, _ = socket.recv_fds(agent, MAX_PACKET_BYTES, _DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
        if not content:
            return 0
        _fork(agent, WorkerOrder.from_json(content), descriptors, is_adopted=arguments.adopted)


def _fork(agent: socket.socket, order: WorkerOrder, descriptors: list[int], *, is_adopted: bool) -> None:
    parents_end, our_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(our_end)
        agent.close()
        start_keeper(order, descriptors, parents_end, is_adopted=is_adopted)
    for descriptor in (*descriptors, parents_end):
        os.close(descriptor)
    if is_adopted:
        os.waitpid(child, 0)
    else:
        _reap()
    os.close(our_end)


def _reap() -> None:
    """Reap keepers that have ended and are children of this process."""
    while any(os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG) or ()):
        pass


if __name__ == "__main__":
    sys.exit(main())
