"""Completion values of names: current devices, jobs, leases and boards.

A person waits for it with a finger on a key. Whatever goes wrong, nothing is offered, and nothing is said.
"""

from __future__ import annotations

import asyncio
import queue
import re
import threading
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

import typer

from fleet.base.settings import look_up
from fleet.cli.job_names import newest_jobs
from fleet.domain.selectors import labels_of
from fleet.domain.snapshot import Snapshot

if TYPE_CHECKING:
    from fleet.client.tracker_calls import TrackerCalls

Offers = list[tuple[str, str]]
"""Each word, with a description for the shell."""

_LONGEST_SEC = 1.0
"""An answer takes a hundredth of that."""

_MOST_JOBS = 50


def devices(ctx: typer.Context, incomplete: str) -> Offers:
    """Offer the fleet's devices."""

    def found(fleet: Snapshot) -> Offers:
        return [(_short(one.name), one.inventory.device_model or one.inventory.kind) for one in fleet.devices]

    return _beginning(incomplete, _of_fleet(ctx, found))


def leases(ctx: typer.Context, incomplete: str) -> Offers:
    """Offer the live leases."""

    def found(fleet: Snapshot) -> Offers:
        return [(_short(one.name), f"{_short(one.device_name)}, {one.held_by}") for one in fleet.leases]

    return _beginning(incomplete, _of_fleet(ctx, found))


def requests(ctx: typer.Context, incomplete: str) -> Offers:
    """Offer the waiting requests."""

    def found(fleet: Snapshot) -> Offers:
        return [(one.request_id, f"{one.terms.wanted}, {one.asked_by}") for one in fleet.requests]

    return _beginning(incomplete, _of_fleet(ctx, found))


def bookings(ctx: typer.Context, incomplete: str) -> Offers:
    """Offer the bookings."""

    async def found(calls: TrackerCalls) -> Offers:
        return [(_short(one.name), f"{one.wanted}, {one.booked_by}") for one in await calls.bookings()]

    return _beginning(incomplete, _of_tracker(ctx, found))


def selectors(ctx: typer.Context, incomplete: str) -> Offers:
    """Offer the label keys of the fleet's devices, and after "key=" its values."""

    def found(fleet: Snapshot) -> Offers:
        return [(text, "") for text in parts_of_selectors(incomplete, map(labels_of, fleet.devices))]

    return _of_fleet(ctx, found)


def boards(incomplete: str) -> Offers:
    """Offer the supported boards."""
    from cross.targets.boards import load_boards

    return _beginning(incomplete, [(name, board.title) for name, board in load_boards().items()])


def jobs(ctx: typer.Context, incomplete: str) -> Offers:
    """Offer the newest jobs of the library. Opens it read-only."""

    def ask() -> Offers:
        found = newest_jobs(look_up("library", ctx.params.get("library")).value, _MOST_JOBS)
        return [(_short(name), title) for name, title in found]

    return _beginning(incomplete, _quickly(ask))


def parts_of_selectors(incomplete: str, labels_by_device: Iterable[dict[str, str]]) -> list[str]:
    """Return completions of a partial selector: keys, or values of its last key.

    Values that a selector cannot hold as they are (with spaces or commas) are left out.
    """
    before, comma, last = incomplete.rpartition(",")
    split = re.match(r"([^=!<>]*)(!=|[<>]?=|[<>]|)", last)
    key, operator = split.groups() if split else (last, "")
    pairs = {(name, value) for labels in labels_by_device for name, value in labels.items()}
    if operator:
        values = {value for name, value in pairs if name == key and not set(value) & set(" ,\t'\"")}
        found = {f"{key}{operator}{value}" for value in values if value}
    else:
        found = {f"{name}=" for name, _ in pairs}
    return sorted(f"{before}{comma}{text}" for text in found if text.startswith(last))


def _of_fleet(ctx: typer.Context, found: Callable[[Snapshot], Offers]) -> Offers:
    async def of_snapshot(calls: TrackerCalls) -> Offers:
        return found(await calls.snapshot())

    return _of_tracker(ctx, of_snapshot)


def _of_tracker(ctx: typer.Context, found: Callable[[TrackerCalls], Awaitable[Offers]]) -> Offers:
    from fleet.client.tracker_calls import TrackerCalls  # imported here, so that its time does not count

    named = ctx.params.get("tracker") or ctx.find_root().params.get("tracker")

    async def answer() -> Offers:
        calls = TrackerCalls(look_up("tracker", named).value)
        try:
            return await found(calls)
        finally:
            await calls.close()

    return _quickly(lambda: asyncio.run(answer()))


def _quickly(ask: Callable[[], Offers]) -> Offers:
    """Query on a thread that is abandoned after the time limit."""
    answers: queue.SimpleQueue[Offers] = queue.SimpleQueue()

    def work() -> None:
        try:
            answers.put(ask())
        except BaseException:  # noqa: BLE001 a shell has no use for it
            answers.put([])

    threading.Thread(target=work, name="ask for names", daemon=True).start()
    try:
        return answers.get(timeout=_LONGEST_SEC)
    except queue.Empty:
        return []


def _beginning(incomplete: str, offers: Offers) -> Offers:
    return [(word, about) for word, about in offers if word.startswith(incomplete)]


def _short(name: str) -> str:
    return name.rpartition("/")[2]
