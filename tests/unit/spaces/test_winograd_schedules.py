"""Schedules of Winograd convolutions: the same numbers for all cuts, packed weights, and no bare loop nest."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest

from cross.targets.target import Target, host_target, make_target, parse_target
from fleet.graph.marking import ATTRIBUTE as CONSTANTS
from fleet.graph.winograd import WinogradStage, winograd
from fleet.graph.winograd_algorithm import Filtering
from fleet.spaces.blocks import find_product
from fleet.spaces.facts import ProcessorFacts, processor_facts
from fleet.spaces.fallback_rules import unscheduled
from fleet.spaces.packing import pack_all, packings_of
from fleet.spaces.space import finished
from fleet.spaces.tiles import Order
from fleet.spaces.winograd import Cut, cuts, winograd_schedules, winograd_stages
from fleet.workloads.traces import trace_json

if TYPE_CHECKING:
    from tvm.ir import IRModule

    from fleet.spaces.blocks import Product

pytestmark = pytest.mark.slow
HOST = host_target()


def convolution(outputs: int, size: tuple[int, int], channels: int, filters: int) -> IRModule:
    """Return a convolution with bias and activation, padded by 1, its weights constant."""
    import tvm
    from tvm import te, topi

    data = te.placeholder((1, *size, channels), name="data")
    kernel = te.placeholder((outputs + 2, outputs + 2, channels, filters), name="kernel")
    bias = te.placeholder((1, 1, 1, filters), name="bias")
    found = topi.nn.relu(topi.add(winograd(data, kernel, Filtering(outputs), size, (1, 1)), bias))
    return tvm.IRModule({"main": te.create_prim_func([data, kernel, bias, found]).with_attr(CONSTANTS, [1, 2])})


def run(mod: IRModule, arrays: list[np.ndarray]) -> np.ndarray:
    import tvm

    tensors = [tvm.runtime.tensor(array) for array in arrays]
    tvm.compile(finished(mod, HOST), target=make_target(HOST))["main"](*tensors)
    return np.asarray(tensors[-1].numpy())


def product_of(mod: IRModule) -> Product:
    from tvm.s_tir import Schedule

    schedule = Schedule(mod)
    found = find_product(schedule.get(schedule.get_sblock(winograd_stages(schedule)[WinogradStage.PRODUCT])))
    assert found is not None
    return found


def facts_of(target: Target) -> ProcessorFacts:
    facts = processor_facts(target)
    assert facts is not None
    return facts


@pytest.mark.parametrize(("outputs", "size"), [(4, (12, 10)), (2, (7, 9))])
def test_every_way_to_cut_computes_the_same(outputs: int, size: tuple[int, int]) -> None:
    """The first cuts by rows and by columns are right, also if tiles exceed the result."""
    from tvm.s_tir import Schedule

    mod = convolution(outputs, size, 16, 32)
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal([int(n) for n in param.shape]).astype("float32") for param in mod["main"].params]
    product, facts = product_of(mod), facts_of(HOST)

    expected = run(mod, arrays)

    for order in Order:
        cut = next(cut for cut in cuts(product, facts) if cut.tile.order is order)
        (schedule,) = winograd_schedules(
            Schedule(mod), winograd_stages(Schedule(mod)), product, [cut], facts, packs=True
        )
        packings = packings_of(schedule, mod)
        assert [packing.argument for packing in packings] == [1]
        assert not unscheduled(schedule)
        np.testing.assert_allclose(run(schedule.mod, pack_all(arrays, packings)), expected, rtol=1e-4, atol=1e-4)


def test_shared_cuts_leave_schedules_unchanged() -> None:
    """Each step of a schedule is the same, whether it is made alone or after others."""
    from tvm.s_tir import Schedule

    mod = convolution(4, (12, 10), 16, 32)
    product, facts = product_of(mod), facts_of(HOST)
    stages, some = winograd_stages(Schedule(mod)), cuts(product, facts)[:6]

    def traces(chosen: list[Cut]) -> list[str]:
        return [
            trace_json(schedule)
            for schedule in winograd_schedules(Schedule(mod), stages, product, chosen, facts, packs=True)
        ]

    assert len({(cut.tile.columns, cut.rows, cut.columns) for cut in some}) < len(some)
    assert [traces([cut])[0] for cut in some] == traces(some)


@pytest.mark.parametrize("mcpu", ["x86-64-v3", "x86-64-v4"])
def test_blocks_fit_a_cache_and_occupy_all_cores(mcpu: str) -> None:
    """With many pixels, blocks of rows pass all stages; with few, all data comes first, then columns of the weights."""
    facts = facts_of(parse_target(json.dumps({"kind": "llvm", "mcpu": mcpu, "num-cores": 2})))
    large, small = (product_of(convolution(4, (side, side), 64, 64)) for side in (112, 8))

    by_rows, by_columns = cuts(large, facts)[0], cuts(small, facts)[0]

    assert by_rows.tile.order is Order.ROWS
    assert 36 * by_rows.rows * by_rows.columns * 128 * 4 < facts.l2_bytes
    assert 28 * 28 // (by_rows.rows * by_rows.columns) >= facts.cores
    assert by_columns.tile.order is Order.COLUMNS
