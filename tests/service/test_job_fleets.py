"""Finding the optimizers of a fleet that a user names by one of its addresses."""

from __future__ import annotations

import platform
from datetime import UTC, datetime

import fleet.aio
from fleet.jobs.fleets import fleet_behind, serving
from fleet.library import OptimizerRecord
from fleet.testing import serve_tracker

NOBODY = "127.0.0.1:1"


def optimizer(tracker: str, host: str = platform.node()) -> OptimizerRecord:
    return OptimizerRecord(name="o", tracker=tracker, holder="u@h", host=host, pid=1, started_at=datetime.now(UTC))


async def test_an_optimizer_is_found_by_any_address_of_its_tracker() -> None:
    """The tracker's own name of its fleet decides; optimizers of another fleet, or without a reachable tracker, do not
    match.
    """
    async with serve_tracker() as ours, serve_tracker() as other:
        here, there = (optimizer(f"localhost:{each.address.rpartition(':')[2]}") for each in (ours, other))
        others = [there, optimizer(NOBODY), optimizer(ours.address, host="elsewhere.invalid")]

        found = await serving([here, *others], ours.address, await fleet_behind(ours.address))

    assert found == [here]


async def test_where_no_tracker_answers_addresses_are_compared() -> None:
    """Only the optimizer with exactly the user's address can be meant."""
    same, other = optimizer(NOBODY), optimizer("127.0.0.1:2")

    assert await serving([same, other], NOBODY, await fleet_behind(NOBODY)) == [same]


async def test_a_fleet_keeps_its_name_when_its_tracker_starts_again() -> None:
    """The name derives from the key that signs tokens, and clients get it with their first message."""
    async with serve_tracker() as tracker, fleet.aio.connect(tracker.address) as client:
        before = client.fleet_id
        await tracker.restart()

        assert await fleet_behind(tracker.address) == before != ""
