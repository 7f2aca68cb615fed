"""Analyses the blocks of a scheduled program: products, the roles of their loops, neighbouring blocks."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fleet.graph.marking import ATTRIBUTE as CONSTANTS

if TYPE_CHECKING:
    from tvm.ir import Expr, IRModule, TensorLoad
    from tvm.s_tir import SBlock, Schedule
    from tvm.s_tir.schedule import SBlockRV
    from tvm.tirx import Buffer, Var


class Role(enum.Enum):
    """Role of a loop of a product. A product sums data times weights over its reductions."""

    BATCH = "batch"
    """Loop that indexes both operands and the result: every step is a separate product."""

    ROW = "row"
    """Loop that indexes the data, not the weights: pixels of a convolution, rows of a matrix."""

    COLUMN = "column"
    """Loop that indexes the weights, not the data: output channels, columns of a matrix."""

    SUM = "sum"


@dataclass(frozen=True, slots=True)
class Axis:
    """One loop of a block."""

    role: Role
    extent: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """A block that computes result += data * weights."""

    axes: tuple[Axis, ...]
    """Axes in the order of the block's loops."""

    data: int
    """Index of the data among the block's reads."""

    weights: int
    """Index of the weights among its reads."""

    column_axis: int | None
    """Dimension of the weights that the innermost column runs along with stride 1; None: no such."""

    dtype: str
    """Dtype of the result."""

    operand_dtype: str
    """Dtype of the weights."""

    data_dtype: str
    inner_sum: tuple[int, int] | None
    """The sum that the data has innermost, stride 1: which of the axes, and which dimension of the weights it runs
    along; None: no such."""

    data_bytes: int
    weights_bytes: int
    """Sizes of the two operands' buffers."""

    def extent(self, role: Role) -> int:
        """Return the product of the extents of all loops in a role."""
        total = 1
        for axis in self.axes:
            total *= axis.extent if axis.role is role else 1
        return total


def child_blocks(schedule: Schedule) -> list[SBlockRV]:
    """Return the blocks of the function in order; none if the function itself is a block, as TVM's scatters are."""
    outermost = schedule.mod["main"].body.block.name_hint
    return list(schedule.get_child_blocks(schedule.get_sblock(outermost)))


def is_reduction(block: SBlock) -> bool:
    """Tell whether a block sums, or takes a maximum, over some of its loops."""
    return block.init is not None


def is_copy(block: SBlock) -> bool:
    """Tell whether a block only copies elements from one place to another."""
    from tvm.ir import TensorLoad
    from tvm.tirx import BufferStore

    return isinstance(block.body, BufferStore) and isinstance(block.body.value, TensorLoad)


def result_of(schedule: Schedule, block: SBlockRV) -> SBlockRV:
    """Return the block that writes a reduction's results: its only user if the loops are the same, or a new copy."""
    return only_follower(schedule, block) or schedule.cache_write(block, 0, "global")


def only_follower(schedule: Schedule, block: SBlockRV) -> SBlockRV | None:
    """Return the only user of a block's results, if it is element-wise with equal indices."""
    users = list(schedule.get_consumers(block))
    return users[0] if len(users) == 1 and _follows(schedule.get(users[0]), schedule.get(block)) else None


def _follows(user: SBlock, block: SBlock) -> bool:
    """Tell whether a block computes each element from the other block's element of the same index, for all elements."""
    written = block.writes[0].source
    own = [iterator.var for iterator in user.iter_vars]
    if [_constant(iterator.dom.extent) for iterator in user.iter_vars] != [_constant(n) for n in written.shape]:
        return False
    reads = [region.region for region in user.reads if region.source.same_as(written)]
    return not is_reduction(user) and all(
        len(region) == len(own) and all(index.min.same_as(var) for index, var in zip(region, own, strict=True))
        for region in reads
    )


def find_product(block: SBlock) -> Product | None:
    """Return the product of a block, or None if it is not a sum of products of two tensors, or a size is dynamic."""
    from tvm.ir import TensorLoad
    from tvm.ir.prim import expr as prim
    from tvm.tirx import BufferStore, IterVar

    store = block.body
    if not is_reduction(block) or not isinstance(store, BufferStore) or not isinstance(store.value, prim.Add):
        return None
    terms = [term for term in (store.value.a, store.value.b) if not _reads(term, store.buffer)]
    if len(terms) != 1 or not isinstance(terms[0], prim.Mul):
        return None
    left, right = (_without_cast(factor) for factor in (terms[0].a, terms[0].b))
    if not isinstance(left, TensorLoad) or not isinstance(right, TensorLoad):
        return None
    extents = [_constant(iterator.dom.extent) for iterator in block.iter_vars]
    if None in extents:
        return None
    used_left, used_right = ({name for index in load.indices for name in names_in(index)} for load in (left, right))
    spatial = [it for it in block.iter_vars if it.iter_type == IterVar.DataPar]
    columns_in_left = [it for it in spatial if it.var.name in used_left and it.var.name not in used_right]
    last = spatial[-1].var.name if spatial else ""
    if columns_in_left and last in used_left and last not in used_right:  # the innermost loop belongs to the weights
        left, right, used_left, used_right = right, left, used_right, used_left
    axes = tuple(
        Axis(_role(it.var.name, it.iter_type == IterVar.CommReduce, used_left, used_right), int(extent or 0))
        for it, extent in zip(block.iter_vars, extents, strict=True)
    )
    reads = [region.source for region in block.reads]
    return Product(
        axes=axes,
        data=_position(reads, left.source),
        weights=_position(reads, right.source),
        column_axis=next((i for i, index in enumerate(right.indices) if _is_variable(index, last)), None),
        dtype=str(store.buffer.dtype),
        operand_dtype=str(right.source.dtype),
        data_dtype=str(left.source.dtype),
        inner_sum=_inner_sum(block, left, right),
        data_bytes=_size_bytes(left.source),
        weights_bytes=_size_bytes(right.source),
    )


def has_constant_weights(schedule: Schedule, block: SBlockRV, product: Product, mod: IRModule) -> bool:
    """Tell whether a product's weights are a parameter that is constant at each call, so that they may be packed."""
    attributes = mod["main"].attrs
    constant = {int(index) for index in (attributes[CONSTANTS] if attributes and CONSTANTS in attributes else ())}
    weights = schedule.get(block).reads[product.weights].source
    parameter = next((i for i, param in enumerate(mod["main"].params) if param.name == weights.name), None)
    return parameter in constant


def _inner_sum(block: SBlock, data: TensorLoad, weights: TensorLoad) -> tuple[int, int] | None:
    from tvm.tirx import IterVar

    for position, iterator in enumerate(block.iter_vars):
        name = iterator.var.name
        along = [dim for dim, index in enumerate(weights.indices) if _is_variable(index, name)]
        used = [dim for dim, index in enumerate(data.indices) if name in names_in(index)]
        if iterator.iter_type == IterVar.CommReduce and along and used == [len(data.indices) - 1]:
            return (position, along[0]) if stride_of(data.indices[-1], iterator.var) == 1 else None
    return None


def _role(name: str, is_sum: bool, in_data: set[str], in_weights: set[str]) -> Role:
    if is_sum:
        return Role.SUM
    if name in in_weights:
        return Role.BATCH if name in in_data else Role.COLUMN
    return Role.ROW


def names_in(expr: Expr) -> set[str]:
    """Return the names of the variables in an index."""
    from tvm.tirx.analysis import undefined_vars

    return {var.name for var in undefined_vars(expr, [])}


def stride_of(index: Expr, var: Var) -> int | None:
    """Return the stride of a variable in an index; None if it is not constant."""
    from tvm.sym import detect_linear_equation

    if var.name not in names_in(index):
        return 0
    found = detect_linear_equation(index, [var])
    return _constant(found[0]) if found else None


def _is_variable(expr: Expr, name: str) -> bool:
    from tvm.tirx import Var

    return isinstance(expr, Var) and expr.name == name


def _without_cast(expr: Expr) -> Expr:
    from tvm.tirx import Cast

    return expr.value if isinstance(expr, Cast) else expr


def _reads(expr: Expr, buffer: object) -> bool:
    from tvm.ir import TensorLoad

    return isinstance(expr, TensorLoad) and bool(expr.source.same_as(buffer))


def _size_bytes(buffer: Buffer) -> int:
    from tvm import DataType

    bits: int = DataType(buffer.dtype).bits
    return math.prod(int(size) for size in buffer.shape) * ((bits + 7) // 8)


def _position(buffers: list[object], buffer: object) -> int:
    return next(i for i, other in enumerate(buffers) if other.same_as(buffer))  # type: ignore[attr-defined]


def _constant(extent: object) -> int | None:
    from tvm.tirx import IntImm

    return int(extent.value) if isinstance(extent, IntImm) else None
