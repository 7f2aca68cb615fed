"""Run an agent: `python -m device_agents --tracker HOST:PORT`. Plain argparse, because boards have no typer.

Prints one line when it is ready: `agent listening on 127.0.0.1:PORT, serving devices/x`. Ends cleanly on SIGTERM and
SIGINT, at any time; at once on a second one, and after a while in any case, whatever hangs. What is left then goes as
after a kill -9: workers end with the process that they were forked from, and that with its agent.
"""

from __future__ import annotations

import argparse
import asyncio
import ipaddress
import os
import signal
import sys
import threading
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

from device_agents.agent import Agent, Place
from device_agents.config import AgentConfig, make_drivers, parse_config
from fleet import logs
from fleet.config import TRACKER_PORT, data_dir, read_yaml
from fleet.errors import ConfigError, FleetError

_ATTACH_WAIT_SEC = 2.0
"""How long the ready line waits for the tracker: who sees it can then acquire at once, and a missing tracker delays
nobody much."""

_STOP_SEC = 20.0
"""An orderly end takes a second, or as long as a load of a fabric that is under way."""

_THREADS_SEC = 2.0
"""What a thread still waits for when all else has ended, such as a library or a lock, may never come."""


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until a signal; return the exit code."""
    arguments = _parser().parse_args(argv)
    logs.setup(arguments.log_level)
    try:
        return asyncio.run(_serve(arguments))
    except KeyboardInterrupt:
        return 0
    except FleetError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m device_agents", description="Serve this machine's devices.")
    parser.add_argument("--tracker", metavar="HOST:PORT", help=f"where to attach (127.0.0.1:{TRACKER_PORT})")
    parser.add_argument("--config", type=Path, metavar="FILE", help="agent.yaml; without it, what is found here")
    parser.add_argument(
        "--driver", action="append", metavar="NAME", help="without --config: serve what this driver finds; repeatable"
    )
    parser.add_argument("--state-dir", type=Path, metavar="DIR", help="artifacts and epochs; one agent each")
    parser.add_argument("--host", help="address to listen on (127.0.0.1)")
    parser.add_argument("--port", type=int, default=0, help="port to listen on (a free one)")
    parser.add_argument("--allow-network", action="store_true", help="listen beyond this machine, without encryption")
    parser.add_argument("--log-level", default="INFO", choices=["DEBUG", "INFO", "WARNING", "ERROR"])
    return parser


async def _serve(arguments: argparse.Namespace) -> int:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _stop, stopped)
    where = str(arguments.config or "agent.yaml")
    config = _config(arguments, where)
    place = Place(
        tracker=arguments.tracker or config.tracker or f"127.0.0.1:{TRACKER_PORT}",
        state_dir=arguments.state_dir or data_dir() / "agent",
        host=_host(arguments),
        port=arguments.port,
    )
    agent = Agent(config, make_drivers(config, where=where), place)
    try:
        await _unless(stopped, agent.open())
        await _unless(stopped, agent.wait_attached(_ATTACH_WAIT_SEC))
        if not stopped.is_set():
            names = ", ".join(agent.device_names) or "nothing yet: no device is connected"
            sys.stdout.write(f"agent listening on {place.host}:{agent.port}, serving {names}\n")
            sys.stdout.flush()
        await stopped.wait()
    finally:
        await agent.close()
        if stopped.is_set():
            _end_in(_THREADS_SEC, 0)
    return 0


def _stop(stopped: asyncio.Event) -> None:
    if stopped.is_set():
        _end(1)
    stopped.set()
    _end_in(_STOP_SEC, 1)


def _end_in(delay_sec: float, code: int) -> None:
    """End the process after this time, unless it ended by itself."""
    timer = threading.Timer(delay_sec, _end, (code,))
    timer.daemon = True
    timer.start()


def _end(code: int) -> None:
    sys.stderr.flush()
    os._exit(code)


def _config(arguments: argparse.Namespace, where: str) -> AgentConfig:
    if arguments.config and arguments.driver:
        raise ConfigError("--driver is for agents without --config; name the driver in the file")
    if arguments.config:
        return parse_config(read_yaml(arguments.config), where=where)
    return AgentConfig(devices=[{"driver": name} for name in arguments.driver] if arguments.driver else None)


async def _unless(stopped: asyncio.Event, work: Coroutine[Any, Any, object]) -> None:
    """Do something, but no longer than until it is time to stop."""
    working = asyncio.ensure_future(work)
    stopping = asyncio.ensure_future(stopped.wait())
    await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
    for task in (working, stopping):
        task.cancel()
    await asyncio.gather(working, stopping, return_exceptions=True)
    if not working.cancelled():
        working.result()


def _host(arguments: argparse.Namespace) -> str:
    host: str = arguments.host or ("0.0.0.0" if arguments.allow_network else "127.0.0.1")
    if arguments.allow_network or host == "localhost":
        return host
    try:
        is_local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_local = False
    if not is_local:
        raise ConfigError(
            f"--host {host} is reached from other machines, and the data path is not encrypted yet; "
            "add --allow-network if the network is yours alone"
        )
    return host


if __name__ == "__main__":
    sys.exit(main())
