"""The choice that is most like another function's: always one of the own space, and the same where sizes allow it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cross.targets.target import host_target
from fleet.graph.winograd import winograd
from fleet.graph.winograd_algorithm import Filtering
from fleet.spaces.attention import AttentionTile
from fleet.spaces.column_tiles import ColumnTile
from fleet.spaces.design_space import Knobs, Space, choice_text
from fleet.spaces.likeness import choice_of, distance, nearest
from fleet.spaces.rows import RowTile
from fleet.spaces.space import space_of
from fleet.spaces.tiles import Order, Tile
from fleet.spaces.winograd import Cut
from fleet.workloads.programs import matmul
from fleet.workloads.traces import replay, trace_json
from fleet.workloads.workload import module_of

if TYPE_CHECKING:
    from tvm.ir import IRModule

HOST = host_target()

SIZES = st.integers(1, 64)
TILES = st.builds(
    Tile,
    y=SIZES,
    x=SIZES,
    vectors=SIZES,
    lanes=st.sampled_from([4, 8, 16]),
    order=st.sampled_from(Order),
    unroll=st.sampled_from([1, 4]),
    depth=st.sampled_from([0, 128, 512]),
)
KNOBS: st.SearchStrategy[Knobs] = st.one_of(
    TILES,
    st.builds(Cut, TILES, SIZES, SIZES),
    st.builds(AttentionTile, SIZES, SIZES, SIZES),
    st.builds(RowTile, partial_results=SIZES),
    st.builds(ColumnTile, row=SIZES, vectors=SIZES, lanes=st.sampled_from([4, 8, 16]), order=st.sampled_from(Order)),
)


def winograd_convolution(size: int) -> IRModule:
    import tvm
    from tvm import te

    data = te.placeholder((1, size, size, 16), name="data")
    kernel = te.placeholder((6, 6, 16, 32), name="kernel")
    return tvm.IRModule(
        {"main": te.create_prim_func([data, kernel, winograd(data, kernel, Filtering(4), (size, size), (1, 1))])}
    )


def space_in(mod: IRModule) -> Space:
    space = space_of(mod, HOST)
    assert space is not None
    return space


@given(KNOBS, st.lists(KNOBS))
def test_the_nearest_has_the_same_knobs(wanted: Knobs, choices: list[Knobs]) -> None:
    """No choice is nearer; if none has these knobs, there is no nearest."""
    place = nearest(wanted, choices)

    alike = [choice for choice in choices if type(choice) is type(wanted)]
    assert (place is None) is (not alike)
    if place is not None:
        assert distance(wanted, choices[place]) == min(distance(wanted, choice) for choice in alike)


@given(KNOBS, st.lists(KNOBS), st.integers(0))
def test_a_choice_that_both_have_stays_as_it_is(wanted: Knobs, others: list[Knobs], at: int) -> None:
    """The choice's position does not matter."""
    choices = [*others[: at % 8], wanted, *others[at % 8 :]]

    place = nearest(wanted, choices)

    assert place is not None
    assert wanted == choices[place]


def test_numbers_are_near_by_their_ratio() -> None:
    """A tile of 14 rows becomes one of 16, not of 7; another order of loops is farther than one row more or less."""
    tile = Tile(y=1, x=14, vectors=2, lanes=16, order=Order.ROWS)
    sixteen, seven = (Tile(y=1, x=rows, vectors=2, lanes=16, order=Order.ROWS) for rows in (16, 7))
    turned = Tile(y=1, x=14, vectors=2, lanes=16, order=Order.COLUMNS)

    assert 1 == nearest(tile, [seven, sixteen])
    assert 1 == nearest(tile, [turned, Tile(y=1, x=13, vectors=2, lanes=16, order=Order.ROWS)])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["product", "winograd"])
def test_a_schedules_knobs_are_found_from_its_trace(kind: str) -> None:
    """A record keeps only the trace of a choice. If two choices make one program, either is found."""
    import tvm

    mod = module_of(matmul(96).mod_json) if kind == "product" else winograd_convolution(12)
    space = space_in(mod)
    places = range(0, len(space.choices), max(1, len(space.choices) // 6))

    for made in space.schedules_at(places):
        found = choice_of(space, replay(mod, trace_json(made)))
        assert found is not None
        [again] = space.schedules_at([space.choices.index(found)])
        tvm.ir.assert_structural_equal(made.mod, again.mod)


@pytest.mark.slow
def test_a_hand_written_schedule_has_no_knobs() -> None:
    """Loops that were split by hand have no knobs."""
    from tvm.s_tir import Schedule

    mod = module_of(matmul(96).mod_json)
    schedule = Schedule(mod)
    schedule.split(schedule.get_loops(schedule.get_sblock("C"))[0], [None, 4])

    assert choice_of(space_in(mod), schedule) is None


@pytest.mark.slow
def test_a_choice_that_a_record_names_is_found_without_a_schedule() -> None:
    """No schedule is applied, which takes 10 ms; knobs of another version, which name no choice, are ignored."""
    space = space_in(module_of(matmul(96).mod_json))
    place = len(space.choices) // 2
    [made] = space.schedules_at([place])

    def refuse(places: Sequence[int]) -> NoReturn:
        raise AssertionError("a schedule is applied")

    named = choice_of(replace(space, schedules_at=refuse), made, choice_text(space.choices[place]))

    assert named == space.choices[place]
    assert choice_of(space, made, "other knobs") == choice_of(space, made)
