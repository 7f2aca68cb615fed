"""Decisions of a refresh: verdicts, their rate of errors, the programs to build, and the order of measuring."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from fleet.artifacts.artifact import Artifact
from fleet.domain.workload import Workload
from fleet.optimizer.comparing.intervals import RatioInterval
from fleet.optimizer.refreshing.measured import outcome
from fleet.optimizer.refreshing.order import Experience, Item, next_of, sentinels
from fleet.optimizer.refreshing.plan import best_schedules, heirs, old_codes
from fleet.optimizer.refreshing.report import RefreshReport
from fleet.optimizer.refreshing.side_by_side import FORMER, OLD
from fleet.optimizer.refreshing.verdicts import (
    Comparison,
    Verdict,
    environment_interval,
    is_proven_beyond,
    proven_rival,
    verdict_on,
)
from tests.unit.refreshing_parts import NAMES, SCOPE, group, rebuilt, record, simulated

SLOW = RatioInterval(ratio=1.08, low=1.05, high=1.1)
FAST = RatioInterval(ratio=0.9, low=0.88, high=0.92)
EQUAL = RatioInterval(ratio=1.0, low=0.99, high=1.01)
VAGUE = RatioInterval(ratio=1.0, low=0.5, high=2.0)
ONES = dict.fromkeys(NAMES, 1.0)


@pytest.mark.parametrize(
    ("found", "environment", "verdict"),
    [
        (Comparison(is_same=True), None, Verdict.KEPT),
        (Comparison(is_same=True, is_carried=True), EQUAL, Verdict.CARRIED),
        (Comparison(is_same=True), SLOW, Verdict.SLOWER_BY_ENVIRONMENT),
        (Comparison(is_same=True), FAST, Verdict.FASTER),
        (Comparison(is_same=True, rival=SLOW, code=FAST), None, Verdict.CHOICE_CHANGED),
        (Comparison(is_same=False), EQUAL, Verdict.NO_VERDICT),
        (Comparison(is_same=False, rival=SLOW), None, Verdict.CHOICE_CHANGED),
        (Comparison(is_same=False, code=EQUAL), None, Verdict.KEPT),
        (Comparison(is_same=False, code=VAGUE), None, Verdict.NO_VERDICT),
        (Comparison(is_same=False, code=FAST), SLOW, Verdict.FASTER),
        (Comparison(is_same=False, code=SLOW), SLOW, Verdict.SLOWER_BY_CODE),
        (Comparison(is_same=False, rival=SLOW, code=SLOW), None, Verdict.SLOWER_BY_CODE),
        (Comparison(is_same=False, code=EQUAL), SLOW, Verdict.SLOWER_BY_ENVIRONMENT),
    ],
)
def test_code_is_judged_apart_from_the_environment(
    found: Comparison, environment: RatioInterval | None, verdict: Verdict
) -> None:
    """A regression is blamed on the one that is proven to cause it."""
    assert verdict_on(found, environment) is verdict


def verdicts(factors: Mapping[str, float], count: int = 200) -> Counter[Verdict]:
    return Counter(simulated(factors, seed).verdict(None) for seed in range(count))


def test_equal_programs_rarely_raise_an_alarm() -> None:
    """Of 200 comparisons of equal programs at most 1 % say anything but kept."""
    found = verdicts(ONES)

    assert found[Verdict.KEPT] >= 0.99 * found.total()


def test_slower_code_is_found() -> None:
    """At least 95 % of slowdowns by 5 % are found, although every program is rebuilt slower."""
    slower = dict.fromkeys(NAMES, 1.05) | {OLD: 1.0}

    found = verdicts(slower)

    assert found[Verdict.SLOWER_BY_CODE] >= 0.95 * found.total()


def test_a_better_schedule_is_found() -> None:
    """Code that is slower for one schedule only changes the choice, and is no regression."""
    found = verdicts(ONES | {FORMER: 1.05}, 100)

    assert found[Verdict.CHOICE_CHANGED] >= 0.95 * found.total()


def environments(slowdown: float, workloads: int) -> list[RatioInterval]:
    """Return intervals of 100 runs; a time of then is a median of three with noise of its own."""
    found = []
    for seed in range(100):
        rng = random.Random(seed)
        ratios = [slowdown * rng.gauss(1, 0.005) / rng.gauss(1, 0.01) for _ in range(workloads)]
        interval = environment_interval(ratios, rng)
        assert interval is not None
        found.append(interval)
    return found


@pytest.mark.parametrize("workloads", [3, 12])
def test_an_unchanged_environment_rarely_raises_an_alarm(workloads: int) -> None:
    """At most 1 % of unchanged boards are found slower."""
    found = [verdict_on(Comparison(is_same=True), one) for one in environments(1.0, workloads)]

    assert found.count(Verdict.KEPT) >= 0.99 * len(found)


def test_a_slower_board_is_found() -> None:
    """Twelve sentinels show a board that is slower by 5 %, and at least 3 % of it is proven."""
    found = environments(1.05, 12)

    assert sum(is_proven_beyond(one, 0.03) for one in found) >= 0.95 * len(found)


def test_two_workloads_say_nothing_about_the_environment() -> None:
    """A single time of another day may be off."""
    assert environment_interval([1.5, 1.5], random.Random(0)) is None


def test_the_rival_that_wins_most_is_chosen() -> None:
    """Only proven ones count; None stands for one that did not run."""
    more = RatioInterval(ratio=1.2, low=1.1, high=1.3)

    assert proven_rival([None, SLOW, more, EQUAL]) == 2
    assert proven_rival([None, EQUAL, FAST]) is None


def test_each_schedule_is_built_once_by_the_record_that_counts_today() -> None:
    """Records of today's TVM come first, then those of newer versions; the former best leads."""
    today, old, older = record("a", sec=2.0), record("a", sec=1.0, version="1"), record("b", sec=0.5, version="0")
    other = record("c", sec=3.0, version="1", workload="2")

    found = best_schedules({"0": [older], "1": [old, other], "2": [today]}, "2")

    assert found == {"1": [today, older], "2": [other]}


def test_equal_code_needs_no_device() -> None:
    """It is equal before linking, or after it where the former is not known; a failed build leaves the others."""
    linked = record("a", artifact_digest="linked x")

    assert not group(rebuilt("x", "x"), rebuilt("", "x", linked)).needs_measuring
    assert not group(rebuilt("x", "x"), rebuilt("x", None)).needs_measuring
    assert group(rebuilt("x", "x"), rebuilt("x", "y")).needs_measuring
    assert group(rebuilt("", "y")).needs_measuring
    assert not group(*[rebuilt("x", "x")] * 3, rebuilt("x", "y")).needs_measuring  # the fourth best


def test_the_old_code_is_todays_if_equal_else_the_kept_one() -> None:
    """Without either the code cannot be judged."""
    kept = Artifact(path=Path("k"), digest="k")
    same, changed, lost = (
        group(rebuilt("x", new, record("a", workload=name, id=number)))
        for number, (name, new) in enumerate([("1", "x"), ("2", "y"), ("3", "y")])
    )

    found = old_codes([same, changed, lost], {1: kept})

    assert {name: artifact.digest for name, artifact in found.items()} == {"1": "linked x", "2": "k"}


def test_unmeasured_workloads_say_why() -> None:
    """Equal code is kept or carried; changed code and failed builds have no verdict."""
    kept = outcome(group(rebuilt("x", "x")), None, None)
    carried = outcome(group(rebuilt("x", "x", record("a", version="1"))), None, None)
    changed = outcome(group(rebuilt("x", "y")), None, None)
    failed = outcome(group(rebuilt("x", None)), None, None)

    found = [kept, carried, changed, failed]
    assert [one.verdict for one in found] == [Verdict.KEPT, Verdict.CARRIED, Verdict.NO_VERDICT, Verdict.NO_VERDICT]
    assert [bool(one.problem) for one in found] == [False, False, True, True]
    assert (changed.old_digest, changed.new_digest, failed.new_digest) == ("x", "y", "")


def test_a_slowdown_is_counted_if_it_is_proven_beyond_the_limit() -> None:
    """The lower end of the interval decides, of the code or of the environment."""
    by_code = simulated(dict.fromkeys(NAMES, 1.1) | {OLD: 1.0}, 1)
    report = RefreshReport(
        scope=SCOPE,
        outcomes=(outcome(by_code.group, by_code, None), outcome(group(rebuilt("x", "x")), None, None)),
        environment=None,
        carried=0,
        to_measure=1,
        expected_sec=1.0,
    )

    assert [one.verdict for one in report.slower(0.03)] == [Verdict.SLOWER_BY_CODE]
    assert report.slower(0.2) == []
    assert report.counts[Verdict.KEPT] == 1


def item(name: str, kind: str, models_sec: float, device_sec: float = 1.0) -> Item:
    return Item(name=name, kind=kind, models_sec=models_sec, device_sec=device_sec)


def test_kinds_that_change_are_measured_first() -> None:
    """The share of the models' time counts, per device second, and the experience with the kind."""
    calm, lively, dear = item("a", "calm", 1.0), item("b", "lively", 0.9), item("c", "calm", 2.0, 10.0)
    experience = Experience()
    assert next_of([calm, lively, dear], experience) == calm

    experience.note("lively", has_changed=True)
    experience.note("calm", has_changed=False)

    assert next_of([dear, calm, lively], experience) == lively
    assert next_of([], experience) is None


def test_sentinels_are_of_different_kinds() -> None:
    """The largest of each kind comes first, then the largest others."""
    items = [item(f"m{number}", "matmul", 100 - number) for number in range(20)]
    items += [item("c", "conv2d", 1.0), item("p", "pool", 0.5)]

    found = sentinels(items)

    assert [one.name for one in found] == ["m0", "c", "p", *(f"m{number}" for number in range(1, 10))]


def test_each_new_program_is_measured_once() -> None:
    """Programs with records are left out; of several former programs the first by hash stands for the new one."""
    changed = {
        former: Workload(shash=new, name="matmul", mod_json="{}", weight=1)
        for former, new in {"2": "new", "1": "new", "3": "tuned", "4": "other"}.items()
    }

    found = heirs(changed, ["1", "2", "3", "4", "tuned"])

    assert {former: one.shash for former, one in found.items()} == {"1": "new", "4": "other"}
