"""Runs an agent until a signal, for `python -m device_agents` and `fleet agent serve`.

Prints one line once it is registered: `agent listening on 127.0.0.1:PORT, serving devices/x`. If that takes longer than
a moment, it prints this line first: `agent listening on 127.0.0.1:PORT, waiting for the tracker at ADDRESS with
devices/x`. By then --ready-file has its address and devices. Ends with the reason if the tracker's first response
refuses this agent. An agent that has served keeps dialling, since the cause may be fixed, and open sessions need no
tracker.

Shuts down cleanly on SIGTERM, SIGINT and SIGHUP, at any time. Exits at once on a second signal, and after a time limit
even if something hangs. The rest is cleaned up as after a kill -9: the keepers notice the end of the agent, kill their
workers, and end.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import sys
from collections.abc import Coroutine
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from device_agents.agent import Agent, Home
from device_agents.config import AgentConfig, make_drivers, parse_config
from device_agents.options import AgentOptions
from device_agents.serving.membership import Membership, has_joined
from fleet.base import logs
from fleet.base.config import TRACKER_PORT, data_dir, read_yaml
from fleet.base.inspection import forbid_inspection
from fleet.base.metrics import check_metrics, serving_metrics
from fleet.base.network import address_of, check_addresses, listening_host, refuse_network, refuse_plain_network
from fleet.base.open_files import raise_file_limit
from fleet.base.readiness import Ready, write_ready, write_ready_file
from fleet.base.signals import end_in, stop_on_signals
from fleet.errors import ConfigError
from fleet.identity.join_tokens import JoinToken
from fleet.identity.roles import Identity
from fleet.identity.token_sources import STDIN, read_join_token, refuse_argument

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

T = TypeVar("T")

_BY_STDIN = "-"
_ATTACH_WAIT_SEC = 2.0
"""Wait for the tracker before a message about it."""

_JOIN_WAIT_SEC = 15.0
"""The same limit if the agent joins a fleet by a token first: on a slow board that takes some seconds."""

_STOP_SEC = 20.0
"""An orderly end takes a second, or as long as a load of a fabric that is under way."""

_THREADS_SEC = 2.0
"""A thread may wait for a library or a lock for ever after everything else has ended."""


_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8
_LARGE_BYTES = 256 * 1024
_ARENAS = 2


def run_agent(options: AgentOptions) -> int:
    """Serve until a signal; return the exit code.

    Raises:
        FleetError: it cannot start, or the tracker refuses it.
    """
    logs.setup(options.log_level)
    forbid_inspection()
    raise_file_limit()
    try:
        _keep_heap_small()
        return asyncio.run(_serve(_with_tracker(options)))
    except KeyboardInterrupt:
        return 0


def _keep_heap_small() -> None:
    """Map large blocks one by one and share two arenas among all threads. Does nothing without glibc's malloc.

    By default, freeing a large block raises the mmap threshold to its size, up to 32 MiB. Later blocks of several
    megabytes then come from the heap. One small block behind them keeps the heap from shrinking: after requests of
    60 MiB an agent kept 200 MiB.
    """
    with contextlib.suppress(OSError, AttributeError):
        set_option = ctypes.CDLL(None).mallopt
        set_option(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        set_option(_M_ARENA_MAX, _ARENAS)


def _with_tracker(options: AgentOptions) -> AgentOptions:
    """Wait for the tracker's address, which may be known later than everything else."""
    if options.tracker != _BY_STDIN:
        return options
    address = sys.stdin.readline().strip()
    if not address:
        raise ConfigError("stdin ended before it said where the tracker is")
    return replace(options, tracker=address)


async def _serve(options: AgentOptions) -> int:
    stopped = asyncio.Event()
    stop_on_signals(stopped, most_sec=_STOP_SEC)
    check_metrics(options.metrics, is_network_allowed=options.is_network_allowed)
    config, where = _config(options)
    if options.tracker is not None:
        check_addresses(options.tracker, "the tracker's address")
    if options.is_plain and config.relay is not None:
        raise ConfigError("a relay finds agents by their names in TLS; leave out --plain, or 'relay' in agent.yaml")
    state_dir = (options.state_dir or _default_state_dir()).absolute()  # workers use separate directories
    home = Home(
        tracker=options.tracker or config.tracker or f"127.0.0.1:{TRACKER_PORT}",
        state_dir=state_dir,
        host=_host(options),
        port=options.port,
        token=_token(options, state_dir),
        asks_to_join=options.asks_to_join,
        is_discoverable=options.is_discoverable,
        is_plain=options.is_plain,
    )
    agent = Agent(config, make_drivers(config, where=where), home)
    async with serving_metrics(options.metrics, partial(_register_metrics, agent)):
        return await _serve_agent(agent, home, options, stopped)


def _register_metrics(agent: Agent, registry: CollectorRegistry) -> None:
    from device_agents.metrics import AgentMetrics  # needs an extra

    registry.register(AgentMetrics(agent))


async def _serve_agent(agent: Agent, home: Home, options: AgentOptions, stopped: asyncio.Event) -> int:
    try:
        await _unless(stopped, agent.open())
        wait_sec = _ATTACH_WAIT_SEC if home.token is None else _JOIN_WAIT_SEC
        is_attached = await _unless(stopped, agent.wait_attached(wait_sec))
        if not stopped.is_set() and options.ready_file is not None:
            write_ready_file(_ready(agent, home), options.ready_file)
        if not is_attached and not stopped.is_set():
            if not options.is_json:
                _print_state(agent, home, _waiting(agent, home))
            await _unless(stopped, agent.wait_attached(None))
        if not stopped.is_set() and options.is_json:
            write_ready(_ready(agent, home))
        elif not stopped.is_set():
            _print_state(agent, home, "serving")
        await stopped.wait()
    finally:
        await agent.close()
        if stopped.is_set():
            end_in(_THREADS_SEC, 0)
    return 0


def _ready(agent: Agent, home: Home) -> Ready:
    return Ready(address=address_of(home.host, agent.port), devices=tuple(agent.device_names))


def _waiting(agent: Agent, home: Home) -> str:
    if agent.join_code:
        return f"waiting for an admin to run 'fleet agent approve {agent.join_code} --tracker {home.tracker}' for"
    return f"waiting for the tracker at {home.tracker} with"


def _print_state(agent: Agent, home: Home, what: str) -> None:
    names = ", ".join(agent.device_names) or "nothing yet: no device is connected"
    sys.stdout.write(f"agent listening on {address_of(home.host, agent.port)}, {what} {names}\n")
    sys.stdout.flush()


async def join_fleet(token: JoinToken, tracker: str, state_dir: Path | None) -> tuple[Path, Identity]:
    """Join the agent of a state directory to a tracker's fleet; return the path of its key, and the member.

    Raises:
        TrackerUnavailable: no tracker answers at that address.
        Unauthenticated: the token is for another fleet, used, expired or unknown.
    """
    folder = (state_dir or _default_state_dir()).absolute()
    membership = Membership(folder, tracker, token=token)
    membership.load()
    return membership.path, await membership.join()


def _default_state_dir() -> Path:
    return data_dir() / "agent"


def _config(options: AgentOptions) -> tuple[AgentConfig, str]:
    """Return the configuration, and its place."""
    if options.config and options.drivers:
        raise ConfigError("--driver is for agents without --config; name the driver in the file")
    if not options.config:
        return AgentConfig(devices=[{"driver": name} for name in options.drivers] or None), "agent.yaml"
    values, where = read_yaml(options.config)
    return parse_config(values, where=where), where


def _token(options: AgentOptions, state_dir: Path) -> JoinToken | None:
    if options.refused_token is not None:
        raise refuse_argument(options.refused_token, instead="the same with --token-file -")
    if options.token_file is None:
        return None
    if options.token_file == STDIN:
        return None if has_joined(state_dir) else read_join_token()
    if not options.token_file.exists():
        return None
    try:
        return read_join_token(options.token_file)
    finally:
        options.token_file.unlink()


def _host(options: AgentOptions) -> str:
    host = listening_host(options.host, is_network_allowed=options.is_network_allowed)
    if options.is_plain:
        refuse_plain_network(host)
    if not options.is_network_allowed:
        refuse_network(host)
    return host


async def _unless(stopped: asyncio.Event, work: Coroutine[object, object, T]) -> T | None:
    """Await something, but no longer than until the agent has to stop; return None then."""
    working = asyncio.ensure_future(work)
    stopping = asyncio.ensure_future(stopped.wait())
    await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
    for task in (working, stopping):
        task.cancel()
    await asyncio.gather(working, stopping, return_exceptions=True)
    return None if working.cancelled() else working.result()
