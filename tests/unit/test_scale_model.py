"""The simulation of a large fleet agrees with arithmetic in cases simple enough for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.scale import Costs, Scale, builders_needed, site
from benchmarks.scale_model import Site, simulate

PLENTY = Site(
    boards=20, builders=50, cores=4, search_sec=0.02, build_sec=0.08, device_sec=0.1, turn_sec=0.2, batch=8, ahead=1
)


def test_boards_with_plenty_of_builders_wait_for_turns_alone() -> None:
    """Each batch has 0.8 s of measuring and a turn of 0.2 s, without other waits."""
    found = simulate(PLENTY)

    assert found.share == pytest.approx(0.8 / (0.8 + 0.2), rel=0.03)
    assert found.trials_per_sec == pytest.approx(20 * 8, rel=0.05)
    assert found.trials_per_sec == found.turns_per_sec * 8


def test_too_few_builders_set_the_pace() -> None:
    """Cores that never rest make as many candidates as their time allows, and boards wait for them."""
    found = simulate(replace(PLENTY, builders=1, cores=4), batches=40)

    assert found.core_share == pytest.approx(1, abs=0.03)
    assert found.trials_per_sec == pytest.approx(4 / 0.1, rel=0.08)
    assert found.share == pytest.approx(found.trials_per_sec * 0.1 / 20, rel=0.05)


def test_batches_made_ahead_keep_a_board_busy() -> None:
    """Without such batches, a board waits while its next batch is made."""
    assert simulate(replace(PLENTY, ahead=2)).share >= simulate(PLENTY).share


def test_a_shared_queue_is_no_worse_than_one_for_each_machine() -> None:
    """It bounds the gain of work stealing with few builders."""
    short = replace(PLENTY, builders=10, cores=2)

    assert simulate(replace(short, steals=True)).share >= simulate(short).share - 0.01


def test_killed_builders_cost_only_their_share_of_the_pace() -> None:
    """Half of the builders die half-way: the others work on, and every board goes on measuring."""
    short = replace(PLENTY, builders=10, cores=1)
    whole, halved = (simulate(replace(short, deaths=deaths), batches=60) for deaths in (0, 5))

    assert 0.55 * whole.trials_per_sec < halved.trials_per_sec < 0.75 * whole.trials_per_sec


def test_slower_kernels_need_fewer_builders() -> None:
    """At fixed costs, over a simulation that is long enough to leave its start behind."""
    costs = Costs(search_ms=30, build_ms=100, artifact_bytes=20_000, task_bytes=20_000)
    scale = Scale(boards=50, builders=5, batches=12)
    fast, slow = (builders_needed(costs, kernel_ms, scale) for kernel_ms in (1.0, 20.0))

    assert fast > slow >= 1
    assert simulate(site(costs, 20.0, scale, deaths=1), batches=48).trials_per_sec > 0


def test_the_same_seed_gives_the_same_fleet() -> None:
    """Figures in documentation can be made again."""
    assert simulate(PLENTY, seed=3) == simulate(PLENTY, seed=3) != simulate(PLENTY, seed=4)
