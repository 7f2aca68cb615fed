"""Marked devices are not granted, their leases end, and marks survive restarts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fleet.domain.health import HealthMark, HealthState, checked_mark_reason, checked_until
from fleet.domain.leases import LeaseClass, LeaseEnd, LeaseTerms
from fleet.domain.waits import wait_text
from fleet.errors import InvalidRequest, NotAllowed
from fleet.testing import Ledger
from fleet.tracker.core import events as ev
from fleet.tracker.core.invariants import validate
from fleet.tracker.core.records import Changes, HealthEntry, TrackerLimits
from fleet.tracker.core.share_policy import SharePolicy
from fleet.tracker.core.standing import WaitReason, standing_of
from fleet.tracker.core.state import TrackerState
from fleet.tracker.journal.codec import changed_rows, entries_of
from fleet.tracker.messages import wait_of
from tests.unit.tracker_bench import T0, Bench, granted, offer, refused

BATCH, NORMAL = LeaseClass.BATCH, LeaseClass.NORMAL
CLOSED = [state for state in HealthState if not state.is_open]
GRACE_SEC = SharePolicy().yield_grace_sec


@pytest.fixture
def bench() -> Bench:
    """Three boards, two users and an admin."""
    bench = Bench()
    bench.state = TrackerState(boot=7)
    bench.attach("a", "b", "c")
    bench.connect("alice", "bob")
    bench.apply(ev.ClientConnected("root", "root@host", is_admin=True))
    return bench


def mark(bench: Bench, state: HealthState, *names: str, until_sec: float | None = None) -> list[ev.Effect]:
    judged = HealthMark(state=state, by="root", at_sec=bench.now, reason="new SD card", until_sec=until_sec)
    return bench.apply(ev.MarkHealth(tuple(f"devices/{name}" for name in names), judged))


def ask(bench: Bench, client: str, request_id: str, selector: str = "cpu", **terms: object) -> list[ev.Effect]:
    return bench.apply(ev.Acquire(client, request_id, LeaseTerms(selector=selector, ttl_sec=300.0, **terms)))  # type: ignore[arg-type]


def device_of(effects: list[ev.Effect]) -> str:
    (found,) = (effect.lease.device_name for effect in effects if isinstance(effect, ev.Granted))
    return found


def wanted(effects: list[ev.Effect]) -> list[tuple[str, float, str]]:
    """Return the client, remaining time [s] and reason of each lease that was asked to give way."""
    found = [effect for effect in effects if isinstance(effect, ev.YieldWanted)]
    return [(each.client_id, each.wanted.until_sec, each.wanted.reason) for each in found]


def ends(effects: list[ev.Effect]) -> list[LeaseEnd]:
    return [effect.end for effect in effects if isinstance(effect, ev.LeaseEnded)]


@pytest.mark.parametrize("state", CLOSED)
def test_a_closed_device_is_granted_again_only_after_it_resumes(bench: Bench, state: HealthState) -> None:
    mark(bench, state, "a", "b", "c")

    assert granted(ask(bench, "alice", "r1")) == []
    assert granted(bench.attach("a", "b", "c")) == []
    assert granted(mark(bench, HealthState.GOOD, "b")) == ["r1"]


def test_a_waiting_request_names_the_states_of_all_its_boards(bench: Bench) -> None:
    mark(bench, HealthState.DRAINING, "a", "b", "c")
    ask(bench, "alice", "r1")
    (request,) = bench.state.clients["alice"].requests.values()

    found = standing_of(bench.state, request)
    assert (found.reason, wait_text(wait_of(found))) == (WaitReason.MARKED, "3 boards suit, all draining")
    mark(bench, HealthState.RETIRED, "c")
    assert wait_text(wait_of(standing_of(bench.state, request))) == "3 boards suit: 2 draining, 1 retired"


def test_a_drain_asks_batch_leases_and_lets_others_end(bench: Bench) -> None:
    ask(bench, "alice", "batch", "name=a", lease_class=BATCH)
    ask(bench, "bob", "normal", "name=b", lease_class=NORMAL)

    reason = "its device is draining: new SD card"
    assert wanted(mark(bench, HealthState.DRAINING, "a", "b")) == [("alice", T0 + GRACE_SEC, reason)]
    assert ends(bench.tick(GRACE_SEC + 1.0)) == [LeaseEnd.YIELDED]
    assert [lease.request_id for lease in bench.state.leases.values()] == ["normal"]


def test_a_drain_with_an_end_gives_notice_and_revokes_then(bench: Bench) -> None:
    ask(bench, "bob", "normal", "name=b", lease_class=NORMAL)

    effects = mark(bench, HealthState.DRAINING, "b", until_sec=T0 + 100.0)

    assert wanted(effects) == [("bob", T0 + 100.0, "its device is draining: new SD card")]
    assert ends(bench.tick(99.0)) == []
    assert ends(bench.tick(2.0)) == [LeaseEnd.REVOKED]


def test_a_resumed_device_keeps_its_lease(bench: Bench) -> None:
    ask(bench, "alice", "batch", "name=a", lease_class=BATCH)
    mark(bench, HealthState.DRAINING, "a", until_sec=T0 + 5.0)
    mark(bench, HealthState.GOOD, "a")

    assert ends(bench.tick(GRACE_SEC + 1.0)) == []


def test_a_drain_replaces_the_demand_of_a_request(bench: Bench) -> None:
    """The lease has to end although the request leaves the queue, which may ask another lease meanwhile."""
    ask(bench, "alice", "batch", "name=a", lease_class=BATCH)
    ask(bench, "bob", "normal", "name=a", lease_class=NORMAL)
    mark(bench, HealthState.DRAINING, "a")
    bench.apply(ev.Cancel("bob", "normal"))

    assert ends(bench.tick(GRACE_SEC + 1.0)) == [LeaseEnd.YIELDED]


def test_a_request_asks_no_lease_on_a_closed_device(bench: Bench) -> None:
    """Its end would not serve the request."""
    ask(bench, "alice", "batch", "name=a", lease_class=BATCH, even_if=None)
    mark(bench, HealthState.DRAINING, "a", "b", "c")
    effects = ask(bench, "bob", "normal")

    assert wanted(effects) == []


def test_a_suspect_device_serves_batch_requests_by_name_only(bench: Bench) -> None:
    mark(bench, HealthState.SUSPECT, "a", "b", "c")

    assert granted(ask(bench, "alice", "r1", lease_class=BATCH)) == []
    assert device_of(ask(bench, "alice", "r2", "name=b", lease_class=BATCH)) == "devices/b"
    assert granted(ask(bench, "bob", "r3", lease_class=NORMAL)) == ["r3"]
    (request,) = bench.state.clients["alice"].requests.values()
    assert wait_text(wait_of(standing_of(bench.state, request))) == "3 boards suit, all suspect"
    assert granted(mark(bench, HealthState.GOOD, "c")) == ["r1"]


def test_suspect_devices_come_last(bench: Bench) -> None:
    mark(bench, HealthState.SUSPECT, "a")

    assert [device_of(ask(bench, "bob", f"r{n}")) for n in range(3)] == ["devices/b", "devices/c", "devices/a"]


@pytest.mark.parametrize("state", CLOSED)
def test_an_admin_leases_a_closed_device_by_name_and_state(bench: Bench, state: HealthState) -> None:
    """Also after waiting for the device, and over the state's repetition."""
    mark(bench, state, "a")
    assert device_of(ask(bench, "root", "r1", "name=a", even_if=state)) == "devices/a"
    assert granted(ask(bench, "root", "r2", "name=a", even_if=state)) == []
    assert wanted(mark(bench, state, "a")) == []
    (lease,) = bench.state.leases.values()

    assert granted(bench.apply(ev.Release("root", lease.name))) == ["r2"]


def test_only_admins_lease_a_closed_device(bench: Bench) -> None:
    mark(bench, HealthState.QUARANTINED, "a")

    assert refused(ask(bench, "bob", "r1", "name=a", even_if=HealthState.QUARANTINED)) == [("r1", NotAllowed)]
    assert refused(ask(bench, "root", "r2", "cpu", even_if=HealthState.QUARANTINED)) == [("r2", InvalidRequest)]
    assert granted(ask(bench, "root", "r3", "name=a", even_if=HealthState.RETIRED)) == []


def test_a_mark_outlives_its_device(bench: Bench) -> None:
    mark(bench, HealthState.RETIRED, "a")
    bench.attach("b", "c")
    assert "devices/a" not in bench.state.devices

    bench.attach("a", "b", "c")
    assert granted(ask(bench, "alice", "r1", "name=a")) == []


def test_the_oldest_mark_of_a_missing_device_goes_first(bench: Bench) -> None:
    bench.state.limits = replace(TrackerLimits(), max_devices=3)
    for number in range(5):
        mark(bench, HealthState.RETIRED, f"gone{number}")

    assert list(bench.state.marks) == [f"devices/gone{number}" for number in (2, 3, 4)]


def test_marks_and_their_demands_survive_a_restart(bench: Bench) -> None:
    """A batch lease gets a new grace period, which begins when its client may be back."""
    ask(bench, "alice", "batch", "name=a", lease_class=BATCH)
    mark(bench, HealthState.DRAINING, "a")
    bench.restart(away_sec=5.0)

    effects = bench.apply(ev.ClientConnected("alice", "alice@host"))

    assert [client for client, _, _ in wanted(effects)] == ["alice"]
    bench.apply(ev.ClientConnected("bob", "bob@host"))
    bench.attach("a", "b", "c")
    assert ends(bench.tick(GRACE_SEC + bench.state.limits.grace_sec + 1.0)) == [LeaseEnd.YIELDED]
    assert granted(ask(bench, "bob", "r1", "name=a")) == []


@pytest.mark.parametrize("reason", ["", "  ", "red \x1b[31m", "two\nlines", "hidden \u202e", "x" * 501])
def test_a_bad_reason_is_refused(reason: str) -> None:
    with pytest.raises(InvalidRequest, match="reason"):
        checked_mark_reason(reason)


@pytest.mark.parametrize("after_sec", [-1.0, 0.0, 31 * 86400.0, float("nan")])
def test_a_time_beyond_the_next_30_days_is_refused(after_sec: float) -> None:
    with pytest.raises(InvalidRequest, match="30 days"):
        checked_until(T0 + after_sec, HealthState.DRAINING, T0)


def test_a_resumed_device_has_no_end(bench: Bench) -> None:
    with pytest.raises(InvalidRequest, match="leave the time out"):
        checked_until(T0 + 1.0, HealthState.GOOD, T0)


STEPS = st.one_of(
    st.tuples(
        st.just("mark"), st.sampled_from("abc"), st.sampled_from(HealthState), st.sampled_from([None, 5.0, 60.0])
    ),
    st.tuples(
        st.just("ask"),
        st.sampled_from(["alice", "bob", "root"]),
        st.sampled_from(["cpu", "name=a", "name=b", "name!=c"]),
        st.sampled_from(LeaseClass),
        st.sampled_from([None, *HealthState]),
    ),
    st.tuples(st.just("release"), st.integers(0, 3)),
    st.tuples(st.just("report"), st.sampled_from("abc"), st.booleans()),
    st.tuples(st.just("tick"), st.sampled_from([1.0, 16.0, 400.0])),
    st.tuples(st.just("restart")),
)


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(STEPS, max_size=40))
def test_a_closed_device_serves_nobody_but_admins_in_any_order_of_events(steps: list[tuple[object, ...]]) -> None:
    """The journal's marks equal those of the state after every step, and a restart begins with them."""
    limits, ledger, now = TrackerLimits(), Ledger(), T0
    state = TrackerState.restore(ledger.open(now), now, limits)
    states: dict[str, HealthState] = {}
    asked: dict[str, LeaseTerms] = {}

    def apply(event: ev.Event) -> None:
        effects = state.apply(event, now)
        ledger.write(state.take_changes())
        validate(state)
        for effect in effects:
            if isinstance(effect, ev.Granted) and not effect.is_repeat:
                found = states.get(effect.lease.device_name, HealthState.GOOD)
                terms = asked[effect.lease.request_id]
                assert found.is_open or (terms.even_if is found and effect.lease.client_id == "root")
                assert found is not HealthState.SUSPECT or terms.lease_class is not BATCH or "name=" in terms.selector

    def begin() -> None:
        apply(ev.AgentAttached("agent", "host:1", tuple(map(offer, "abc"))))
        for client in ("alice", "bob", "root"):
            apply(ev.ClientConnected(client, f"{client}@host", is_admin=client == "root"))

    begin()
    for number, (kind, *values) in enumerate(steps):
        match kind, values:
            case "mark", [str(name), HealthState() as found, until]:
                states[f"devices/{name}"] = found
                until_sec = now + until if isinstance(until, float) and not found.is_open else None
                judged = HealthMark(state=found, by="root", at_sec=now, reason="test", until_sec=until_sec)
                apply(ev.MarkHealth((f"devices/{name}",), judged))
            case "ask", [str(client), str(selector), LeaseClass() as lease_class, even_if]:
                terms = LeaseTerms(selector=selector, lease_class=lease_class, even_if=even_if)  # type: ignore[arg-type]
                asked[f"r{number}"] = terms
                apply(ev.Acquire(client, f"r{number}", terms))
            case "release", [int(pick)] if state.leases:
                lease = list(state.leases.values())[pick % len(state.leases)]
                apply(ev.Release(lease.client_id, lease.name))
            case "report", [str(name), bool(is_healthy)]:
                apply(ev.DeviceReported("agent", f"devices/{name}", is_healthy, "" if is_healthy else "hot"))
            case "tick", [float(sec)]:
                now += sec
                apply(ev.Tick())
            case "restart", []:
                state = TrackerState.restore(ledger.open(now), now, limits)
                begin()
        assert {name: found.state for name, found in state.marks.items()} == states


def fault(bench: Bench, request_id: str) -> list[ev.Effect]:
    """Lease board a, let it fault under the lease, and let it recover."""
    ask(bench, "alice", request_id, "name=a")
    effects = bench.apply(ev.DeviceReported("agent", "devices/a", False, "GPU hangs"))
    bench.apply(ev.Release("alice", bench.state.clients["alice"].leases[request_id].name))
    return effects + bench.apply(ev.DeviceReported("agent", "devices/a", True, ""))


def marks(effects: list[ev.Effect]) -> list[tuple[str, str]]:
    return [(each.mark.state, each.mark.set_by) for each in effects if isinstance(each, ev.HealthMarked)]


def test_three_leases_in_a_row_with_a_fault_quarantine_a_board(bench: Bench) -> None:
    assert marks(fault(bench, "r1") + fault(bench, "r2")) == []
    assert marks(fault(bench, "r3")) == [("quarantined", "the tracker")]

    assert granted(ask(bench, "bob", "r4", "name=a")) == []
    assert bench.state.marks["devices/a"].reason == "3 leases in a row ended in a fault: GPU hangs"
    mark(bench, HealthState.GOOD, "a")
    bench.apply(ev.Release("bob", bench.state.clients["bob"].leases["r4"].name))
    assert marks(fault(bench, "r5") + fault(bench, "r6")) == []


def test_a_lease_without_a_fault_ends_the_row(bench: Bench) -> None:
    fault(bench, "r1")
    fault(bench, "r2")
    ask(bench, "bob", "good", "name=a")
    bench.apply(ev.Release("bob", bench.state.clients["bob"].leases["good"].name))

    assert marks(fault(bench, "r3")) == []


def test_faults_of_an_idle_board_do_not_count(bench: Bench) -> None:
    """A phone that is plugged in and out is not quarantined."""
    fault(bench, "r1")
    for _ in range(5):
        effects = bench.apply(ev.DeviceReported("agent", "devices/a", False, "no phone"))
        effects += bench.apply(ev.DeviceReported("agent", "devices/a", True, ""))
        assert marks(effects) == []


def restart(bench: Bench, *, reads_rows: bool = True) -> None:
    """Restart the tracker, from rows of the journal or from its state; its agent and users come back."""
    durable = bench.state.durable()
    if reads_rows:
        changes = Changes(
            devices={device.name: device for device in durable.devices},
            leases={device.name: device for device in durable.devices},
            health=dict(durable.health),
        )
        durable = entries_of([(key, content) for key, content in changed_rows(changes) if content], boot=8)
    bench.state = TrackerState.restore(durable, bench.now, bench.state.limits)
    bench.attach("a", "b", "c")
    bench.connect("alice", "bob")


@pytest.mark.parametrize("reads_rows", [False, True])
def test_faults_in_a_row_count_over_a_restart_of_the_tracker(bench: Bench, reads_rows: bool) -> None:
    fault(bench, "r1")
    fault(bench, "r2")
    restart(bench, reads_rows=reads_rows)

    assert marks(fault(bench, "r3")) == [("quarantined", "the tracker")]


def test_faults_in_a_row_count_over_a_return_of_the_agent(bench: Bench) -> None:
    fault(bench, "r1")
    fault(bench, "r2")
    bench.attach("a", "b", "c")

    assert marks(fault(bench, "r3")) == [("quarantined", "the tracker")]


def test_a_lease_without_a_fault_ends_the_row_over_a_restart_too(bench: Bench) -> None:
    fault(bench, "r1")
    fault(bench, "r2")
    ask(bench, "bob", "good", "name=a")
    bench.apply(ev.Release("bob", bench.state.clients["bob"].leases["good"].name))
    restart(bench)

    assert marks(fault(bench, "r3") + fault(bench, "r4")) == []


def test_a_fault_under_a_lease_of_before_the_restart_counts(bench: Bench) -> None:
    fault(bench, "r1")
    fault(bench, "r2")
    ask(bench, "alice", "r3", "name=a")
    restart(bench)

    assert marks(bench.apply(ev.DeviceReported("agent", "devices/a", False, "GPU hangs"))) == [
        ("quarantined", "the tracker")
    ]


def test_a_fault_of_a_lease_counts_once_over_a_restart(bench: Bench) -> None:
    """The lease may outlast its fault; each restart had counted a further fault of the same lease."""
    ask(bench, "alice", "r1", "name=a")
    for _ in range(4):
        effects = bench.apply(ev.DeviceReported("agent", "devices/a", False, "GPU hangs"))
        effects += bench.apply(ev.DeviceReported("agent", "devices/a", True, ""))
        assert marks(effects) == []
        restart(bench)

    assert bench.state.devices["devices/a"].lease is not None
    assert bench.state.devices["devices/a"].fault_count == 1


def test_a_suspicion_by_the_tracker_does_not_end_the_row(bench: Bench) -> None:
    """Only the mark of an admin ends it."""
    fault(bench, "r1")
    fault(bench, "r2")
    slow = HealthMark(state=HealthState.SUSPECT, at_sec=bench.now, reason="slow")
    bench.apply(ev.MarkHealth(("devices/a",), slow))

    assert marks(fault(bench, "r3")) == [("quarantined", "the tracker")]


def test_a_board_without_mark_and_faults_has_no_row_of_health(bench: Bench) -> None:
    """Neither before a fault nor once the row of faults has ended."""
    ask(bench, "alice", "r1", "name=a")
    bench.apply(ev.Release("alice", bench.state.clients["alice"].leases["r1"].name))
    assert not bench.state.take_changes().health
    fault(bench, "r2")
    assert bench.state.take_changes().health["devices/a"] == HealthEntry(fault_count=1)

    ask(bench, "alice", "r3", "name=a")
    bench.apply(ev.Release("alice", bench.state.clients["alice"].leases["r3"].name))
    assert bench.state.take_changes().health["devices/a"] == HealthEntry(fault_count=1, is_used=True)
    ask(bench, "alice", "r4", "name=a")

    assert bench.state.take_changes().health == {"devices/a": None}


def test_a_row_of_health_without_faults_is_read() -> None:
    """Older rows have only the mark."""
    row = ("health devices/a", '{"state":"draining","by":"ann","at_sec":7.0,"reason":"fan","until_sec":null}')

    (found,) = entries_of([row], boot=1).health

    mark = HealthMark(state=HealthState.DRAINING, by="ann", at_sec=7.0, reason="fan")
    assert found == ("devices/a", HealthEntry(mark=mark))
