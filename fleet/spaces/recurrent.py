"""Schedule of a recurrent layer: tiles of the state's columns in registers, and vectorized gates.

Chains run in parallel. A single chain distributes the tiles of each step to the cores if the weights of the state
exceed the cache of one core. The cores are started once and synchronize after each product.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvm.ir import IRModule
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from fleet.models.recurrent_program import ATTRIBUTE, CHAIN, PRODUCT, SECOND, STEP, WEIGHTS
from fleet.spaces.design_space import Space
from fleet.spaces.facts import ProcessorFacts
from fleet.spaces.loops import extent, vector_width
from fleet.spaces.tiles import divisors

LAUNCH, BARRIER = "pragma_parallel_launch_point", "pragma_parallel_barrier_when_finish"
"""TVM's annotations: all cores run the loop; a barrier after the loop."""

_FEWEST_SHARED_BYTES = 1 << 18
"""Weights read per step from which on a barrier pays off. On Zen 4 with two cores, sharing makes no difference for a
GRU of 128 columns. An LSTM of 128 columns is 25 % faster, and larger layers are 1.5 to 2 times as fast. Barriers cost
more if other programs occupy the cores.
"""

_FLOAT32_BYTES = 4

_SUMS = 0.6
"""Share of the registers for sums; the others hold weights and the state."""


def is_recurrence(mod: IRModule) -> bool:
    """Tell whether a module's function is a program of `fleet.models.recurrent_program`."""
    attributes = mod["main"].attrs
    return bool(attributes and ATTRIBUTE in attributes)


def recurrence_space(mod: IRModule, facts: ProcessorFacts) -> Space | None:
    """Return the only schedule of a recurrent layer; None for any other function."""
    if not is_recurrence(mod):
        return None
    return Space(rule="recurrence", choices=(), schedules_at=lambda _: iter([_schedule(mod, facts)]))


def _schedule(mod: IRModule, facts: ProcessorFacts) -> Schedule:
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
        schedule.decompose_reduction(block, loop)  # last: TVM cannot vectorize a loop around a decomposed one
    return schedule


def _tile_product(schedule: Schedule, block: SBlockRV, facts: ProcessorFacts) -> LoopRV:
    """Move the reduction outside of a tile that fits the registers; return its loop."""
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
    """Return the largest tile (rows, vectors of a gate) with sums that fit the registers."""
    most = int(_SUMS * facts.registers)
    fitting = [
        (of_rows, of_vectors)
        for of_rows in divisors(rows, rows)
        for of_vectors in divisors(vectors, vectors)
        if of_rows * of_vectors * gates <= most
    ]
    # For equal numbers of sums prefer more rows, which share each load of a weight.
    return max(fitting, key=lambda tile: (math.prod(tile), tile[0]), default=(1, 1))


def _vectorize(schedule: Schedule, block: SBlockRV, facts: ProcessorFacts) -> None:
    """Vectorize a stage's innermost axis."""
    loop = schedule.get_loops(block)[-1]
    lanes = vector_width(extent(schedule, loop), facts.lanes)
    if lanes > 1:
        _, lane = schedule.split(loop, [None, lanes])
        schedule.vectorize(lane)


def _share(schedule: Schedule, chain: SBlockRV, step: SBlockRV, products: Sequence[SBlockRV], cores: int) -> None:
    """Parallelize over the chains, or over the tiles of each step if there is a single chain."""
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
    """Return the size of the weights read in a step [bytes], counted once per sequence."""
    rows = next(int(iterator.dom.extent) for iterator in schedule.get(product).iter_vars[1:])
    weights = schedule.mod["main"].params[WEIGHTS]
    return rows * math.prod(int(size) for size in weights.shape) * _FLOAT32_BYTES
