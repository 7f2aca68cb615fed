"""Schedules from elsewhere: which are worth a try, and how they are made to fit."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cross.targets.intrinsics import load_intrinsics
from cross.targets.target import host_target
from fleet.cost_model.scoring import Ranker
from fleet.domain.measuring import TensorSpec
from fleet.domain.observation import Observation
from fleet.domain.origin import Origin, has_decisions
from fleet.domain.scope import RecordScope
from fleet.domain.workload import Workload
from fleet.library import Library, Record, StoredWorkload
from fleet.optimizer.recall import recall
from fleet.optimizer.seeds import nearest, seeds_for
from fleet.optimizer.tasks.evolution import Evolution
from fleet.optimizer.tasks.propose import ProposeTask, propose
from fleet.optimizer.tasks.search_state import SearchState
from fleet.optimizer.tasks.transfer import Misfit, adapted, fitted_tiles
from fleet.spaces.likeness import choice_of
from fleet.spaces.space import space_of, static_schedule
from fleet.spaces.tiles import Order, Tile
from fleet.workloads.programs import matmul
from fleet.workloads.traces import replay, trace_json
from fleet.workloads.workload import module_of, workload_of
from tests.unit.quick_compile import compile_quickly

if TYPE_CHECKING:
    from tvm.s_tir import Schedule

TARGET = host_target()
HERE = RecordScope(target_json=TARGET.json, device_model="this board", tvm_version="1")


def row_sums(rows: int, columns: int) -> Workload:
    """Return sums over rows, which MetaSchedule's rules schedule."""
    from tvm import te

    x = te.placeholder((rows, columns), name="x")
    k = te.reduce_axis((0, columns), name="k")
    return workload_of(
        te.create_prim_func([x, te.compute((rows,), lambda i: te.sum(x[i, k], axis=k), name=f"sum_{rows}")]),
        name="sum",
    )


def stored(workload: Workload) -> StoredWorkload:
    return StoredWorkload(
        shash=workload.shash,
        name=workload.name,
        mod_json=workload.mod_json,
        flop=workload.flop,
        args=workload.args,
    )


def seed(workload: Workload, trace: str) -> Observation:
    origin = Origin.of_trace(trace)
    return Observation(workload="w", mod_json=workload.mod_json, trace_json=trace, run_sec=1.0, origin=origin)


def only_adapted(workload: Workload, seed: Observation) -> Schedule:
    """Return the schedule that a seed becomes for a workload."""
    [found] = adapted(SearchState(workload.mod_json, TARGET), [seed])
    assert found.schedule is not None
    return found.schedule


@pytest.fixture(scope="module")
def neighbour() -> tuple[Workload, str]:
    """A workload, and a schedule of it with decisions."""
    load_intrinsics(TARGET)
    workload = row_sums(64, 48)
    found = Evolution(
        state=SearchState(workload.mod_json, TARGET),
        parents=(),
        ranker=Ranker(None, None, records=0),
        population=8,
        generations=1,
        most=4,
        seed=1,
    ).run()
    return workload, next(one.trace_json for one in found if has_decisions(one.trace_json))


@pytest.mark.parametrize(
    ("extent", "tiles", "fitted"),
    [
        (64, [4, 2, 8], [4, 2, 8]),
        (96, [4, 2, 8], [6, 2, 8]),
        (30, [4, 4, 4], [2, 3, 5]),
        (7, [8, 8], [1, 7]),
        (13, [1, 4], [13, 1]),
        (27, [1, 8], [3, 9]),
    ],
)
def test_tiles_of_another_loop_become_the_nearest_divisors(extent: int, tiles: list[int], fitted: list[int]) -> None:
    """The innermost tile is fitted first, and no tile grows to twice its size."""
    assert fitted == fitted_tiles(extent, tiles)


@given(st.integers(1, 5000), st.lists(st.integers(-1, 5000), min_size=1, max_size=6), st.integers(1, 64))
def test_fitted_tiles_match_those_of_the_loop(extent: int, tiles: list[int], most: int) -> None:
    """The number of tiles stays, their product is the extent, and the innermost is no larger than its limit."""
    fitted = fitted_tiles(extent, tiles, most)

    assert len(tiles) == len(fitted)
    assert extent == math.prod(fitted)
    assert len(tiles) == 1 or fitted[-1] <= most


@given(st.integers(1, 64), st.lists(st.integers(1, 16), min_size=1, max_size=4))
def test_inner_tiles_that_divide_are_kept(outermost: int, inner: list[int]) -> None:
    """Only the outermost tile changes."""
    assert [outermost, *inner] == fitted_tiles(outermost * math.prod(inner), [1, *inner])


@pytest.mark.slow
def test_a_schedule_of_another_shape_is_made_to_fit(neighbour: tuple[Workload, str]) -> None:
    """Blocks may have other names in the other shape; the result is an ordinary candidate."""
    workload, trace = neighbour
    wider = row_sums(96, 80)

    schedule = only_adapted(wider, seed(workload, trace))

    assert "EnterPostproc" in trace_json(schedule)
    assert [schedule.mod["main"].params[0].name] == ["x"]


def test_traces_that_do_not_fit_are_skipped(neighbour: tuple[Workload, str]) -> None:
    """Neither a trace of other blocks nor a broken one ends the search; both are counted."""
    workload, trace = neighbour
    broken = ["", "null", "[]", "[[], [1]]", '[[["Nothing", [], [], []]], []]']
    seeds = [seed(workload, text) for text in (trace, *broken)]
    left_out: Counter[Misfit] = Counter()

    assert [] == list(adapted(SearchState(matmul(32).mod_json, TARGET), seeds, left_out))
    assert {Misfit.REFUSED: 1, Misfit.BROKEN: len(broken)} == left_out


@pytest.mark.slow
def test_a_neighbours_tile_is_one_of_the_own_space() -> None:
    """Loops of other lengths are not divided by three vectors; the adapted schedule is legal and computes the same."""
    import tvm

    origin, ours = matmul(96), matmul(64)
    there, here = (space_of(module_of(workload.mod_json), TARGET) for workload in (origin, ours))
    assert there is not None
    assert here is not None
    place = next(
        place
        for place, tile in enumerate(there.choices)
        if isinstance(tile, Tile) and (tile.y, tile.x, tile.vectors, tile.order) == (1, 4, 3, Order.COLUMNS)
    )
    [made] = there.schedules_at([place])

    schedule = only_adapted(ours, seed(origin, trace_json(made)))

    chosen = choice_of(here, schedule)
    assert isinstance(chosen, Tile)
    assert (1, 4, Order.COLUMNS) == (chosen.y, chosen.x, chosen.order)
    assert chosen.vectors in {2, 4}
    left, right = np.random.default_rng(0).standard_normal((2, 64, 64)).astype("float32")
    tensors = [tvm.runtime.tensor(array) for array in (left, right, np.zeros_like(left))]
    compile_quickly(schedule.mod, optimized=True)["main"](*tensors)
    np.testing.assert_allclose(left @ right, tensors[-1].numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_a_schedule_of_a_space_without_knobs_is_replayed_as_it_is() -> None:
    """Such a schedule has nothing to choose. Blocks may have other names."""
    import tvm

    origin, ours = row_sums(64, 48), row_sums(96, 48)
    made = static_schedule(module_of(origin.mod_json), TARGET)
    assert made is not None

    schedule = only_adapted(ours, seed(origin, trace_json(made)))

    renamed = trace_json(made).replace("sum_64", "sum_96")
    tvm.ir.assert_structural_equal(replay(module_of(ours.mod_json), renamed).mod, schedule.mod)


@pytest.mark.slow
def test_a_first_batch_begins_with_the_best_of_similar_workloads(
    neighbour: tuple[Workload, str], tmp_path: Path
) -> None:
    """Seeds go from a library with records of another shape to the proposals of a workload without any."""
    workload, trace = neighbour
    wider = row_sums(96, 80)
    with Library.open(tmp_path / "library.sqlite") as library:
        library.add_workload(stored(workload))
        library.add_record(
            Record(
                workload=workload.shash,
                trace_json=trace,
                scope=HERE,
                run_secs=(1e-3,),
            )
        )

        [progress] = recall(library, [wider], HERE)
        task = ProposeTask(
            mod_json=wider.mod_json, target=TARGET, seeds=progress.seeds, count=4, population=8, generations=1
        )

    fitted = next(adapted(SearchState(wider.mod_json, TARGET), progress.seeds))
    assert fitted.trace_json == propose(task)[0].trace_json


def test_neighbours_have_the_same_operators_and_the_nearest_shapes() -> None:
    """A pool is no neighbour of a convolution, nor is one with another number of dimensions."""

    def named(name: str, *shape: int) -> StoredWorkload:
        args = (TensorSpec(shape, "float32"), TensorSpec(shape, "float32", is_output=True))
        return StoredWorkload(shash=f"{name}{shape}", name=name, mod_json="{}", flop=1.0, args=args)

    one = named("softmax", 64, 128)
    asked = Workload(name="softmax", weight=1, mod_json="{}", shash="own", flop=1.0, args=one.args)
    far, other = named("softmax", 8, 8), named("max_pool2d", 64, 128)
    near, deep = named("softmax1", 64, 256), named("softmax", 1, 64, 128)

    assert [one, near, far] == nearest(asked, [deep, far, other, near, one])


def test_the_nearest_neighbour_has_a_length_of_one_where_the_workload_has() -> None:
    """A depthwise convolution gets seeds from another one, not from a 1x1 convolution of its own size."""

    def convolution(channels: int, *weights: int) -> StoredWorkload:
        args = (TensorSpec((1, channels, 14, 14), "float32"), TensorSpec((channels, *weights), "float32"))
        return StoredWorkload(shash=f"{channels}{weights}", name="conv2d", mod_json="{}", flop=1.0, args=args)

    of_its_size, depthwise = convolution(576, 96, 1, 1), convolution(16, 1, 3, 3)
    args = convolution(576, 1, 3, 3).args
    asked = Workload(name="conv2d", weight=1, mod_json="{}", shash="own", flop=1.0, args=args)

    assert [depthwise, of_its_size] == nearest(asked, [of_its_size, depthwise])


def test_only_a_neighbours_good_schedules_are_worth_a_try(tmp_path: Path) -> None:
    """If one schedule is far ahead, the second best is not tried."""
    spec = TensorSpec((8, 8), "float32")
    stored_ones = [
        StoredWorkload(shash=shash, name="softmax", mod_json=f'"{shash}"', flop=1.0, args=(spec,))
        for shash in ("1", "2")
    ]
    asked = Workload(name="softmax", weight=1, mod_json="{}", shash="own", flop=1.0, args=(spec,))
    times = {"1": (1.0e-3, 1.05e-3), "2": (1.0e-3, 2.0e-3)}
    with Library.open(tmp_path / "library.sqlite") as library:
        library.add_workloads(stored_ones)
        library.add_records(
            Record(workload=shash, trace_json=f"[[], [{place}]]", scope=HERE, run_secs=(sec,))
            for shash, secs in times.items()
            for place, sec in enumerate(secs)
        )

        seeds = seeds_for(library, asked, HERE, stored_ones)

    assert [("1", 0), ("1", 1), ("2", 0)] == [(seed.mod_json[1], int(seed.trace_json[6])) for seed in seeds]


@pytest.mark.parametrize("target_json", ["", '{"kind":"llvm","mtriple":"armv7l-linux-gnueabi"}'])
def test_records_of_a_target_that_we_refuse_are_no_start(tmp_path: Path, target_json: str) -> None:
    """A MetaSchedule database may have records without a target, or with one that we do not build for. Once such
    records of a workload were imported, no job with this workload could begin.
    """
    spec = TensorSpec((8, 8), "float32")
    asked = Workload(name="softmax", weight=1, mod_json="{}", shash="1", flop=1.0, args=(spec,))
    elsewhere = RecordScope(target_json=target_json, device_model="another board", tvm_version="1")
    with Library.open(tmp_path / "library.sqlite") as library:
        library.add_workload(stored(asked))
        library.add_record(Record(workload="1", trace_json="[[], []]", scope=elsewhere, run_secs=(1e-3,)))

        [progress] = recall(library, [asked], HERE)

    assert progress.seeds == ()
