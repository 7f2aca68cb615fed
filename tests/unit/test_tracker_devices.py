"""Devices that fail, leave and come back, and the fate of their leases, event by event."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fleet.domain.selectors import parse_selector
from fleet.errors import NoMatchingDevice
from fleet.tracker.core import events as ev
from fleet.tracker.core.records import LeaseEnd
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
    """Two agents cannot serve one name; the second agent's whole hello is refused."""
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

    nonce = bench.state.nonce
    assert effect == ev.Attached("agent", (ev.Fence("agent", "devices/a", lease.epoch - 1, nonce, lease.name),))
    assert lease.name in bench.state.leases


def test_lease_outlives_its_agent(bench: Bench) -> None:
    """A killed agent comes back as another process: the lease goes on, and a new worker serves it."""
    bench.attach("a")
    bench.connect("alice")
    lease = bench.grant("alice", "r1").lease
    bench.apply(ev.AgentDetached("agent"))

    (effect,) = bench.attach("a", agent="agent-2")

    assert isinstance(effect, ev.Attached)
    assert [fence.live_lease_name for fence in effect.fences] == [lease.name]
    assert bench.state.devices["devices/a"].lease is lease


def test_epochs_continue_above_the_agents_highest(bench: Bench) -> None:
    """A tracker that lost its journal repeats no epoch, even if its clock was set back."""
    seen = bench.state.last_epoch + 1000
    bench.attach("a", highest_epoch=seen)
    bench.connect("alice")

    lease = bench.grant("alice", "r1").lease

    assert lease.epoch > seen


def test_a_lease_below_the_agents_epoch_is_ended(bench: Bench) -> None:
    """A restored copy of the journal has only an old lease; its device goes to the waiting client, with a
    larger epoch.
    """
    bench.attach("a")
    bench.connect("alice", "bob")
    lease = bench.grant("alice", "r1").lease
    bench.acquire("bob", "r1")

    effects = bench.apply(ev.DeviceReported("agent", "devices/a", True, "", "", lease.epoch + 7))

    ended = [effect for effect in effects if isinstance(effect, ev.LeaseEnded)]
    assert [(effect.lease_name, effect.end) for effect in ended] == [(lease.name, LeaseEnd.REVOKED)]
    assert granted(effects) == ["r1"]
    assert bench.state.devices["devices/a"].epoch == lease.epoch + 8


def test_lease_that_the_agent_has_fenced_is_over(bench: Bench) -> None:
    """A restored copy of the journal has the lease as live; it must end, as no holder could use the device."""
    bench.attach("a")
    bench.connect("alice", "bob")
    lease = bench.grant("alice", "r1").lease
    bench.acquire("bob", "r1")

    effects = bench.apply(ev.DeviceReported("agent", "devices/a", True, "", "", lease.epoch, lease.epoch))

    assert granted(effects) == ["r1"]
    assert lease.name not in bench.state.leases


def test_an_epoch_of_one_device_moves_no_other(bench: Bench) -> None:
    """One agent's report of a high epoch uses up no epochs of other devices."""
    bench.attach("a", highest_epoch=2**61)
    bench.attach("b", agent="other")
    bench.connect("alice")
    bench.grant("alice", "r1", "name=a")

    lease = bench.grant("alice", "r2", "name=b").lease

    assert lease.epoch < 2**61


def test_reset_epochs_count_from_the_trackers_own(bench: Bench) -> None:
    """The live lease ends, the agent gets a reset fence, and tokens carry a new nonce."""
    bench.attach("a", highest_epoch=2**61)
    bench.connect("alice")
    lease = bench.grant("alice", "r1").lease

    effects = bench.apply(ev.ResetEpochs("devices/a", "fresh"))

    ended = [effect.lease_name for effect in effects if isinstance(effect, ev.LeaseEnded)]
    fence = next(effect for effect in effects if isinstance(effect, ev.Fence) and effect.is_reset)
    assert ended == [lease.name]
    assert (fence.epoch, fence.nonce, fence.live_lease_name) == (bench.state.last_epoch, "fresh", "")
    assert fence.epoch < bench.grant("alice", "r2").lease.epoch < lease.epoch


def test_device_that_its_agent_no_longer_offers_is_forgotten(bench: Bench) -> None:
    """The hello of an agent's newer stream lists all of its devices."""
    bench.attach("a", "b")
    bench.state.take_changes()

    bench.attach("b")

    assert ["devices/b"] == list(bench.state.devices)
    assert bench.state.devices["devices/b"].is_attached
    assert bench.state.take_changes().devices["devices/a"] is None


def test_leased_device_that_its_agent_no_longer_offers_goes_offline(bench: Bench) -> None:
    """The device is kept until its lease has ended, so that the holder learns of the lease's end."""
    bench.attach("a", "b")
    bench.connect("alice")
    lease = bench.grant("alice", "r1", "name=a").lease

    bench.attach("b")

    assert not bench.state.devices["devices/a"].is_attached
    assert lease is bench.state.leases[lease.name]
    bench.tick(lease.terms.ttl_sec + 1)
    bench.tick(24 * 3600 + 1)
    assert ["devices/b"] == list(bench.state.devices)


def test_request_goes_on_when_another_device_takes_the_place_of_its_own(bench: Bench) -> None:
    """A request for a missing device gets its replacement, under any name."""
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


def test_a_refused_selector_is_shown_as_users_write_it(bench: Bench) -> None:
    """The canonical text, for older trackers, has one more "=" before alternatives."""
    bench.attach("a")
    bench.connect("alice")
    (effect,) = bench.acquire("alice", "r1", str(parse_selector("arch=mips|sparc,gpu!=none")))

    assert isinstance(effect, ev.Refused)
    assert "no device matches 'arch=mips|sparc,gpu!=none'" in effect.message
