"""Sets of devices are granted whole or not at all, in the order of turns."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.domain.health import HealthMark, HealthState
from fleet.domain.leases import LeaseClass, LeaseTerms, set_terms
from fleet.errors import DiskFull, InvalidRequest, NoMatchingDevice, QueueFull, WaitTimeout
from fleet.tracker.core import events as ev
from fleet.tracker.core.share_policy import SharePolicy
from fleet.tracker.core.state import TrackerState
from fleet.tracker.journal.file import Journal
from tests.unit.tracker_bench import Bench, granted, offer, refused

BATCH, NORMAL, INTERACTIVE = LeaseClass.BATCH, LeaseClass.NORMAL, LeaseClass.INTERACTIVE
GRACE_SEC = SharePolicy().yield_grace_sec


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.state = TrackerState(boot=7)
    bench.apply(ev.AgentAttached("agent", "host:1", tuple(map(board, ("pi-0", "pi-1", "gpu-0", "gpu-1")))))
    bench.connect("alice", "bob", "carol")
    return bench


def board(name: str) -> ev.OfferedDevice:
    return offer(name, board=name.partition("-")[0])


def ask(
    bench: Bench,
    client: str,
    request_id: str,
    *selectors: str,
    lease_class: LeaseClass = NORMAL,
    max_sec: float = 600.0,
) -> list[ev.Effect]:
    selector, *also = selectors
    terms = LeaseTerms(selector=selector, also=tuple(also), lease_class=lease_class, max_sec=max_sec, ttl_sec=300.0)
    return bench.apply(ev.Acquire(client, request_id, terms)) + bench.tick(0.0)


def release(bench: Bench, client: str, request_id: str) -> list[ev.Effect]:
    lease = bench.state.clients[client].leases[request_id]
    return bench.apply(ev.Release(client, lease.name)) + bench.tick(0.01)


def devices(effects: list[ev.Effect]) -> list[str]:
    grants = [effect for effect in effects if isinstance(effect, ev.Granted)]
    return [effect.lease.device_name.removeprefix("devices/") for effect in sorted(grants, key=lambda e: e.member)]


def test_a_set_of_free_boards_is_granted_at_once(bench: Bench) -> None:
    effects = ask(bench, "alice", "s", "board=pi", "board=gpu")

    assert [type(effect) for effect in effects] == [ev.Granted, ev.Granted]
    assert [name[:2] for name in devices(effects)] == ["pi", "gp"]


def test_a_set_waits_until_all_its_boards_are_free(bench: Bench) -> None:
    for number in range(2):
        ask(bench, "bob", f"b{number}", "board=gpu")
    assert granted(ask(bench, "alice", "s", "board=pi", "board=gpu")) == []

    assert len(devices(release(bench, "bob", "b0"))) == 2


def test_batch_leases_in_the_way_are_all_asked_at_once_and_free_boards_are_held(bench: Bench) -> None:
    for number, kind in enumerate(("pi", "pi", "gpu")):
        ask(bench, "bob", f"b{number}", f"board={kind}", lease_class=BATCH)

    effects = ask(bench, "alice", "s", "board=pi", "board=pi", "board=gpu")

    assert sum(isinstance(effect, ev.YieldWanted) for effect in effects) == 2
    assert granted(ask(bench, "carol", "c", "board=gpu", lease_class=BATCH)) == []
    assert granted(release(bench, "bob", "b0")) == []
    assert len(devices(release(bench, "bob", "b1"))) == 3


def test_batch_leases_are_not_asked_while_another_board_is_far_off(bench: Bench) -> None:
    ask(bench, "bob", "b0", "board=pi", lease_class=BATCH)
    ask(bench, "bob", "b1", "board=pi", lease_class=BATCH)
    ask(bench, "carol", "c0", "board=gpu", max_sec=300.0)
    ask(bench, "carol", "c1", "board=gpu", max_sec=300.0)

    effects = ask(bench, "alice", "s", "board=pi", "board=gpu")
    assert not any(isinstance(effect, ev.YieldWanted) for effect in effects)

    effects = release(bench, "carol", "c0") + bench.tick(1.0)
    assert sum(isinstance(effect, ev.YieldWanted) for effect in effects) == 1


def test_only_leases_that_end_before_the_set_begins_fill_in(bench: Bench) -> None:
    for number in range(2):
        ask(bench, "bob", f"b{number}", "board=gpu", max_sec=300.0)
        ask(bench, "bob", f"p{number}", "board=pi", max_sec=50.0)
    ask(bench, "alice", "s", "board=pi", "board=pi", "board=gpu")
    release(bench, "bob", "p0")

    assert granted(ask(bench, "carol", "long", "board=pi", max_sec=400.0)) == []
    assert granted(ask(bench, "carol", "short", "board=pi", max_sec=100.0)) == ["short"]
    assert granted(release(bench, "bob", "p1")) == []
    assert granted(release(bench, "carol", "short")) == []
    assert len(devices(release(bench, "bob", "b0"))) == 3


def test_a_waiting_request_that_ends_in_time_fills_in(bench: Bench) -> None:
    for number in range(2):
        ask(bench, "bob", f"b{number}", "board=gpu", max_sec=300.0)
        ask(bench, "bob", f"p{number}", "board=pi", max_sec=50.0)
    ask(bench, "alice", "s", "board=pi", "board=pi", "board=gpu")
    ask(bench, "carol", "long", "board=pi", max_sec=400.0)
    ask(bench, "carol", "short", "board=pi", max_sec=100.0)

    assert granted(release(bench, "bob", "p0")) == ["short"]


def test_a_higher_class_takes_a_board_that_is_held_for_a_set(bench: Bench) -> None:
    for number in range(2):
        ask(bench, "bob", f"b{number}", "board=gpu", max_sec=300.0)
    ask(bench, "alice", "s", "board=pi", "board=pi", "board=gpu")

    assert granted(ask(bench, "carol", "c", "board=pi", lease_class=INTERACTIVE)) == ["c"]


def test_a_set_waits_for_the_turn_of_a_higher_class(bench: Bench) -> None:
    """While an interactive request waits for a board, no set of a lower class holds boards like it."""
    for number in range(2):
        ask(bench, "bob", f"b{number}", "board=gpu", max_sec=300.0)
    ask(bench, "carol", "c", "board=gpu", lease_class=INTERACTIVE)
    ask(bench, "alice", "s", "board=pi", "board=gpu")

    assert not bench.state.sets.held
    assert granted(release(bench, "bob", "b0")) == ["c"]
    bench.tick(1.0)
    assert len(bench.state.sets.held) == 2


def test_a_set_gives_a_rare_board_back_for_a_common_one_that_came_free(bench: Bench) -> None:
    """The rare one was the only free one when the set chose, and is free again for those who need it."""
    gpus = [offer(name, board=name.partition("-")[0], family="gpu") for name in ("h100-0", "rtx-0", "rtx-1", "rtx-2")]
    bench.apply(ev.AgentAttached("other", "host:2", tuple(gpus)))
    ask(bench, "carol", "demand", "board=h100")
    release(bench, "carol", "demand")
    for number in range(3):
        ask(bench, "bob", f"r{number}", "board=rtx")
    for number in range(2):
        ask(bench, "bob", f"b{number}", "board=pi", lease_class=BATCH)
    ask(bench, "alice", "s", "family=gpu", "board=pi")
    assert "devices/h100-0" in bench.state.sets.held
    release(bench, "bob", "r1")

    assert devices(release(bench, "bob", "b0"))[0].startswith("rtx")
    assert granted(ask(bench, "carol", "rare", "board=h100")) == ["rare"]


def test_a_set_that_chooses_anew_prefers_its_own_common_board_to_a_rare_one(bench: Bench) -> None:
    """A free board that it holds counts as free."""
    gpus = [offer(name, board=name.partition("-")[0], family="gpu") for name in ("h100-0", "rtx-0", "rtx-1", "rtx-2")]
    bench.apply(ev.AgentAttached("other", "host:2", tuple(gpus)))
    ask(bench, "carol", "demand", "board=h100")
    release(bench, "carol", "demand")
    for number in range(2):
        ask(bench, "bob", f"r{number}", "board=rtx")
        ask(bench, "bob", f"b{number}", "board=pi", max_sec=100.0)
    ask(bench, "alice", "s", "family=gpu", "board=pi")
    first = next(name for name in bench.state.sets.held if "pi" not in name)

    assert first.startswith("devices/rtx")
    freed = devices(release(bench, "bob", "b1") + bench.tick(1.0))
    assert freed == [first.removeprefix("devices/"), "pi-1"]


def test_two_sets_with_shared_boards_are_granted_one_after_the_other(bench: Bench) -> None:
    for number in range(2):
        ask(bench, "bob", f"p{number}", "board=pi")
        ask(bench, "bob", f"g{number}", "board=gpu")
    ask(bench, "alice", "s", "board=pi", "board=gpu", "board=gpu")
    ask(bench, "carol", "t", "board=gpu", "board=pi", "board=pi")
    assert len(bench.state.sets.held) == 3

    effects = [effect for name in ("p0", "g0", "g1", "p1") for effect in release(bench, "bob", name)]
    assert set(granted(effects)) == set(bench.state.clients["alice"].leases)
    effects = [effect for name in list(bench.state.clients["alice"].leases) for effect in release(bench, "alice", name)]
    assert len(devices(effects + bench.tick(1.0))) == 3


def test_permuted_arrivals_give_the_same_grants() -> None:
    """Sets of several accounts that arrive at one moment are served in one order."""
    asks = [
        ("alice", "a", ("board=pi", "board=gpu")),
        ("bob", "b", ("board=gpu", "board=pi")),
        ("carol", "c", ("board=pi", "board=pi", "board=gpu")),
    ]
    assert len({tuple(grants_of(order)) for order in itertools.permutations(asks)}) == 1


def grants_of(asks: Sequence[tuple[str, str, tuple[str, ...]]]) -> list[tuple[str, str]]:
    """Return the sets and devices in the order of their grants."""
    bench = Bench()
    bench.state = TrackerState(boot=7)
    bench.apply(ev.AgentAttached("agent", "host:1", tuple(map(board, ("pi-0", "pi-1", "gpu-0", "gpu-1")))))
    bench.connect("dora", "alice", "bob", "carol")
    for name in ("pi", "pi", "gpu", "gpu"):
        ask(bench, "dora", f"d{len(bench.state.leases)}", f"board={name}")
    for client, request_id, selectors in asks:
        ask(bench, client, request_id, *selectors)
    found = []
    for _ in range(20):
        bench.now += 1.0
        bench.apply(ev.Tick())
        for lease in list(bench.state.leases.values()):
            effects = bench.apply(ev.Release(lease.client_id, lease.name)) + bench.tick(1.0)
            found += [(e.set_id, e.lease.device_name) for e in effects if isinstance(e, ev.Granted)]
    assert {set_id for set_id, _ in found} == {"a", "b", "c"}
    return found


SELECTORS = ("board=pi", "board=gpu", "*", "name=pi-0", "name=gpu-1")
ACTIONS = st.tuples(
    st.sampled_from(("alice", "bob", "carol")),
    st.lists(st.sampled_from(SELECTORS), min_size=1, max_size=4),
    st.sampled_from(LeaseClass),
    st.sampled_from((20.0, 100.0, 600.0)),
)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.lists(ACTIONS, min_size=1, max_size=12), st.integers(0, 2**32))
def test_every_request_is_served_while_leases_end(
    actions: list[tuple[str, list[str], LeaseClass, float]], seed: int
) -> None:
    """Neither deadlock nor starvation: with leases that end at random moments, sets and singles all get their turn."""
    rng = random.Random(seed)
    bench = Bench()
    bench.state = TrackerState(boot=7)
    bench.apply(ev.AgentAttached("agent", "host:1", tuple(map(board, ("pi-0", "pi-1", "gpu-0", "gpu-1")))))
    bench.connect("alice", "bob", "carol")
    effects: list[ev.Effect] = []
    for number, (client, selectors, lease_class, max_sec) in enumerate(actions):
        effects += ask(bench, client, f"r{number}", *selectors, lease_class=lease_class, max_sec=max_sec)
        bench.now += rng.random()
    for _ in range(400):
        effects += bench.tick(1.0)
        for lease in list(bench.state.leases.values()):
            if rng.random() < 0.3:
                effects += bench.apply(ev.Release(lease.client_id, lease.name))
        answered = {(e.set_id or e.lease.request_id) for e in effects if isinstance(e, ev.Granted)}
        answered |= {request_id for request_id, _ in refused(effects)}
        if len(answered) == len(actions):
            break

    assert answered == {f"r{number}" for number in range(len(actions))}
    assert not bench.state.sets.entries
    assert not bench.state.sets.held


def test_a_set_of_seventeen_boards_is_refused(bench: Bench) -> None:
    effects = ask(bench, "alice", "s", *["board=pi"] * 17)

    assert refused(effects) == [("s", InvalidRequest)]


@pytest.mark.parametrize(
    ("selectors", "text"),
    [
        (("board=pi", "board=tpu"), "board=tpu: none"),
        (("name=pi-0", "name=pi-0"), "2 of its selectors match 1 device together: 'name=pi-0'"),
        (("board=pi", "board=pi", "name=pi-0", "board=gpu"), "3 of its selectors match 2 devices together: 'board=pi'"),
    ],
)
def test_a_set_that_can_never_be_had_is_refused_with_the_selectors(
    bench: Bench, selectors: tuple[str, ...], text: str
) -> None:
    (effect,) = ask(bench, "alice", "s", *selectors)

    assert isinstance(effect, ev.Refused)
    assert effect.error_class is NoMatchingDevice
    assert text in effect.message


def test_a_set_with_a_marked_device_is_refused() -> None:
    """No set is granted a device that is quarantined, so it would wait for ever."""
    with pytest.raises(InvalidRequest, match="lease such a device by itself"):
        set_terms(["name=pi-0", "name=pi-1"], even_if=HealthState.QUARANTINED)


def test_a_set_beyond_the_quota_of_its_class_is_refused(bench: Bench) -> None:
    effects = ask(bench, "alice", "s", "board=pi", "board=pi", "board=gpu", lease_class=INTERACTIVE)

    assert refused(effects) == [("s", InvalidRequest)]


def test_a_set_waits_until_a_quota_leaves_room_for_all_boards(bench: Bench) -> None:
    ask(bench, "alice", "one", "board=pi", lease_class=INTERACTIVE)
    assert granted(ask(bench, "alice", "s", "board=pi", "board=gpu", lease_class=INTERACTIVE)) == []
    assert not bench.state.sets.held

    effects = release(bench, "alice", "one") + bench.tick(1.0)
    assert len(devices(effects)) == 2


def test_a_client_that_is_lost_while_its_set_assembles_holds_nothing(bench: Bench) -> None:
    for number in range(2):
        ask(bench, "bob", f"b{number}", "board=gpu")
    ask(bench, "alice", "s", "board=pi", "board=gpu")
    for number in range(2):
        ask(bench, "carol", f"c{number}", "board=pi", max_sec=700.0)

    effects = bench.apply(ev.ClientLost("alice")) + bench.tick(0.01)

    assert granted(effects) == ["c1"]
    assert not bench.state.sets.entries


def test_a_cancelled_set_gives_its_boards_to_others(bench: Bench) -> None:
    for number in range(2):
        ask(bench, "bob", f"b{number}", "board=gpu", lease_class=BATCH)
    ask(bench, "alice", "s", "board=pi", "board=pi", "board=gpu")
    ask(bench, "carol", "c", "board=pi")

    effects = bench.apply(ev.Cancel("alice", "s")) + bench.tick(0.01)

    assert granted(effects) == ["c"]
    assert not bench.state.yields


def test_a_set_times_out_whole(bench: Bench) -> None:
    for number in range(2):
        ask(bench, "bob", f"b{number}", "board=gpu")
    terms = LeaseTerms(selector="board=pi", also=("board=gpu",), wait_timeout_sec=5.0)
    bench.apply(ev.Acquire("alice", "s", terms))

    effects = bench.tick(5.0)
    assert refused(effects) == [("s", WaitTimeout)]
    bench.tick(0.01)
    assert set(bench.state.matching.free_devices()) == {"devices/pi-0", "devices/pi-1"}


def test_a_board_that_goes_offline_is_replaced(bench: Bench) -> None:
    for number in range(2):
        ask(bench, "bob", f"b{number}", "board=gpu")
    ask(bench, "alice", "s", "board=pi", "board=gpu")
    held = next(name for name in bench.state.sets.held if "pi" in name)

    bench.apply(ev.DeviceReported("agent", held, is_healthy=False, reason="too hot"))
    bench.tick(1.0)

    assert held not in bench.state.sets.held
    assert len(devices(release(bench, "bob", "b0"))) == 2


def test_a_set_waits_for_no_board_that_drains(bench: Bench) -> None:
    """A held board that is marked is replaced, and never granted to the set."""
    for number in range(2):
        ask(bench, "bob", f"b{number}", "board=gpu")
    ask(bench, "alice", "s", "board=pi", "board=gpu")
    held = next(name for name in bench.state.sets.held if "pi" in name)

    bench.apply(ev.MarkHealth((held,), HealthMark(state=HealthState.DRAINING, by="ann", at_sec=bench.now)))
    bench.tick(1.0)
    found = devices(release(bench, "bob", "b0"))

    assert len(found) == 2
    assert held.removeprefix("devices/") not in found


def test_a_repeated_request_gets_all_leases_of_its_set_again(bench: Bench) -> None:
    first = ask(bench, "alice", "s", "board=pi", "board=gpu")
    terms = LeaseTerms(selector="board=pi", also=("board=gpu",))

    effects = bench.apply(ev.Acquire("alice", "s", terms))

    assert devices(effects) == devices(first)
    assert all(isinstance(effect, ev.Granted) and effect.is_repeat for effect in effects)


def test_a_set_that_lost_a_lease_unreceived_is_granted_anew(bench: Bench) -> None:
    """A client that repeats its request holds all leases of the set or none."""
    ask(bench, "alice", "s", "board=pi", "board=gpu")
    lease = bench.state.clients["alice"].leases["s"]
    bench.apply(ev.Revoke(lease.name, "needed"))

    effects = ask(bench, "alice", "s", "board=pi", "board=gpu")

    assert sum(isinstance(effect, ev.LeaseEnded) for effect in effects) == 1
    assert len(devices(effects)) == 2
    assert len(bench.state.clients["alice"].leases) == 2


def test_grants_of_a_set_are_taken_back_together(bench: Bench) -> None:
    effects = ask(bench, "alice", "s", "board=pi", "board=gpu")
    leases = tuple(effect.lease for effect in effects if isinstance(effect, ev.Granted))

    failed = bench.apply(ev.JournalFailed(leases, "disk full"))

    assert ("s", DiskFull) in refused(failed)
    assert not bench.state.leases


def test_sets_assemble_in_the_same_order_after_a_restart(tmp_path: Path) -> None:
    """A tracker that is killed while a set assembles grants it from the journal as it would have."""
    journal, now = Journal(tmp_path / "journal.sqlite"), 1_000_000.0
    state = TrackerState.restore(journal.open(now), now)

    def apply(event: ev.Event) -> list[ev.Effect]:
        nonlocal now
        now += 0.1
        effects = state.apply(event, now) + state.apply(ev.Tick(), now)
        journal.write(state.take_changes())
        return effects

    def attach_all() -> None:
        apply(ev.AgentAttached("agent", "host:1", tuple(map(board, ("pi-0", "gpu-0")))))
        for client in ("alice", "bob", "carol"):
            apply(ev.ClientConnected(client, client))

    attach_all()
    terms = LeaseTerms(selector="board=gpu", also=("board=pi",), ttl_sec=300.0)
    apply(ev.Acquire("bob", "b", replace(terms, also=())))
    for client in ("alice", "carol"):
        apply(ev.Acquire(client, "s", terms))
    journal.close()  # the state is dropped as a killed process drops it

    journal = Journal(tmp_path / "journal.sqlite")
    state = TrackerState.restore(journal.open(now), now)
    attach_all()
    for client in ("carol", "alice"):
        apply(ev.Acquire(client, "s", terms))
    now += 1.0
    effects = apply(ev.Release("bob", state.clients["bob"].leases["b"].name)) + apply(ev.Tick())
    journal.close()

    assert {effect.client_id for effect in effects if isinstance(effect, ev.Granted)} == {"alice"}
    assert len(devices(effects)) == 2


@pytest.mark.parametrize("request_id", ["a\x1f1", "\x1f"])
def test_an_id_of_a_member_cannot_be_chosen(bench: Bench, request_id: str) -> None:
    assert refused(ask(bench, "alice", request_id, "board=pi")) == [(request_id, InvalidRequest)]


def test_an_account_has_a_limited_number_of_waiting_sets(bench: Bench) -> None:
    ask(bench, "bob", "b", "name=pi-0")
    limit = bench.state.limits.max_sets_per_account
    for number in range(limit):
        assert not refused(ask(bench, "alice", f"s{number}", "name=pi-0", "board=gpu"))

    assert refused(ask(bench, "alice", "more", "name=pi-0", "board=gpu")) == [("more", QueueFull)]
    assert not refused(ask(bench, "carol", "other", "name=pi-0", "board=gpu"))


def suspect(bench: Bench, *names: str) -> list[ev.Effect]:
    slow = HealthMark(state=HealthState.SUSPECT, by="root", at_sec=bench.now, reason="slow")
    return bench.apply(ev.MarkHealth(tuple(f"devices/{name}" for name in names), slow)) + bench.tick(0.01)


def test_a_batch_set_gets_suspect_boards_by_name_only(bench: Bench) -> None:
    """Each member has to name its board: the name of the first does not count for the others."""
    suspect(bench, "pi-0", "gpu-0", "gpu-1")

    assert granted(ask(bench, "alice", "s", "name=pi-0", "board=gpu", lease_class=BATCH)) == []
    assert devices(ask(bench, "bob", "t", "board=pi", "name=gpu-0", lease_class=BATCH)) == ["pi-1", "gpu-0"]


def test_a_batch_set_that_names_all_its_suspect_boards_gets_them(bench: Bench) -> None:
    suspect(bench, "pi-0", "gpu-0")

    effects = ask(bench, "alice", "s", "name=pi-0", "name=gpu-0", lease_class=BATCH)
    assert devices(effects) == ["pi-0", "gpu-0"]


def test_a_set_of_a_higher_class_gets_suspect_boards(bench: Bench) -> None:
    suspect(bench, "pi-0", "pi-1")

    assert len(devices(ask(bench, "alice", "s", "board=pi", "board=gpu"))) == 2


def test_a_batch_request_that_a_suspect_board_does_not_serve_holds_no_set_up(bench: Bench) -> None:
    """It is not the turn of that request: the board never serves it."""
    suspect(bench, "pi-0", "pi-1")
    ask(bench, "bob", "b", "board=pi", lease_class=BATCH)
    bench.tick(10.0)
    for number in range(2):
        ask(bench, "carol", f"c{number}", f"name=gpu-{number}")

    assert granted(ask(bench, "alice", "s", "name=pi-0", "board=gpu", lease_class=BATCH)) == []
    effects = release(bench, "carol", "c0") + bench.tick(2.0) + bench.tick(0.01)

    assert devices(effects) == ["pi-0", "gpu-0"]


def test_a_board_that_becomes_suspect_while_a_set_holds_it_is_not_granted_to_it(bench: Bench) -> None:
    """Another one takes its place."""
    for number in range(2):
        ask(bench, "carol", f"c{number}", f"name=gpu-{number}")
    ask(bench, "alice", "s", "board=pi", "board=gpu", lease_class=BATCH)
    (held,) = (name.removeprefix("devices/") for name in bench.state.sets.held if "pi" in name)
    suspect(bench, held)

    effects = release(bench, "carol", "c0") + bench.tick(2.0) + bench.tick(0.01)

    (other,) = {"pi-0", "pi-1"} - {held}
    assert devices(effects) == [other, "gpu-0"]


def test_a_held_suspect_board_fills_in_no_batch_request_that_does_not_name_it(bench: Bench) -> None:
    """Neither a waiting request nor a new one takes the board."""
    suspect(bench, "pi-0")
    ask(bench, "carol", "c", "name=pi-1", max_sec=10_000.0)
    for number in range(2):
        ask(bench, "carol", f"c{number}", f"name=gpu-{number}", max_sec=10_000.0)
    ask(bench, "bob", "early", "board=pi", lease_class=BATCH, max_sec=10.0)
    ask(bench, "alice", "s", "board=pi", "board=gpu")
    assert "devices/pi-0" in bench.state.sets.held

    effects = ask(bench, "bob", "late", "board=pi", lease_class=BATCH, max_sec=10.0) + bench.tick(1.0)
    assert granted(effects + bench.tick(0.01)) == []
    assert granted(ask(bench, "bob", "named", "name=pi-0", lease_class=BATCH, max_sec=10.0)) == ["named"]
