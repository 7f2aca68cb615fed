"""The next batch goes to the workload with the highest worth, and no workload starves."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.domain.decisions import Motive
from fleet.domain.jobs import gain_factor
from fleet.domain.leases import MOST_PRIORITY
from fleet.optimizer.narrator import finish_text, reason_text
from fleet.optimizer.prioritizer.futures import from_predictions, from_records, gains
from fleet.optimizer.prioritizer.prioritize import EXPLORATION_PERIOD, prioritize
from fleet.optimizer.prioritizer.values import (
    BatchOutcome,
    DeviceState,
    Done,
    Finish,
    JobTerms,
    Plan,
    Predictions,
    WorkloadState,
)
from fleet.optimizer.prioritizer.worth import trust

SPREAD_OUT = tuple(float(sec) for sec in np.geomspace(4.0, 1.0, 16))


def state(name: str = "w", *run_secs: float, **facts: object) -> WorkloadState:
    known: dict[str, object] = {
        "name": name,
        "run_secs": run_secs,
        "current_sec": min(run_secs, default=math.inf),
        "batches": -(-len(run_secs) // 8),
        "trial_device_sec": 0.1,
    }
    return WorkloadState(**(known | facts))  # type: ignore[arg-type]


def decide(
    *workloads: WorkloadState,
    predictions: Predictions | None = None,
    devices: Sequence[DeviceState] = (DeviceState(),),
    now_sec: float = 0.0,
) -> Plan:
    return prioritize(workloads, predictions or {}, devices, now_sec)


def names(plan: Plan) -> list[str]:
    return [batch.workload for batch in plan.batches]


positive = st.floats(1e-6, 1e3)


@st.composite
def states(draw: st.DrawFn) -> list[WorkloadState]:
    """Workloads of up to three jobs, in every stage of their lives."""
    jobs = [
        JobTerms(
            name=f"jobs/{number}",
            priority=draw(st.sampled_from([0.5, 1.0, 4.0])),
            target_sec=draw(st.sampled_from([0.0, 1e-3, 1.0])),
            deadline_sec=draw(st.sampled_from([math.inf, -1.0, 10.0])),
        )
        for number in range(draw(st.integers(1, 3)))
    ]
    found = []
    for number in range(draw(st.integers(1, 6))):
        run_secs = tuple(draw(st.lists(st.one_of(positive, st.just(math.inf)), max_size=70)))
        best_sec = min(run_secs, default=math.inf)
        found.append(
            WorkloadState(
                name=f"w{number}",
                job=draw(st.sampled_from(jobs)),
                device_model=draw(st.sampled_from(["pi", "pc"])),
                weight=draw(st.integers(1, 40)),
                current_sec=min(best_sec, draw(st.one_of(positive, st.just(math.inf)))),
                least_sec=draw(st.sampled_from([0.0, best_sec / 2 if best_sec < math.inf else 0.0])),
                run_secs=run_secs,
                batches=draw(st.integers(0, 20)),
                trials_left=draw(st.integers(0, 100)),
                max_batch=draw(st.integers(1, 32)),
                trial_device_sec=draw(st.floats(1e-3, 10.0)),
                outcomes=tuple(
                    BatchOutcome(expected=draw(st.floats(0, 1)), gained=draw(st.floats(0, 1)))
                    for _ in range(draw(st.integers(0, 3)))
                ),
                is_busy=draw(st.booleans()),
                is_closed=draw(st.sampled_from([False, False, True])),
            )
        )
    return found


@st.composite
def predictions(draw: st.DrawFn) -> Predictions:
    """Predictions for some of those workloads, for none or more candidates than a batch has, with or without
    agreement.
    """
    found = {}
    for number in range(draw(st.integers(0, 6))):
        shape = (draw(st.integers(1, 12)), draw(st.integers(0, 40)))
        rng = np.random.default_rng(draw(st.integers(0, 1000)))
        found[f"w{number}"] = np.log(draw(positive)) + draw(st.sampled_from([0.0, 0.1, 3.0])) * rng.normal(size=shape)
    return found


BOTH = (DeviceState(model="pi"), DeviceState(model="pc", builder_price=1.0))


@pytest.mark.slow
@settings(deadline=None, max_examples=25)
@given(workloads=states(), expected=predictions(), order=st.randoms(use_true_random=False))
def test_the_plan_does_not_depend_on_the_order(
    workloads: list[WorkloadState], expected: Predictions, order: random.Random
) -> None:
    """The order of workloads, devices and predictions does not matter."""
    shuffled = order.sample(workloads, len(workloads))
    turned = {name: expected[name] for name in sorted(expected, reverse=True)}

    first = decide(*workloads, predictions=expected, devices=BOTH)

    assert first == decide(*shuffled, predictions=turned, devices=BOTH[::-1])


@pytest.mark.parametrize("priority", [0, -1, 1, MOST_PRIORITY, -MOST_PRIORITY])
def test_every_priority_that_a_user_may_choose_leads_to_a_plan(priority: int) -> None:
    """The largest once overflowed, and the smallest made all gains worthless."""
    terms = JobTerms(priority=gain_factor(priority))

    [batch] = decide(state("w", *SPREAD_OUT, job=terms)).batches
    [blind] = decide(state("w", job=terms)).batches

    assert 0 < batch.reason.worth < math.inf
    assert blind.reason.worth > 0
    assert gain_factor(priority) <= gain_factor(min(priority + 5, MOST_PRIORITY))


@pytest.mark.parametrize("run_secs", [SPREAD_OUT, ()])
def test_a_batch_that_jobs_share_is_worth_as_much_more(run_secs: tuple[float, ...]) -> None:
    """Each job pays its part of it. The time that the rest of the job takes stays the same."""
    alone = decide(state("w", *run_secs))

    shared = decide(state("w", *run_secs, payers=3))

    assert shared.batches[0].reason.worth == pytest.approx(3 * alone.batches[0].reason.worth)
    assert {name: rest.gain_sec for name, rest in shared.rests.items()} == pytest.approx(
        {name: rest.gain_sec for name, rest in alone.rests.items()}
    )


@pytest.mark.slow
@settings(deadline=None, max_examples=25)
@given(workloads=states(), expected=predictions())
def test_finished_and_busy_workloads_are_never_proposed(workloads: list[WorkloadState], expected: Predictions) -> None:
    """Every other workload is proposed once if its kind of device is there; batches are within all bounds."""
    plan = decide(*workloads, predictions=expected, devices=BOTH[:1])

    by_name = {workload.name: workload for workload in workloads}
    able = {
        name
        for name, own in by_name.items()
        if name not in plan.finished and not own.is_busy and own.device_model == "pi"
    }
    assert sorted(names(plan)) == sorted(able)
    for batch in plan.batches:
        own = by_name[batch.workload]
        assert 1 <= batch.count <= min(own.max_batch, own.trials_left)
        assert batch.count >= min(4, own.max_batch, own.trials_left)
        assert math.isfinite(batch.reason.worth)
        assert batch.reason.worth >= 0
        assert reason_text(batch.reason)
    assert all(finish_text(finish) for finish in plan.finished.values())
    for name, own in by_name.items():
        if own.is_closed or not own.trials_left or own.job.deadline_sec <= 0:
            assert name in plan.finished


@pytest.mark.slow
@settings(deadline=None, max_examples=25)
@given(workloads=states(), expected=predictions(), power=st.integers(-10, 10))
def test_the_unit_of_weight_does_not_matter(workloads: list[WorkloadState], expected: Predictions, power: int) -> None:
    """Counting a model's runs in thousands gives the same plan."""
    scaled = [
        replace(own, weight=own.weight * 2.0**power, job=replace(own.job, target_sec=own.job.target_sec * 2.0**power))
        for own in workloads
    ]

    first, second = (decide(*some, predictions=expected, devices=BOTH) for some in (workloads, scaled))

    assert names(first) == names(second)
    assert [batch.count for batch in first.batches] == [batch.count for batch in second.batches]
    assert [batch.reason.worth for batch in first.batches] == [batch.reason.worth for batch in second.batches]


@pytest.mark.slow
@settings(deadline=None, max_examples=8)
@given(
    times=st.lists(positive, min_size=2, max_size=5),
    weights=st.lists(st.integers(1, 50), min_size=5, max_size=5),
    expected=predictions(),
)
def test_no_workload_starves(times: list[float], weights: list[int], expected: Predictions) -> None:
    """Each workload gets a batch within a bounded number of turns, even if none ever gains and all predictions are
    wrong.
    """
    workloads = [
        state(f"w{number}", current_sec=sec, weight=weights[number], batches=0, max_batch=4)
        for number, sec in enumerate(times)
    ]
    for _ in range(EXPLORATION_PERIOD * len(times)):
        chosen = decide(*workloads, predictions=expected).batches[0]
        workloads = [
            replace(own, batches=own.batches + 1, run_secs=(*own.run_secs, *[own.current_sec] * chosen.count))
            if own.name == chosen.workload
            else own
            for own in workloads
        ]

    assert all(own.batches for own in workloads)


def test_each_workload_that_matters_gets_a_batch_before_any_gets_two() -> None:
    """The first batch's gain is unknown; a workload below a hundredth of its job's time waits."""
    tuned = state("tuned", *SPREAD_OUT)

    assert decide(tuned, state("new", current_sec=0.5)).batches[0].workload == "new"
    assert decide(tuned, state("new", current_sec=0.5)).batches[0].reason.motive is Motive.FIRST
    assert decide(tuned, state("tiny", current_sec=0.001)).batches[0].workload == "tuned"


def test_a_static_schedule_is_no_first_batch() -> None:
    """A static schedule's time predicts no search result, so its workload still needs a first batch.

    Counting it, the costliest workload had three batches before another had one. A workload tried by earlier jobs needs
    no first batch.
    """
    tuned, static = state("tuned", *SPREAD_OUT), state("static", 0.5, batches=0)

    assert decide(tuned, static).batches[0].workload == "static"
    assert decide(tuned, static).batches[0].reason.motive is Motive.FIRST
    assert decide(tuned, replace(static, current_sec=0.001, run_secs=(0.001,))).batches[0].workload == "tuned"
    assert decide(tuned, replace(static, trials=40)).batches[0].reason.motive is not Motive.FIRST


def test_a_first_batch_that_would_be_late_is_small() -> None:
    """A batch that could end past the deadline has the smallest size, for known and unknown workloads."""
    hurried = JobTerms(deadline_sec=1.0)

    counts = [decide(state("w", job=hurried), now_sec=now_sec).batches[0].count for now_sec in (0.0, 0.5)]

    assert counts == [8, 4]


def test_weight_times_gain_decides() -> None:
    """The more frequent of two workloads with equal times is first; then the one with the larger possible gain."""
    assert names(decide(state("a", *SPREAD_OUT), state("b", *SPREAD_OUT, weight=3))) == ["b", "a"]
    assert names(decide(state("flat", *[1.0] * 16), state("steep", *SPREAD_OUT))) == ["steep", "flat"]


def test_dear_device_time_counts() -> None:
    """Between equal gains, less device time decides."""
    assert names(decide(state("a", *SPREAD_OUT, trial_device_sec=4.0), state("b", *SPREAD_OUT))) == ["b", "a"]


def test_builders_have_a_price() -> None:
    """If builds use the device's own cores, a workload with expensive builds comes later."""
    dear, slow = state("dear", *SPREAD_OUT, trial_builder_sec=2.0), state("slow", *SPREAD_OUT, trial_device_sec=0.5)

    assert names(decide(dear, slow, devices=[DeviceState(builder_price=0.0)])) == ["dear", "slow"]
    assert names(decide(dear, slow, devices=[DeviceState(builder_price=1.0)])) == ["slow", "dear"]


def test_a_costly_search_makes_batches_larger() -> None:
    """A long search before each batch is worth more candidates in it."""
    quick, long = (
        state("quick", *SPREAD_OUT, max_batch=32),
        state("long", *SPREAD_OUT, max_batch=32, round_builder_sec=30),
    )

    counts = {
        batch.workload: batch.count for batch in decide(quick, long, devices=[DeviceState(builder_price=1.0)]).batches
    }

    assert counts["quick"] < counts["long"]


def test_a_large_model_does_not_starve_a_small_one() -> None:
    """Gains count relative to the latency of their own job."""
    large, small = JobTerms(name="large"), JobTerms(name="small")
    slow = tuple(1000 * sec for sec in SPREAD_OUT)

    plan = decide(state("a", *slow, job=large), state("b", *slow, job=large), state("c", *SPREAD_OUT, job=small))

    assert names(plan)[0] == "c"


def test_priority_multiplies_the_worth() -> None:
    """A job that counts four times is worth four times as much."""
    plain = decide(state("a", *SPREAD_OUT)).batches[0].reason.worth
    urgent = decide(state("a", *SPREAD_OUT, job=JobTerms(priority=4.0))).batches[0].reason.worth

    assert pytest.approx(4 * plain) == urgent


def test_unfulfilled_predictions_count_less() -> None:
    """A workload's own outcomes count most; without any, those of its job's other workloads count."""
    vain, kept = BatchOutcome(expected=0.2, gained=0.0), BatchOutcome(expected=0.2, gained=0.2)

    assert trust([], []) == 1.0
    assert trust([vain], [vain, kept]) < trust([], [vain, kept]) < 1.0
    plan = decide(state("a", *SPREAD_OUT, outcomes=(vain, vain)), state("b", *SPREAD_OUT, outcomes=(kept, kept)))
    assert names(plan) == ["b", "a"]


def test_a_model_that_promises_more_is_believed() -> None:
    """Predicted times of the next candidates replace the estimate from records alone."""
    slower, faster = np.full((8, 8), math.log(2.0)), np.full((8, 8), math.log(0.5))

    plan = decide(state("a", *SPREAD_OUT), state("b", *SPREAD_OUT), predictions={"a": slower, "b": faster})

    assert names(plan) == ["b", "a"]
    assert pytest.approx(0.5, abs=0.05) == plan.batches[0].reason.gain_sec


@pytest.mark.parametrize("nonsense", [math.nan, math.inf, -math.inf])
def test_predictions_that_are_no_numbers_are_ignored(nonsense: float) -> None:
    """The records count alone: a gain of NaN had marked the workload as exhausted."""
    broken = np.zeros((8, 8))
    broken[3, 5] = nonsense
    workload = state("w", *SPREAD_OUT * 5)

    assert decide(workload, predictions={"w": broken}) == decide(workload)


def test_members_that_disagree_about_a_workload_disagree_about_all_of_it() -> None:
    """Their error is drawn once for a future, so more candidates do not make a doubtful gain a sure one."""
    rng = np.random.default_rng(0)
    doubtful = np.log([[0.5] * 64, [2.0] * 64])

    shares = gains(from_predictions(doubtful, 2_000, rng), 1.0, 0.0)

    assert pytest.approx(0.5, abs=0.05) == (shares[:, -1] > 0).mean()
    assert pytest.approx(0.25, abs=0.03) == shares[:, -1].mean()


def test_no_future_is_faster_than_the_roofline() -> None:
    """Drawn futures end at the device's limit."""
    futures = from_records(SPREAD_OUT, 64, 500, np.random.default_rng(0))

    assert gains(futures, 1.0, 0.0).max() > 0.2
    assert gains(futures, 1.0, 0.9).max() <= 0.1 + 1e-9


def test_records_predict_the_gain_of_more_samples() -> None:
    """The expected gain of 16 more samples of one distribution is right within a third, on average."""
    rng = np.random.default_rng(1)
    expected, came = [], []
    for _ in range(300):
        secs = np.exp(0.4 * rng.standard_normal(48))
        best = float(secs[:32].min())
        futures = from_records(tuple(map(float, secs[:32])), 16, 64, rng)
        expected.append(gains(futures, best, 0.0)[:, -1].mean())
        came.append(max(0.0, 1 - secs[32:].min() / best))

    assert pytest.approx(np.mean(came), rel=0.34) == np.mean(expected)


@pytest.mark.parametrize(
    ("facts", "done"),
    [
        ({"is_closed": True}, Done.CLOSED),
        ({"trials_left": 0}, Done.NO_TRIALS),
        ({"least_sec": 0.99}, Done.AT_ROOFLINE),
        ({"job": JobTerms(target_sec=1.0)}, Done.TARGET),
        ({"job": JobTerms(deadline_sec=5.0)}, Done.DEADLINE),
    ],
)
def test_a_finished_workload_gives_the_reason(facts: dict[str, object], done: Done) -> None:
    """The reason is available as data and as a sentence."""
    plan = decide(state("w", *SPREAD_OUT, **facts), now_sec=5.0)

    assert names(plan) == []
    assert plan.finished["w"].done is done
    assert finish_text(plan.finished["w"])


def test_a_workload_without_further_gain_is_finished() -> None:
    """A workload is finished after many equal candidates, but never after few, and never while times still fall."""
    alike = [1.0 + 1e-6 * number for number in range(80)]

    plan = decide(state("w", *alike))

    assert plan.finished["w"].done is Done.NOTHING_TO_GAIN
    assert plan.finished["w"].expected_share < 0.002
    assert names(decide(state("w", *alike[:40]))) == ["w"]
    assert names(decide(state("w", *SPREAD_OUT * 5))) == ["w"]


def test_no_batch_looks_past_the_deadline() -> None:
    """A batch that cannot be measured in time gains nothing."""
    hurried = JobTerms(deadline_sec=1.0)

    (batch,) = decide(state("w", *SPREAD_OUT, job=hurried), now_sec=0.5).batches

    assert batch.reason.horizon == 1
    assert batch.count == 4


def test_searching_and_building_take_time_from_a_deadline_where_cores_are_shared() -> None:
    """Four batches that can be measured in time, but not searched and built, gain nothing."""
    late_gain = {"w": np.log([[2.0] * 12 + [0.3] * 4] * 2)}
    hurried = state("w", *SPREAD_OUT, max_batch=4, trial_device_sec=0.01, round_builder_sec=0.3)
    hurried = replace(hurried, job=JobTerms(deadline_sec=1.0))

    shared, elsewhere = (
        decide(hurried, predictions=late_gain, devices=[DeviceState(builder_price=price)]).batches[0].reason.horizon
        for price in (1.0, 0.0)
    )

    assert shared < 4 == elsewhere


def test_a_time_beyond_the_target_gains_no_more() -> None:
    """A job close to its target gains no more than the rest; either of its two workloads may bring it."""
    nearly, open_end = JobTerms(name="nearly", target_sec=1.999), JobTerms(name="open")

    plan = decide(
        *(state(f"{job.name} {number}", *SPREAD_OUT, job=job) for job in (nearly, open_end) for number in (1, 2))
    )

    gains_sec = {batch.workload: batch.reason.gain_sec for batch in plan.batches}
    assert all(0 < gains_sec[f"nearly {number}"] <= 0.001 for number in (1, 2))
    assert all(gains_sec[f"open {number}"] > 0.01 for number in (1, 2))
    assert [name.split()[0] for name in names(plan)[:2]] == ["open", "open"]


def test_a_workload_that_has_all_it_was_asked_for_is_not_called_exhausted() -> None:
    """Exhaustion depends on the workload's remaining gain, not on its job's target."""
    job = JobTerms(target_sec=0.9995)

    plan = decide(state("w", *SPREAD_OUT * 5, job=job))

    assert names(plan) == ["w"]
    assert plan.finished == {}


def test_a_job_with_a_workload_of_unknown_time_is_not_at_its_target() -> None:
    """The sum of the known times is not yet the job's latency; a closed workload's time does not matter."""
    job = JobTerms(target_sec=5.0)
    known, unknown = state("known", *SPREAD_OUT, job=job), state("unknown", job=job)

    assert set(names(decide(known, unknown))) == {"known", "unknown"}
    finished = decide(known, replace(unknown, is_closed=True)).finished
    assert finished["known"].done is Done.TARGET
    assert finish_text(finished["known"]) == "the job's target of 5000 ms is reached"


def test_the_turn_of_the_least_served_is_explained() -> None:
    """The least served workload gets one batch of four, and the reason names exploration."""
    workloads = [state("a", *SPREAD_OUT, batches=2), state("b", *[1.0] * 16, batches=1)]

    first = decide(*workloads).batches[0]

    assert (first.workload, first.reason.motive) == ("b", Motive.EXPLORATION)
    assert reason_text(first.reason).startswith("fewest batches so far; expected gain")


def test_reasons_are_sentences() -> None:
    """Text for people: the gain, its spread, the horizon and the price."""
    reason = decide(state("a", *SPREAD_OUT, weight=3)).batches[0].reason

    text = reason_text(replace(reason, gain_sec=2e-3, spread_sec=1e-3, horizon=4, device_sec=0.8))

    assert (
        text
        == "expected gain of 4 batches: 2 ms +- 1 ms, called 3 times in the model; each takes about 0.8 s on the device"
    )
    assert "priority" not in reason_text(replace(reason, priority=1.0004))
    assert ", priority 2.5; " in reason_text(replace(reason, priority=2.50001))
    assert finish_text(Finish(done=Done.NOTHING_TO_GAIN, expected_share=0.001, trials=64)) == (
        "the next 64 trials are expected to gain 0.10% of its time"
    )
