"""The schedule of a recurrent layer: tiles of the state's columns in registers, and the gates on whole vectors.

Chains run in parallel. A single chain shares the tiles of each step among the cores if the weights of the state are
more than one core's cache holds: the cores are started once, and wait for each other at the end of each product.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fleet.models.recurrent_program import ATTRIBUTE, CHAIN, PRODUCT, SECOND, STEP, WEIGHTS
from fleet.spaces.facts import ProcessorFacts
from fleet.spaces.loops import extent, vector_width
from fleet.spaces.tiles import divisors

if TYPE_CHECKING:
    from tvm.ir import IRModule
    from tvm.s_tir import Schedule
    from tvm.s_tir.schedule import LoopRV, SBlockRV

LAUNCH, BARRIER = "pragma_parallel_launch_point", "pragma_parallel_barrier_when_finish"
"""TVM's annotations: all cores run the loop; they wait for each other behind the loop."""

_FEWEST_SHARED_BYTES = 1 << 18
"""Of weights, read in a step: reading fewer takes no longer than the cores take to meet. On Zen 4, a GRU of 128 columns
is as fast either way, an LSTM of 128 a quarter faster with two cores, larger layers 1.5 to 2 times as fast. Where other
programs take the cores, waiting costs more.
"""

_FLOAT32_BYTES = 4

_SUMS = 0.6
"""Share of the registers that sums take; the others hold weights and the state."""


def is_recurrence(mod: IRModule) -> bool:
    """Tell whether a function was made by `fleet.models.recurrent_program`."""
    attributes = mod["main"].attrs
    return bool(attributes and ATTRIBUTE in attributes)


def recurrence_schedule(mod: IRModule, facts: ProcessorFacts) -> Schedule:
    """Return the schedule of a recurrent layer."""
    from tvm.s_tir import Schedule

    schedule = Schedule(mod)
    chain, step = schedule.get_sblock(CHAIN), schedule.get_sblock(STEP)
    stages = {schedule.get(block).name_hint: block for block in schedule.get_child_blocks(chain)}
    stages |= {schedule.get(block).name_hint: block for block in schedule.get_child_blocks(step)}
    products = [stages.pop(name) for name in (PRODUCT, SECOND) if name in stages]
    del stages[STEP]
    sums = [_tile_product(schedule, block, facts) for block in products]
    for block in stages.values():
        _vectorize(schedule, block, facts)
    _share(schedule, chain, step, products, facts.cores)
    for block, loop in zip(products, sums, strict=True):
        schedule.decompose_reduction(block, loop)  # the last step: TVM vectorizes no loop around one taken apart
    return schedule


def _tile_product(schedule: Schedule, block: SBlockRV, facts: ProcessorFacts) -> LoopRV:
    """Put the sum outside of a tile that fits the registers; return its loop."""
    _, rows, gates, columns, sums = schedule.get_loops(block)
    lanes = vector_width(extent(schedule, columns), facts.lanes)
    vectors = extent(schedule, columns) // lanes
    of_rows, of_vectors = _register_tile(extent(schedule, rows), extent(schedule, gates), vectors, facts)
    row_tiles, rows = schedule.split(rows, [None, of_rows])
    vector_tiles, groups, lane = schedule.split(columns, [None, of_vectors, lanes])
    schedule.reorder(row_tiles, vector_tiles, sums, rows, gates, groups, lane)
    schedule.vectorize(lane)
    for loop in (rows, gates, groups, row_tiles, vector_tiles):
        schedule.unroll(loop)
    return sums


def _register_tile(rows: int, gates: int, vectors: int, facts: ProcessorFacts) -> tuple[int, int]:
    """Return the rows and the vectors of a gate that are summed at once: the most that registers hold."""
    most = int(_SUMS * facts.registers)
    fitting = [
        (of_rows, of_vectors)
        for of_rows in divisors(rows, rows)
        for of_vectors in divisors(vectors, vectors)
        if of_rows * of_vectors * gates <= most
    ]
    # Of as many sums, more rows: each weight is read once for all of them.
    return max(fitting, key=lambda tile: (math.prod(tile), tile[0]), default=(1, 1))


def _vectorize(schedule: Schedule, block: SBlockRV, facts: ProcessorFacts) -> None:
    """Compute whole vectors of a stage's innermost axis."""
    loop = schedule.get_loops(block)[-1]
    lanes = vector_width(extent(schedule, loop), facts.lanes)
    if lanes > 1:
        _, lane = schedule.split(loop, [None, lanes])
        schedule.vectorize(lane)


def _share(schedule: Schedule, chain: SBlockRV, step: SBlockRV, products: Sequence[SBlockRV], cores: int) -> None:
    """Share the chains among the cores, or of a single one the tiles of each step."""
    chains = schedule.fuse(*schedule.get_loops(chain))
    if extent(schedule, chains) > 1:
        schedule.parallel(chains)
        return
    tiles = [schedule.get_loops(block)[0] for block in products]
    if cores == 1 or extent(schedule, tiles[0]) == 1 or _read_bytes(schedule, products[0]) < _FEWEST_SHARED_BYTES:
        return
    for loop in tiles:
        schedule.parallel(loop)
        schedule.annotate(loop, BARRIER, 1)
    (steps,) = schedule.get_loops(step)
    schedule.annotate(steps, LAUNCH, 1)


def _read_bytes(schedule: Schedule, product: SBlockRV) -> int:
    """Return the bytes of weights that a step reads, once for each sequence."""
    rows = next(int(iterator.dom.extent) for iterator in schedule.get(product).iter_vars[1:])
    weights = schedule.mod["main"].params[WEIGHTS]
    return rows * math.prod(int(size) for size in weights.shape) * _FLOAT32_BYTES
