"""What the tracker's state answers, event by event."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fleet.selectors import device_labels
from fleet.tracker import events as ev
from fleet.tracker.invariants import validate
from fleet.tracker.records import Durable, LeaseEnd, Limits
from fleet.tracker.state import TrackerState

T0 = 1_000_000.0


class Bench:
    """A state, the time, and short words for events."""

    def __init__(self) -> None:
        self.state = TrackerState(boot=7, limits=Limits(max_waiting=5))
        self.now = T0

    def apply(self, event: ev.Event) -> list[ev.Effect]:
        effects = self.state.apply(event, self.now)
        validate(self.state)
        return effects

    def attach(self, *names: str, agent: str = "agent", kind: str = "cpu") -> list[ev.Effect]:
        return self.apply(ev.AgentAttached(agent, "host:1", tuple(offer(name, kind) for name in names)))

    def connect(self, *clients: str) -> None:
        for client in clients:
            self.apply(ev.ClientConnected(client, f"{client}@host"))

    def acquire(self, client: str, request_id: str, selector: str = "cpu", **options: float) -> list[ev.Effect]:
        return self.apply(ev.Acquire(client, request_id, selector, **options))  # type: ignore[arg-type]

    def grant(self, client: str, request_id: str, selector: str = "cpu", **options: float) -> ev.Granted:
        (effect,) = self.acquire(client, request_id, selector, **options)
        assert isinstance(effect, ev.Granted)
        return effect

    def tick(self, sec: float) -> list[ev.Effect]:
        self.now += sec
        return self.apply(ev.Tick())

    def restart(self, away_sec: float = 0.0) -> None:
        self.now += away_sec
        durable = self.state.durable()
        durable.boot += 1
        self.state = TrackerState.restore(durable, self.now, self.state.limits)


def offer(name: str, kind: str = "cpu", **labels: str) -> ev.OfferedDevice:
    name = f"devices/{name}"
    return ev.OfferedDevice(name=name, kind=kind, labels=device_labels(name, kind, labels), description=b"")


def granted(effects: list[ev.Effect]) -> list[str]:
    return [effect.lease.request_id for effect in effects if isinstance(effect, ev.Granted)]


def refused(effects: list[ev.Effect]) -> list[tuple[str, str]]:
    return [(effect.request_id, effect.error_class) for effect in effects if isinstance(effect, ev.Refused)]


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    validate(bench.state)


def test_free_device_is_granted_at_once(bench: Bench) -> None:
    """A request that a free device satisfies gets it with an epoch above the boot number."""
    bench.attach("a")
    bench.connect("alice")

    effect = bench.grant("alice", "r1", ttl_sec=10.0)

    assert effect.lease.device_name == "devices/a"
    assert effect.lease.epoch == (7 << 32) + 1
    assert effect.lease.expires_at_sec == T0 + 10
    assert effect.lease.holder == "alice@host"


def test_least_recently_used_device_goes_first(bench: Bench) -> None:
    """Devices take turns."""
    bench.attach("a", "b", "c")
    bench.connect("alice")
    first = bench.grant("alice", "r1").lease
    bench.apply(ev.Release("alice", first.name))

    order = [bench.grant("alice", f"s{i}").lease.device_name for i in range(3)]

    assert order == ["devices/b", "devices/c", "devices/a"]


def test_freed_device_goes_to_the_first_in_line(bench: Bench) -> None:
    """A release serves the waiting request of the highest priority, then the oldest."""
    bench.attach("a")
    bench.connect("alice", "bob")
    lease = bench.grant("alice", "r0").lease
    for request_id, priority in [("old", 0), ("high", 1), ("low", -1), ("late", 0)]:
        bench.acquire("bob", request_id, priority=priority)

    served = []
    for _ in range(4):
        (request_id,) = granted(bench.apply(ev.Release(lease.client_id, lease.name)))
        served.append(request_id)
        lease = bench.state.clients["bob"].leases[request_id]

    assert served == ["high", "old", "late", "low"]


def test_age_makes_up_for_priority(bench: Bench) -> None:
    """A request that has waited one aging time goes before a fresh one of the next priority."""
    bench.attach("a")
    bench.connect("alice", "bob")
    lease = bench.grant("alice", "r0", ttl_sec=300.0).lease
    bench.acquire("bob", "old", priority=0)
    bench.now += 61
    bench.acquire("bob", "fresh", priority=1)

    effects = bench.apply(ev.Release("alice", lease.name))

    assert granted(effects) == ["old"]


def test_no_request_starves_beside_endless_priority(bench: Bench) -> None:
    """With a stream of more urgent requests, the lowest one is still served within its bound."""
    bench.attach("a")
    bench.connect("alice", "bob")
    lease = bench.grant("alice", "r0").lease
    bench.acquire("bob", "humble", priority=-1)

    for i in range(500):
        bench.acquire("alice", f"urgent{i}", priority=1)
        bench.now += 1.0
        (served,) = granted(bench.apply(ev.Release(lease.client_id, lease.name)))
        if served == "humble":
            break
        lease = bench.state.clients["alice"].leases[served]

    assert 100 < i < 130


def test_position_counts_only_rivals(bench: Bench) -> None:
    """Requests for other devices are not ahead of one."""
    bench.attach("a", "b")
    bench.connect("alice")
    bench.grant("alice", "r0", "name=a")
    bench.grant("alice", "r1", "name=b")
    for request_id, selector in [("a1", "name=a"), ("b1", "name=b"), ("any", "cpu"), ("b2", "name=b")]:
        bench.acquire("alice", request_id, selector)

    requests = bench.state.clients["alice"].requests
    positions = {request_id: bench.state.queue.position(request) for request_id, request in requests.items()}

    assert positions == {"a1": 0, "b1": 0, "any": 2, "b2": 2}


def test_selector_that_nothing_satisfies_is_refused_with_what_there_is(bench: Bench) -> None:
    """The refusal names the devices and what to do."""
    bench.attach("a")
    bench.connect("alice")

    (effect,) = bench.acquire("alice", "r1", "cuda")

    assert isinstance(effect, ev.Refused)
    assert effect.error_class == "NoMatchingDevice"
    assert "devices/a (cpu)" in effect.message


def test_selector_of_an_offline_device_waits(bench: Bench) -> None:
    """A device that may come back keeps its requests waiting, and serves them when it does."""
    bench.attach("a")
    bench.apply(ev.AgentDetached("agent"))
    bench.connect("alice")

    (effect,) = bench.acquire("alice", "r1")
    back = bench.attach("a", agent="agent-2")

    assert isinstance(effect, ev.Queued)
    assert granted(back) == ["r1"]


@pytest.mark.parametrize(
    ("request_id", "selector", "priority", "error_class"),
    [("", "cpu", 0, "InvalidRequest"), ("r", "k=", 0, "InvalidRequest"), ("r", "cpu", 101, "InvalidRequest")],
)
def test_bad_request_is_refused(bench: Bench, request_id: str, selector: str, priority: int, error_class: str) -> None:
    """A request without an id, with a malformed selector or a priority out of bounds is the caller's mistake."""
    bench.attach("a")
    bench.connect("alice")

    assert refused(bench.acquire("alice", request_id, selector, priority=priority)) == [(request_id, error_class)]


def test_full_queue_refuses(bench: Bench) -> None:
    """Beyond the limit requests are told to come later, and the queue stays as it was."""
    bench.attach("a")
    bench.connect("alice")
    bench.grant("alice", "r")
    for i in range(5):
        bench.acquire("alice", f"r{i}")

    assert refused(bench.acquire("alice", "one-more")) == [("one-more", "QueueFull")]
    assert len(bench.state.queue) == 5


def test_repeated_request_is_answered_again_and_changes_nothing(bench: Bench) -> None:
    """The same request_id gives the same lease, or the same place in the queue."""
    bench.attach("a")
    bench.connect("alice")
    first = bench.grant("alice", "r1")
    bench.acquire("alice", "r2")

    again = bench.grant("alice", "r1")
    (queued,) = bench.acquire("alice", "r2")

    assert again.lease is first.lease
    assert again.is_repeat
    assert isinstance(queued, ev.Queued)
    assert len(bench.state.queue) == 1


def test_wait_timeout_refuses(bench: Bench) -> None:
    """A request leaves the queue when its own patience ends."""
    bench.attach("a")
    bench.connect("alice")
    bench.grant("alice", "r1")
    bench.acquire("alice", "r2", wait_timeout_sec=3.0)

    assert refused(bench.tick(2.9)) == []
    assert refused(bench.tick(0.2)) == [("r2", "WaitTimeout")]


def test_cancel_leaves_the_queue_but_not_a_grant(bench: Bench) -> None:
    """Cancel of a waiting request is answered; of a granted one it is not."""
    bench.attach("a")
    bench.connect("alice")
    bench.grant("alice", "r1")
    bench.acquire("alice", "r2")

    assert refused(bench.apply(ev.Cancel("alice", "r2"))) == [("r2", "Cancelled")]
    assert bench.apply(ev.Cancel("alice", "r1")) == []
    assert len(bench.state.leases) == 1


def test_renewal_extends_to_the_maximum_and_no_further(bench: Bench) -> None:
    """expires_at = min(now + ttl, ends_at), and at ends_at the lease is over."""
    bench.attach("a")
    bench.connect("alice")
    lease = bench.grant("alice", "r1", ttl_sec=10.0, max_duration_sec=15.0).lease
    bench.now += 8

    (renewed,) = bench.apply(ev.Renew("alice", lease.name))
    effects = bench.tick(7.1)

    assert isinstance(renewed, ev.Renewed)
    assert lease.expires_at_sec == T0 + 15
    ended = [effect for effect in effects if isinstance(effect, ev.LeaseEnded)]
    assert [(effect.end, "maximum length" in effect.message) for effect in ended] == [(LeaseEnd.EXPIRED, True)]


def test_renewal_at_the_very_end_comes_too_late(bench: Bench) -> None:
    """A lease whose time is over is ended before its renewal is read, and stays ended."""
    bench.attach("a")
    bench.connect("alice")
    lease = bench.grant("alice", "r1", ttl_sec=10.0).lease
    bench.now += 10

    effects = bench.apply(ev.Renew("alice", lease.name))

    ends = [effect.end for effect in effects if isinstance(effect, ev.LeaseEnded)]
    assert ends == [LeaseEnd.EXPIRED, LeaseEnd.EXPIRED]
    assert not bench.state.leases


@pytest.mark.parametrize(("asked_sec", "expected_sec"), [(0.0, 30.0), (0.5, 2.0), (5.0, 5.0), (1e6, 300.0)])
def test_ttl_is_bounded(bench: Bench, asked_sec: float, expected_sec: float) -> None:
    """The tracker's limits hold whatever a client asks for."""
    bench.attach("a")
    bench.connect("alice")

    assert bench.grant("alice", "r1", ttl_sec=asked_sec).lease.ttl_sec == expected_sec


def test_release_is_idempotent_and_remembers_why(bench: Bench) -> None:
    """A second release tells the end of the first; a lease of another client is unknown."""
    bench.attach("a", "b")
    bench.connect("alice", "bob")
    lease = bench.grant("alice", "r1").lease
    other = bench.grant("bob", "r1").lease
    bench.apply(ev.Release("alice", lease.name))

    (again,) = bench.apply(ev.Release("alice", lease.name))
    (foreign,) = bench.apply(ev.Release("alice", other.name))

    assert isinstance(again, ev.LeaseEnded)
    assert again.end is LeaseEnd.RELEASED
    assert isinstance(foreign, ev.LeaseEnded)
    assert foreign.end is LeaseEnd.UNKNOWN
    assert other.name in bench.state.leases


def test_every_end_of_a_lease_fences_its_device(bench: Bench) -> None:
    """Release, expiry and revocation each tell the agent before the device is granted again."""
    bench.attach("a")
    bench.connect("alice")
    lease = bench.grant("alice", "r1").lease
    bench.acquire("alice", "r2")

    effects = bench.apply(ev.Revoke(lease.name, "repair"))

    kinds = [type(effect) for effect in effects]
    assert kinds == [ev.Fence, ev.LeaseEnded, ev.Granted, ev.Revoked]
    assert effects[0] == ev.Fence("agent", "devices/a", lease.epoch)


def test_lost_client_leaves_the_queue_at_once_and_its_leases_after_the_grace_time(bench: Bench) -> None:
    """Requests of a lost stream stand in nobody's way; its lease waits for a reconnect."""
    bench.attach("a")
    bench.connect("alice", "bob")
    lease = bench.grant("alice", "r1").lease
    bench.acquire("alice", "r2", priority=9)
    bench.acquire("bob", "r1")

    bench.apply(ev.ClientLost("alice"))
    before = bench.tick(9.9)
    after = bench.tick(0.2)

    assert granted(before) == []
    assert granted(after) == ["r1"]
    assert lease.name not in bench.state.leases


def test_client_that_comes_back_in_time_keeps_its_leases(bench: Bench) -> None:
    """The welcome lists them and the grace time is forgotten."""
    bench.attach("a")
    bench.connect("alice")
    lease = bench.grant("alice", "r1").lease
    bench.apply(ev.ClientLost("alice"))
    bench.now += 5

    (welcome,) = bench.apply(ev.ClientConnected("alice", "alice@host"))
    bench.tick(6)

    assert welcome == ev.Welcomed("alice", (lease,))
    assert lease.name in bench.state.leases


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

    assert refused(bench.acquire("alice", "r1")) == [("r1", "NoMatchingDevice")]
    assert bench.state.take_changes().devices == {"devices/a": None}


def test_restart_keeps_leases_queue_and_epochs(bench: Bench) -> None:
    """Clients that come back find their lease and their place in the queue; new epochs are larger."""
    bench.attach("a")
    bench.connect("alice", "bob", "carol")
    lease = bench.grant("alice", "r1").lease
    bench.acquire("bob", "r1")
    bench.acquire("carol", "r1")

    bench.restart(away_sec=3.0)
    bench.attach("a")
    bench.connect("carol", "bob", "alice")
    bench.acquire("carol", "r1")
    bench.acquire("bob", "r1")
    effects = bench.apply(ev.Release("alice", lease.name))

    (grant,) = [effect for effect in effects if isinstance(effect, ev.Granted)]
    assert grant.client_id == "bob"
    assert grant.lease.epoch > lease.epoch


def test_request_that_is_not_repeated_after_a_restart_is_dropped(bench: Bench) -> None:
    """Whoever does not come back within the grace time waits no more, and was never granted to nobody."""
    bench.attach("a")
    bench.connect("alice")
    bench.acquire("alice", "r0")
    bench.acquire("alice", "r1")

    bench.restart()
    effects = bench.attach("a")
    bench.tick(10.1)

    assert granted(effects) == []
    assert not bench.state.durable().requests


def test_restart_after_the_lease_ran_out_ends_it(bench: Bench) -> None:
    """A lease that expired while the tracker was away is over at the first look."""
    bench.attach("a")
    bench.connect("alice")
    lease = bench.grant("alice", "r1", ttl_sec=5.0).lease

    bench.restart(away_sec=6.0)
    (effect,) = bench.tick(0.0)

    assert isinstance(effect, ev.LeaseEnded)
    assert (effect.lease_name, effect.end) == (lease.name, LeaseEnd.EXPIRED)


def test_failed_journal_takes_untold_grants_back(bench: Bench) -> None:
    """Nobody holds what could not be written; waiting goes on and is served once the journal is well."""
    bench.attach("a")
    bench.connect("alice")
    lease = bench.grant("alice", "r1").lease

    failed = bench.apply(ev.JournalFailed((lease,), "disk full"))
    meanwhile = bench.acquire("alice", "r2")
    bench.apply(ev.JournalRecovered())
    after = bench.acquire("alice", "r3")

    assert refused(failed) == [("r1", "DiskFull")]
    assert not any(isinstance(effect, ev.LeaseEnded) for effect in failed)
    assert refused(meanwhile) == [("r2", "DiskFull")]
    assert granted(after) == ["r3"]


def test_recovered_journal_serves_who_waited(bench: Bench) -> None:
    """A device freed while nothing could be written goes to the first in line afterwards."""
    bench.attach("a")
    bench.connect("alice")
    lease = bench.grant("alice", "r1").lease
    bench.acquire("alice", "r2")
    bench.apply(ev.JournalFailed((), "disk full"))
    released = bench.apply(ev.Release("alice", lease.name))

    recovered = bench.apply(ev.JournalRecovered())

    assert granted(released) == []
    assert granted(recovered) == ["r2"]


def test_time_that_goes_back_ends_nothing_early_or_twice(bench: Bench) -> None:
    """The latest time ever seen counts."""
    bench.attach("a")
    bench.connect("alice")
    lease = bench.grant("alice", "r1", ttl_sec=10.0).lease
    bench.tick(6)
    bench.now -= 100

    bench.apply(ev.Renew("alice", lease.name))

    assert lease.expires_at_sec == T0 + 16


def test_empty_journal_restores_an_empty_state() -> None:
    """A first start knows nothing and counts epochs from its boot number."""
    state = TrackerState.restore(Durable(boot=3, devices=[], requests=[]), T0)

    assert (state.devices, state.leases, state.last_epoch) == ({}, {}, 3 << 32)
