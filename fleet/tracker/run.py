"""Runs a tracker until a signal, for `python -m fleet.tracker`, `fleet tracker serve` and `fleet up`."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
from collections.abc import Coroutine
from dataclasses import replace

from fleet.base import logs
from fleet.base.clock import Clock
from fleet.base.inspection import forbid_inspection
from fleet.base.network import check_address
from fleet.base.open_files import raise_file_limit
from fleet.base.readiness import Ready, write_ready
from fleet.base.signals import stop_on_signals
from fleet.domain.terms import larger_term, make_proof
from fleet.domain.tokens import load_or_make_key
from fleet.errors import ConfigError
from fleet.tracker.authority import open_authority
from fleet.tracker.backup import AUTHORITY, SIGNING_KEY
from fleet.tracker.core.records import TrackerLimits
from fleet.tracker.observers import installed_observers
from fleet.tracker.options import TrackerOptions
from fleet.tracker.replica.peers import exchange_terms
from fleet.tracker.replica.standby import Standby
from fleet.tracker.replica.standing import Duty, read_standing, write_standing
from fleet.tracker.server import Tracker, lock_directory

logger = logging.getLogger(__name__)

_TAKEOVER_GRACE_SEC = 30.0
"""Clients notice after 15 s that a tracker's machine is gone, since nothing ends their connections."""
_STOP_SEC = 15.0
"""Grace period before a hanging tracker is killed. A tracker normally ends within a second."""


def run_tracker(options: TrackerOptions) -> int:
    """Serve until a signal; return the exit code.

    Raises:
        FleetError: it cannot start.
    """
    if options.standby_of:
        check_address(options.standby_of, "--standby-of:")
    logs.setup(options.log_level)
    # Most garbage is young: young objects are few and collected often; all objects of a large fleet rarely.
    gc.set_threshold(700, 3, 20_000)
    forbid_inspection()
    raise_file_limit()
    asyncio.run(_serve(options))
    return 0


async def _serve(options: TrackerOptions) -> None:
    stop = asyncio.Event()
    stop_on_signals(stop, most_sec=_STOP_SEC)
    while not stop.is_set():
        clock: Clock | None = None
        if primary := await _primary(options):
            clock, options = await _stand_by(options, primary, stop)
        if not stop.is_set():
            options = await _grant(options, clock, stop)


async def _primary(options: TrackerOptions) -> str:
    """Return the address of the tracker to follow; empty: this one grants."""
    directory = options.directory
    standing = read_standing(directory)
    if standing.duty is Duty.FOLLOWS:
        if primary := standing.other or options.standby_of:
            return primary
        raise ConfigError(
            "another tracker of this fleet has taken over; follow it: fleet tracker serve --standby-of HOST:PORT"
        )
    if not (directory / AUTHORITY).exists():
        return options.standby_of or ""
    other = standing.other or options.standby_of or ""
    if not other or options.is_plain:
        return ""
    key, pem = load_or_make_key(directory / SIGNING_KEY), open_authority(directory).certificate_pem
    term = larger_term(key, standing.term, await exchange_terms(other, make_proof(key, standing.term), pem))
    if options.standby_of and term <= standing.term:
        logger.warning("the state directory is of a tracker that grants, so it follows none", extra={"other": other})
    if term <= standing.term:
        return ""
    with lock_directory(directory):
        write_standing(directory, replace(standing, duty=Duty.FOLLOWS, term=term, other=other))
    return other


async def _stand_by(options: TrackerOptions, primary: str, stop: asyncio.Event) -> tuple[Clock, TrackerOptions]:
    """Follow until promoted or stopped; return the primary's clock, and options with the port."""
    with lock_directory(options.directory):
        async with Standby(options, primary) as standby:
            await _first(stop.wait(), standby.wait_whole())
            if not stop.is_set():
                _say(options, standby.address, "standby")
                await _first(stop.wait(), standby.promoted.wait())
        return standby.following.clock, _at(options, standby.address)


async def _grant(options: TrackerOptions, clock: Clock | None, stop: asyncio.Event) -> TrackerOptions:
    """Serve until superseded or stopped; return options with the port.

    Args:
        clock: after a takeover, the former primary's.
    """
    tracker = Tracker(
        options,
        clock,
        limits=_limits(options),
        observers=installed_observers(),
        grace_sec=None if clock is None else _TAKEOVER_GRACE_SEC,
    )
    async with tracker:
        gc.freeze()  # objects from before the first caller: they stay, and are never scanned again
        _say(options, tracker.address, "tracker")
        await _first(stop.wait(), tracker.superseded.wait())
        if tracker.superseded.is_set():
            await _first(stop.wait(), tracker.step_down())
        return _at(options, tracker.address)


async def _first(*waits: Coroutine[object, object, object]) -> None:
    """Wait for the first to end, and raise its error."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    for task in done:
        task.result()


def _at(options: TrackerOptions, address: str) -> TrackerOptions:
    """Return options with the port of an address; the same if that is empty."""
    if not address:
        return options
    return replace(options, port=int(address.rpartition(":")[2]))


def _say(options: TrackerOptions, address: str, what: str) -> None:
    if options.is_json:
        write_ready(Ready(address=address))
        return
    sys.stdout.write(f"{what} listening on {address}\n")
    sys.stdout.flush()


def _limits(options: TrackerOptions) -> TrackerLimits:
    most, usual = options.devices_per_agent, TrackerLimits()
    return replace(usual, max_names_per_agent=most, max_devices_per_agent=max(usual.max_devices_per_agent, most))
