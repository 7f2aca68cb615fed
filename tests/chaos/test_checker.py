"""The checker finds each planted fault, and none in a sound history."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.domain.leases import LeaseEnd
from tests.chaos.checker import Bounds, Wrong, check
from tests.chaos.history import Event, Log, What, read

SERVED_SEC = 60.0
CLIENTS = ("client-0", "client-1")


@st.composite
def histories(draw: st.DrawFn) -> list[Event]:
    """A sound history: leases of several clients on several devices, runs cut off or not."""
    events: list[Event] = []
    leases = draw(st.lists(st.tuples(st.sampled_from(CLIENTS), st.sampled_from("ab"), st.integers(1, 3)), max_size=12))
    at_sec = 0.0
    for number, (client, device, runs) in enumerate(leases, 1):
        lease = f"leases/{number}"
        of = Event(at_sec=at_sec, who=client, what=What.GRANT, device=device, lease=lease, epoch=number)
        events.append(of)
        for index in range(runs):
            at_sec += 1
            run = f"{lease}/{index}"
            begin = replace(of, at_sec=at_sec, who=device, what=What.BEGIN, run=run)
            events.append(begin)
            if draw(st.booleans()):
                events.append(replace(begin, at_sec=at_sec + 0.5, what=What.END))
                events.append(Event(at_sec=at_sec + 0.6, who=client, what=What.RECORDED, run=run))
    events.append(Event(at_sec=at_sec, who="site", what=What.CALM, names=CLIENTS))
    events += [Event(at_sec=at_sec + 5, who=client, what=What.SERVED) for client in CLIENTS]
    events += [
        Event(at_sec=at_sec + 6, who="tracker", what=What.CENSUS, number=7, counts={"files": 30, "bytes": 1e8})
        for _ in range(2)
    ]
    kept = tuple(event.run for event in events if event.what is What.RECORDED)
    events += [Event(at_sec=at_sec + 7, who="site", what=What.KEPT, names=kept)]
    return [*events, Event(at_sec=at_sec + 8, who="site", what=What.LEFT)]


@settings(max_examples=30)
@given(histories())
def test_a_clean_run_has_no_findings(history: list[Event]) -> None:
    """No violation is found for any order of leases and any interrupted runs."""
    assert [] == check(history)


def grant(number: int, *, who: str = "client-0", epoch: int | None = None) -> Event:
    """A lease of device a."""
    epoch = number if epoch is None else epoch
    return Event(at_sec=number, who=who, what=What.GRANT, device="a", lease=f"leases/{number}", epoch=epoch)


def begin(number: int, *, index: int = 0, is_alone: bool = True) -> Event:
    """A run under that lease."""
    run = f"leases/{number}/{index}"
    return replace(grant(number), who="a", what=What.BEGIN, run=run, is_alone=is_alone)


def end(number: int, *, index: int = 0) -> Event:
    return replace(begin(number, index=index), what=What.END)


def granted(
    number: int,
    *,
    at_sec: float | None = None,
    of_set: str = "",
    size: int = 1,
    account: str = "ann",
    lease_class: str = "interactive",
    device: str = "",
) -> Event:
    """The tracker's line for lease `number`, of a device of its own."""
    return Event(
        at_sec=float(number) if at_sec is None else at_sec,
        who="tracker",
        what=What.GRANTED,
        device=device or f"d{number}",
        lease=f"leases/{number}",
        run=f"c/{number}",
        account=account,
        lease_class=lease_class,
        of_set=of_set,
        number=size,
    )


def over(number: int, at_sec: float) -> Event:
    return Event(at_sec=at_sec, who="tracker", what=What.OVER, lease=f"leases/{number}")


def demanded(number: int, at_sec: float, *, run: str = "c/9") -> Event:
    return Event(at_sec=at_sec, who="tracker", what=What.DEMANDED, lease=f"leases/{number}", run=run)


def booked(*devices: str, at_sec: float = 1.0) -> Event:
    """The tracker's plan of a booking."""
    return Event(
        at_sec=at_sec,
        who="tracker",
        what=What.BOOKED,
        booking="bookings/b",
        names=devices,
        starts_at_sec=100.0,
        ends_at_sec=200.0,
    )


def until(ends_at_sec: float, **facts: str) -> Event:
    """A lease of d9 that is granted at 9 s."""
    lease = granted(9, lease_class=facts.get("lease_class", "normal"))
    return replace(lease, starts_at_sec=9.0, ends_at_sec=ends_at_sec, booking=facts.get("booking", ""))


def of_standby(event: Event) -> Event:
    return replace(event, who="standby")


OPENED = Event(at_sec=0, who="tracker", what=What.OPENED)
FOLLOWED = replace(OPENED, at_sec=0.1, what=What.FOLLOWED)
ALONE = replace(OPENED, at_sec=0.2, what=What.ALONE)
TOLD = replace(granted(1, device="a"), lasts_sec=25.0)
"""A lease of device a."""
FREED = replace(TOLD, at_sec=4.0, what=What.HOLDS, lease="")
TAKEOVER = of_standby(replace(OPENED, at_sec=9.0, term=5))
NEXT = of_standby(granted(12, device="a"))
"""The standby's grant of the same device."""
EXPIRED = of_standby(replace(over(1, 10), device="a", text=LeaseEnd.EXPIRED))
QUEUED = Event(at_sec=5, who="tracker", what=What.QUEUED, run="c/9")
DRAINED = Event(at_sec=1.5, who="site", what=What.DRAINED, device="a", epoch=1)
RESUMING = Event(at_sec=1.7, who="site", what=What.RESUMING, device="a")
CALM = Event(at_sec=10, who="site", what=What.CALM, names=CLIENTS)
ONE_SERVED = Event(at_sec=12, who="client-0", what=What.SERVED)
CENSUS = Event(at_sec=1, who="agent-0", what=What.CENSUS, number=7, counts={"files": 30, "bytes": 1e8})
PLANTED: dict[str, tuple[Wrong, list[Event]]] = {
    "a run that was interrupted by another, and ended": (
        Wrong.OVERLAP,
        [grant(1), grant(2), begin(1), begin(2), end(1), end(2)],
    ),
    "a device that was not free": (Wrong.OVERLAP, [grant(1), grant(2), begin(1), begin(2, is_alone=False)]),
    "a device taken by somebody who wrote nothing": (Wrong.OVERLAP, [grant(1), begin(1, is_alone=False), end(1)]),
    "a tuner and a holder": (
        Wrong.OVERLAP,
        [grant(1), replace(begin(1), lease="", epoch=0, run="t"), begin(1), replace(end(1), lease="", run="t")],
    ),
    "two runs of one holder": (Wrong.OVERLAP, [grant(1), begin(1), begin(1, index=1), end(1, index=1), end(1)]),
    "an old holder that runs again": (
        Wrong.EPOCH,
        [grant(1), grant(2), begin(1), end(1), begin(2), end(2), begin(1, index=1), end(1, index=1)],
    ),
    "one epoch for two leases": (Wrong.EPOCH, [grant(1), grant(2, who="client-1", epoch=1)]),
    "a grant of a smaller epoch": (Wrong.EPOCH, [grant(1, epoch=9), grant(2, epoch=8)]),
    "a run under no lease": (Wrong.STRANGER, [begin(1), end(1)]),
    "a run under another epoch than was granted": (Wrong.STRANGER, [grant(1, epoch=5), begin(1), end(1)]),
    "a grant on a drained board": (Wrong.DRAINED, [grant(1), DRAINED, grant(2)]),
    "a grant on a board that the standby drained": (
        Wrong.DRAINED,
        [OPENED, TAKEOVER, replace(NEXT, epoch=12), replace(DRAINED, at_sec=13, epoch=12), grant(14)],
    ),
    "a grant after another board resumed": (Wrong.DRAINED, [DRAINED, replace(RESUMING, device="b"), grant(2)]),
    "half a set": (Wrong.HALF, [OPENED, granted(1, of_set="s", size=2), granted(2), over(2, 3)]),
    "half a set before another one": (
        Wrong.HALF,
        [granted(1, of_set="s", size=2), *(granted(n, of_set="t", size=2, lease_class="normal") for n in (2, 3))],
    ),
    "half a set at the end": (Wrong.HALF, [granted(n, of_set="s", size=3) for n in (1, 2)]),
    "a set with one board twice": (Wrong.HALF, [granted(n, of_set="s", size=2, device="d") for n in (1, 2)]),
    "one lease more than the quota": (Wrong.QUOTA, [granted(1), granted(2), granted(3)]),
    "a set that is larger than the rest of the quota": (
        Wrong.QUOTA,
        [granted(1), granted(2, of_set="s", size=2), granted(3, of_set="s", size=2)],
    ),
    "a quota that a restart forgot": (
        Wrong.QUOTA,
        [granted(1), granted(2), OPENED, granted(3), over(1, 4), over(2, 5)],
    ),
    "a lease that outlives its grace while the request waits": (
        Wrong.YIELD,
        [granted(1, lease_class="batch"), demanded(1, 2), granted(9, at_sec=100), over(1, 200)],
    ),
    "a lease that ends long after its grace": (
        Wrong.YIELD,
        [granted(1, lease_class="batch"), demanded(1, 2), over(1, 90), granted(9, at_sec=90)],
    ),
    "a demand that the tracker repeated in vain": (
        Wrong.YIELD,
        [demanded(1, 2), demanded(2, 3, run="c/8"), over(2, 4), granted(8, at_sec=4), granted(9, at_sec=90)],
    ),
    "an acknowledged record that is gone": (
        Wrong.LOST,
        [
            Event(at_sec=1, who="client-0", what=What.RECORDED, run="r1"),
            Event(at_sec=2, who="site", what=What.KEPT, names=("r2",)),
        ],
    ),
    "a library that was not looked at": (Wrong.LOST, [Event(at_sec=1, who="c", what=What.RECORDED, run="r1")]),
    "a client that is never served": (Wrong.STARVED, [CALM, ONE_SERVED]),
    "a client that is served too late": (
        Wrong.STARVED,
        [CALM, ONE_SERVED, replace(ONE_SERVED, who="client-1", at_sec=CALM.at_sec + SERVED_SEC + 1)],
    ),
    "a client that was served before the last fault only": (
        Wrong.STARVED,
        [replace(ONE_SERVED, who="client-1", at_sec=9), CALM, ONE_SERVED],
    ),
    "open files that grow": (Wrong.LEAKED, [CENSUS, replace(CENSUS, counts={"files": 90, "bytes": 1e8})]),
    "memory that grows": (Wrong.LEAKED, [CENSUS, replace(CENSUS, counts={"files": 30, "bytes": 2e8})]),
    "a lease that reaches into a booking": (Wrong.REACHED, [booked("d9"), until(101.0)]),
    "a double grant over two trackers": (Wrong.DROPPED, [OPENED, FOLLOWED, TOLD, TAKEOVER, NEXT]),
    "a lease that a takeover ends early": (Wrong.DROPPED, [OPENED, FOLLOWED, TOLD, TAKEOVER, EXPIRED, NEXT]),
    "a grant of the former tracker long after the takeover": (Wrong.TERM, [OPENED, TAKEOVER, granted(80)]),
    "two trackers that grant in one term": (Wrong.TERM, [OPENED, replace(TAKEOVER, term=0)]),
    "a run for the former tracker after one for its successor": (
        Wrong.TERM,
        [
            *(OPENED, granted(1), granted(3), TAKEOVER, of_standby(granted(2))),
            *(grant(2), begin(2), end(2), grant(3), begin(3), end(3)),
        ],
    ),
    "a process that is left": (
        Wrong.LEAKED,
        [Event(at_sec=9, who="site", what=What.LEFT, names=("process 17 of agent-0",))],
    ),
    "a process that ends by itself": (
        Wrong.ENDED,
        [Event(at_sec=9, who="tracker", what=What.ENDED, text="exit code 1")],
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found(name: str) -> None:
    """The checker reports only this fault, with the lines that show it."""
    wrong, history = PLANTED[name]

    found = check(history, Bounds(served_sec=SERVED_SEC))

    assert {wrong} == {finding.wrong for finding in found}
    assert all(finding.events for finding in found)


@pytest.mark.parametrize("late", [grant(2, epoch=1), grant(3)])
def test_a_grant_from_before_a_drain_or_after_it_is_sound(late: Event) -> None:
    """A client may read a grant after the drain that followed it."""
    assert check([grant(0), DRAINED, replace(RESUMING, at_sec=2.5), late]) == []


@pytest.mark.parametrize(
    "history",
    [
        pytest.param([granted(1, of_set="s", size=2), OPENED, over(1, 9)], id="half a set, cut off by a kill"),
        pytest.param([granted(n, of_set="s", size=2) for n in (1, 2)], id="a whole set"),
        pytest.param([granted(1), granted(2), over(1, 2.5), granted(3)], id="a quota with room again"),
        pytest.param([granted(1), granted(2), granted(3, account="bob")], id="quotas of two accounts"),
        pytest.param([granted(n, lease_class="normal") for n in (1, 2, 3)], id="a class without a quota"),
        pytest.param([granted(1), granted(2), OPENED, granted(3)], id="leases that a journal set back may lack"),
        pytest.param([demanded(1, 2), over(1, 10), granted(9, at_sec=90)], id="a lease that gave way in time"),
        pytest.param([demanded(1, 2), granted(9, at_sec=10), over(1, 90)], id="a request that got another board"),
        pytest.param([demanded(1, 2), QUEUED, granted(9, at_sec=90)], id="a request that was queued again"),
        pytest.param([demanded(1, 2), OPENED, granted(9, at_sec=90)], id="a demand from before a restart"),
        pytest.param([demanded(1, 2), demanded(1, 3, run=""), granted(9, at_sec=90)], id="a mark that took over"),
        pytest.param([demanded(1, 2), over(1, 90)], id="a request that left the queue"),
        pytest.param([booked("d9"), until(100.0)], id="a lease that ends before the booking"),
        pytest.param([booked("d8"), until(150.0)], id="a lease on a board that no booking needs"),
        pytest.param([booked("d9"), booked(at_sec=5.0), until(150.0)], id="a lease after a booking was cancelled"),
        pytest.param([booked("d9"), until(150.0, lease_class="batch")], id="a batch lease before a booking"),
        pytest.param([booked("d9"), until(150.0, booking="bookings/b")], id="a lease of the booking"),
        pytest.param([booked("d9"), OPENED, until(150.0)], id="a plan that a journal set back may lack"),
    ],
)
def test_sound_decisions_of_the_tracker_have_no_findings(history: list[Event]) -> None:
    """Missing last lines of a life, withdrawn demands and other accounts' leases are no violations."""
    assert check(history) == []


@pytest.mark.parametrize(
    "history",
    [
        pytest.param([OPENED, FOLLOWED, TOLD, TAKEOVER, replace(EXPIRED, at_sec=40), NEXT], id="a lease that expires"),
        pytest.param([OPENED, FOLLOWED, TOLD, TAKEOVER, replace(EXPIRED, text="RELEASED"), NEXT], id="one given back"),
        pytest.param([OPENED, FOLLOWED, TOLD, FREED, TAKEOVER, NEXT], id="an end that the former tracker did not tell"),
        pytest.param([OPENED, TOLD, TAKEOVER, NEXT], id="a grant before the standby followed"),
        pytest.param([OPENED, FOLLOWED, ALONE, TOLD, TAKEOVER, NEXT], id="a grant while the standby lagged"),
        pytest.param(
            [OPENED, FOLLOWED, TOLD, TAKEOVER, replace(TAKEOVER, at_sec=11), NEXT], id="an end lost by a restart"
        ),
        pytest.param([OPENED, TAKEOVER, granted(20)], id="a former tracker that is cut off"),
        pytest.param([OPENED, grant(0), DRAINED, TAKEOVER, grant(12)], id="a drain that a lagging standby lacks"),
        pytest.param(
            [OPENED, replace(TOLD, epoch=1), TAKEOVER, replace(DRAINED, at_sec=10), grant(12)],
            id="a drain that the former tracker may have answered",
        ),
    ],
)
def test_sound_takeovers_have_no_findings(history: list[Event]) -> None:
    """Only leases that the standby must have count, and a former tracker needs time to learn of the other."""
    assert check(history) == []


@pytest.mark.parametrize(
    ("wrong", "pick", "plant"),
    [
        (Wrong.OVERLAP, lambda e: e.what is What.BEGIN, lambda e: replace(e, is_alone=False)),
        (Wrong.STRANGER, lambda e: e.what is What.BEGIN, lambda e: replace(e, lease="leases/none")),
        (Wrong.LOST, lambda e: e.what is What.KEPT and e.names, lambda e: replace(e, names=e.names[1:])),
        (Wrong.STARVED, lambda e: e.what is What.SERVED, lambda e: replace(e, at_sec=e.at_sec + SERVED_SEC)),
        (Wrong.LEAKED, lambda e: e.what is What.LEFT, lambda e: replace(e, names=("/dev/shm/x",))),
    ],
)
@settings(max_examples=20)
@given(history=histories(), choice=st.integers(0, 10**6))
def test_a_fault_planted_in_a_long_history_is_found(
    wrong: Wrong,
    pick: Callable[[Event], bool],
    plant: Callable[[Event], Event],
    history: list[Event],
    choice: int,
) -> None:
    """The fault is found at any place, among any other events."""
    places = [index for index, event in enumerate(history) if pick(event)]
    if places:
        index = places[choice % len(places)]
        history[index] = plant(history[index])

        assert wrong in {finding.wrong for finding in check(history, Bounds(served_sec=SERVED_SEC))}


def test_a_log_comes_back_as_it_was_written(tmp_path: Path) -> None:
    """Each line is read with its place; half a line, of a process that was killed, does not count."""
    log = Log(tmp_path / "a.jsonl", "a")
    log.write(What.BEGIN, device="a", lease="leases/1", epoch=3, run="r", is_alone=False)
    log.write(What.CALM, names=["client-0"])
    log.close()
    with (tmp_path / "a.jsonl").open("a") as file:
        file.write('{"at_sec": 1.0, "wh')

    first, second = read([tmp_path / "a.jsonl"])

    assert (What.BEGIN, "a", 3, False, "a.jsonl:1") == (first.what, first.who, first.epoch, first.is_alone, first.line)
    assert ("client-0",) == second.names
