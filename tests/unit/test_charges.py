"""Device time of shared trials is divided among the jobs that share them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.domain.charges import charged_sec, sharing

JOBS = [f"jobs/{number}" for number in range(4)]

TRIALS = st.lists(st.tuples(st.sampled_from(JOBS), st.lists(st.sampled_from(JOBS)), st.floats(0.0, 1e3)), max_size=30)


@given(trials=TRIALS)
def test_all_jobs_together_are_charged_each_second_once(trials: list[tuple[str, list[str], float]]) -> None:
    """Whichever jobs share a trial, in any order, and however often one is named."""
    charged = {
        job: math.fsum(
            charged_sec({"device_sec": sec, **sharing(others)}, owner=owner, job=job) for owner, others, sec in trials
        )
        for job in JOBS
    }

    assert math.fsum(charged.values()) == pytest.approx(math.fsum(sec for _, _, sec in trials))
    for owner, others, sec in trials:
        assert charged[owner] >= sec / (1 + len(set(others))) - 1e-9


@pytest.mark.parametrize(("count", "part_sec"), [(0, 6.0), (1, 3.0), (2, 2.0)])
def test_each_of_n_jobs_is_charged_one_nth(count: int, part_sec: float) -> None:
    """Those that do not share the trial are charged nothing."""
    provenance = {"device_sec": 6.0, **sharing(JOBS[1 : 1 + count])}

    charged = [charged_sec(provenance, owner=JOBS[0], job=job) for job in JOBS]

    assert charged == [part_sec] * (1 + count) + [0.0] * (3 - count)


@pytest.mark.parametrize("provenance", [{}, {"device_sec": "1"}, {"device_sec": math.nan}, {"device_sec": -1.0}])
def test_a_record_without_a_time_costs_nothing(provenance: dict[str, object]) -> None:
    """Records of older versions, and of other programs."""
    assert charged_sec(provenance, owner=JOBS[0], job=JOBS[0]) == 0.0


def test_an_odd_list_of_sharers_counts_as_none() -> None:
    """The owner is charged in full."""
    assert charged_sec({"device_sec": 2.0, "shared_with": JOBS[1]}, owner=JOBS[0], job=JOBS[0]) == 2.0
