"""Products of 8-bit integers: the tiles of `fleet.spaces.tiles`, each step of which is one dot-product instruction.

The reduction is cut by the instruction's group, 4 for VNNI and dot products, and the weights are packed so that a
vector of them is a group for each column: [columns / tile.columns, ..., sums / group, tile.columns, group].
"""

from __future__ import annotations

from dataclasses import replace

from tvm.ir import Expr
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV
from tvm.tirx import IndexMap

from cross.targets.integer_units import IntegerUnit
from fleet.spaces.blocks import Axis, Product, Role, result_of
from fleet.spaces.facts import ProcessorFacts
from fleet.spaces.product import tile_result
from fleet.spaces.tiles import Tile, tiles, width_of

_SUM_BYTES = 4
_STACK_BYTES = 1024
"""More than 16 vectors of sums gain nothing, and TVM's own lowering takes them from the heap: twice the time."""


def dot_tiles(product: Product, facts: ProcessorFacts, unit: IntegerUnit) -> list[Tile]:
    """Return all sensible tiles of a product that the instruction computes, the most promising first.

    Returns:
        None at all where the dtypes are not those of the instruction, or it does not divide sums and columns.
    """
    if (product.data_dtype, product.operand_dtype, product.dtype) != (unit.data_operand, unit.weights, "int32"):
        return []
    if product.column_axis is None or product.inner_sum is None:
        return []
    inner = product.axes[product.inner_sum[0]].extent
    if inner % unit.group:
        return []
    others = [axis for position, axis in enumerate(product.axes) if position != product.inner_sum[0]]
    grouped = (*others, Axis(Role.SUM, inner // unit.group))
    as_unit = replace(
        facts,
        lanes=unit.widths[0],
        latency=unit.latency,
        registers=facts.registers - (unit.latency == 1),  # products pass through one before they are added
        has_scalar_operands=unit.has_scalar_operand,
    )
    found = tiles(replace(product, axes=grouped), as_unit)
    return [tile for tile in found if tile.lanes in unit.widths and _fits(tile, product)]


def _fits(tile: Tile, product: Product) -> bool:
    """Tell whether TVM generates good code for a tile.

    A smaller last tile or vector would have a condition in it, with which TVM recognizes no instruction.
    """
    size_bytes = tile.y * tile.x * tile.columns * _SUM_BYTES
    return width_of(product) % tile.x == 0 and not tile.last and size_bytes <= _STACK_BYTES


def schedule_dot_product(schedule: Schedule, block: SBlockRV, product: Product, tile: Tile, unit: IntegerUnit) -> None:
    """Apply a tile to a product with constant weights, and to everything computed before and after it."""
    _pack(schedule, block, product, tile, unit)
    result = result_of(schedule, block)
    outer, inner = tile_result(schedule, result, product, tile)
    schedule.compute_at(block, outer[-1], preserve_unit_loops=True)
    loops = schedule.get_loops(block)[len(outer) :]
    grouped = -1 if product.inner_sum is None else product.inner_sum[0]
    pairs = list(enumerate(zip(loops, product.axes, strict=True)))
    sums = [loop for position, (loop, axis) in pairs if axis.role is Role.SUM and position != grouped]
    spatial = [loop for _, (loop, axis) in pairs if axis.role is not Role.SUM]
    vectors, lanes = schedule.split(spatial[-1], [tile.vectors, tile.lanes])
    outer_sum, inner_sum, group = schedule.split(loops[grouped], [None, tile.unroll, unit.group])
    steps = [*sums, outer_sum, inner_sum]
    schedule.reorder(*steps, *spatial[:-1], vectors, lanes, group)
    for loop in (inner_sum, *spatial[:-1], vectors):
        schedule.unroll(loop)
    schedule.vectorize(inner[-1])
    for loop in inner[:-1]:
        schedule.unroll(loop)
    schedule.parallel(schedule.fuse(*outer))
    begin = schedule.decompose_reduction(block, steps[0])
    *rows, columns = schedule.get_loops(begin)[-len(spatial) - 1 :]
    schedule.vectorize(columns)
    for loop in rows:
        schedule.unroll(loop)


def use_instruction(schedule: Schedule, name: str, tile: Tile, unit: IntegerUnit) -> None:
    """Tensorize a scheduled product, as the last step: TVM loses track of the surrounding blocks.

    Args:
        name: of the block that was the product.
    """
    loops = list(schedule.get_loops(schedule.get_sblock(f"{name}_update")))
    schedule.tensorize(loops[-2], unit.intrinsic(tile.lanes))  # lanes and groups are the innermost


def _pack(schedule: Schedule, block: SBlockRV, product: Product, tile: Tile, unit: IntegerUnit) -> None:
    if product.column_axis is None or product.inner_sum is None:
        return
    column_axis, sum_axis, size, group = product.column_axis, product.inner_sum[1], tile.columns, unit.group

    def packed(*indices: Expr) -> list[Expr]:
        counts = [index // group if position == sum_axis else index for position, index in enumerate(indices)]
        others = [index for position, index in enumerate(counts) if position != column_axis]
        return [indices[column_axis] // size, *others, indices[column_axis] % size, indices[sum_axis] % group]

    shape = schedule.get(block).reads[product.weights].source.shape
    index_map = IndexMap.from_func(packed, ndim=len(shape), index_dtype=str(shape[0].ty.dtype))
    schedule.transform_layout(block, ("read", product.weights), index_map)
