"""Maps tracker addresses to fleets: a tracker has many addresses, but one fleet."""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from fleet import aio
from fleet.errors import FleetError, NoMatchingDevice, TrackerUnavailable
from fleet.library import OptimizerRecord

T = TypeVar("T")

_ANSWER_SEC = 3.0
_PAUSE_SEC = 0.2
_THIS_MACHINE = ("127.0.0.1", "localhost", "[::1]", "0.0.0.0")


async def fleet_behind(address: str) -> str:
    """Return the fleet id of the tracker at an address; "" if none answers soon."""
    try:
        async with aio.connect(address, connect_timeout_sec=_ANSWER_SEC) as client:
            return client.fleet_id
    except FleetError:
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """Fleet that a job is submitted for. Both are empty if its tracker does not answer."""

    fleet_id: str = ""
    account: str = ""
    """The submitter's account there."""


NOWHERE = Destination()


async def destination_of(address: str | None, selectors: Iterable[str]) -> Destination:
    """Return the destination of a job to submit, after checking that the fleet has matching devices.

    Raises:
        NoMatchingDevice: it knows none that a selector matches.
    """
    if not address:
        return NOWHERE
    try:
        async with aio.connect(address, connect_timeout_sec=_ANSWER_SEC) as client:
            for selector in selectors:
                await asked_again(partial(client.check_selector, selector), within_sec=_ANSWER_SEC)
            return Destination(fleet_id=client.fleet_id, account=client.account)
    except NoMatchingDevice:
        raise
    except FleetError:
        return NOWHERE


async def asked_again(question: Callable[[], Awaitable[T]], *, within_sec: float) -> T:
    """Query a connected tracker until it answers: it may restart between any two queries.

    Raises:
        TrackerUnavailable: it does not answer within the time limit.
    """
    now_sec = asyncio.get_running_loop().time
    until_sec = now_sec() + within_sec
    while True:
        try:
            return await question()
        except TrackerUnavailable:
            if now_sec() + _PAUSE_SEC > until_sec:
                raise
        await asyncio.sleep(_PAUSE_SEC)


async def serving(optimizers: Sequence[OptimizerRecord], tracker: str, fleet_id: str) -> list[OptimizerRecord]:
    """Return the optimizers that run jobs on a fleet.

    Args:
        tracker: an address of it.
        fleet_id: the fleet at that address; "": only addresses can be compared.
    """
    others = sorted({_as_seen_from_here(one) for one in optimizers} - {tracker}) if fleet_id else []
    found = dict(zip(others, await asyncio.gather(*map(fleet_behind, others)), strict=True))
    found[tracker] = fleet_id
    return [one for one in optimizers if found.get(_as_seen_from_here(one)) == fleet_id]


def _as_seen_from_here(optimizer: OptimizerRecord) -> str:
    """Return an optimizer's tracker address; a loopback address is replaced by the name of the optimizer's machine."""
    host, _, port = optimizer.tracker.rpartition(":")
    is_elsewhere = optimizer.host != platform.node()
    return f"{optimizer.host}:{port}" if host in _THIS_MACHINE and is_elsewhere else optimizer.tracker
