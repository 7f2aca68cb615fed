"""Devices that fail, leave and come back, and what becomes of their leases, event by event."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fleet.errors import NoMatchingDevice
from fleet.tracker.core import events as ev
from fleet.tracker.core.entries import LeaseEnd
from tests.unit.tracker_bench import Bench, checked_bench, granted, refused


@pytest.fixture
def bench() -> Iterator[Bench]:
    yield from checked_bench()


def test_faulted_device_takes_no_lease_until_it_is_well(bench: Bench) -> None:
    """An unhealthy device keeps its live lease but gets no new one; the report of its recovery serves the queue."""
    bench.attach("a")
    bench.connect("alice")
    lease = bench.grant("alice", "r1").lease
    bench.apply(ev.DeviceReported("agent", "devices/a", False, "too hot"))
    bench.acquire("alice", "r2")

    released = bench.apply(ev.Release("alice", lease.name))
    well = bench.apply(ev.DeviceReported("agent", "devices/a", True, ""))

    assert granted(released) == []
    assert granted(well) == ["r2"]


def test_name_of_another_live_agent_is_refused(bench: Bench) -> None:
    """Two agents cannot serve one name; nothing of the second one is taken in."""
    bench.attach("a")

    (effect,) = bench.attach("a", "b", agent="other")

    assert isinstance(effect, ev.AttachRefused)
    assert set(bench.state.devices) == {"devices/a"}


def test_agent_that_reattaches_keeps_its_leases(bench: Bench) -> None:
    """The same agent process comes back: the live lease goes on and everything before it is fenced."""
    bench.attach("a")
    bench.connect("alice")
    lease = bench.grant("alice", "r1").lease
    bench.apply(ev.AgentDetached("agent"))

    (effect,) = bench.attach("a")

    assert effect == ev.Attached("agent", {"devices/a": lease.epoch - 1})
    assert lease.name in bench.state.leases


def test_restarted_agent_ends_the_lease_of_the_old_one(bench: Bench) -> None:
    """Another agent process has no worker of the old session: its holder is told at once."""
    bench.attach("a")
    bench.connect("alice")
    lease = bench.grant("alice", "r1").lease
    bench.apply(ev.AgentDetached("agent"))

    effects = bench.attach("a", agent="agent-2")

    ended = [effect for effect in effects if isinstance(effect, ev.LeaseEnded)]
    assert [(effect.lease_name, effect.end) for effect in ended] == [(lease.name, LeaseEnd.REVOKED)]
    attached = next(effect for effect in effects if isinstance(effect, ev.Attached))
    assert attached.epochs_by_device["devices/a"] >= lease.epoch


def test_device_that_its_agent_no_longer_offers_is_forgotten(bench: Bench) -> None:
    """A newer stream of an agent says all that it serves."""
    bench.attach("a", "b")
    bench.state.take_changes()

    bench.attach("b")

    assert ["devices/b"] == list(bench.state.devices)
    assert bench.state.devices["devices/b"].is_attached
    assert bench.state.take_changes().devices["devices/a"] is None


def test_leased_device_that_its_agent_no_longer_offers_goes_offline(bench: Bench) -> None:
    """Its holder is told how the lease ends, and not that there never was such a device."""
    bench.attach("a", "b")
    bench.connect("alice")
    lease = bench.grant("alice", "r1", "name=a").lease

    bench.attach("b")

    assert not bench.state.devices["devices/a"].is_attached
    assert lease is bench.state.leases[lease.name]
    bench.tick(lease.ttl_sec + 1)
    bench.tick(24 * 3600 + 1)
    assert ["devices/b"] == list(bench.state.devices)


def test_request_goes_on_when_another_device_takes_the_place_of_its_own(bench: Bench) -> None:
    """Who waited for what was missing gets what came, under whatever name."""
    bench.attach("missing")
    bench.apply(ev.DeviceReported("agent", "devices/missing", False, "not here", ""))
    bench.connect("alice")
    bench.acquire("alice", "r1")

    effects = bench.attach("real")

    assert ["r1"] == granted(effects)


def test_device_away_for_a_day_is_forgotten(bench: Bench) -> None:
    """After that its selector matches nothing."""
    bench.attach("a")
    bench.apply(ev.AgentDetached("agent"))
    bench.connect("alice")

    bench.tick(24 * 3600 + 1)

    assert refused(bench.acquire("alice", "r1")) == [("r1", NoMatchingDevice)]
    assert bench.state.take_changes().devices == {"devices/a": None}
