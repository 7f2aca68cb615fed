"""Describe how the pipeline lowers a model: the graph before and after each pass, and the resulting programs.

Contains counts and no times. A device's roofline turns operations and bytes into an estimate.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cross.targets.intrinsics import keep_package_light
from cross.targets.target import Target, make_target
from fleet.domain.measuring import TensorSpec
from fleet.domain.operators import describe_workload, operators_of, workload_kind
from fleet.graph.concats import CopyReason
from fleet.graph.constants import dtype_of, is_constant, shape_of
from fleet.graph.marking import calls_of
from fleet.graph.rebuilding import op_name

if TYPE_CHECKING:
    from tvm.ir import GlobalVar, IRModule
    from tvm.relax import Call, Expr

_FREE = frozenset({"reshape", "expand_dims", "squeeze", "flatten", "batch_flatten"})
"""Operators that move nothing: the result is another view of the same memory."""


_LOOKUPS = frozenset({"take", "gather_elements", "gather_nd"})
"""Operators that read only some rows of a table, and no more bytes than they write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphStage:
    """The graph at one moment."""

    name: str
    """The pass that it comes out of; "imported" for the model as it came."""

    reason: str
    operators: dict[str, int]
    """Calls in one run of the model by operator, most frequent first; after fusing, by the fused operators."""

    convolution_layouts: dict[str, int]
    """Convolutions by the layout of their data; empty once they are tensor programs."""

    transposes: int
    """Calls that bring a tensor into another layout."""

    moved_bytes: int
    """Bytes read and written by all calls together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One fused tensor program."""

    name: str
    """Its function in the lowered model."""

    operator: str
    """Readable name: "conv2d 3x3 64->128 56x56"."""

    kind: str
    """Kind of operator: "conv2d 3x3"; empty if it is unknown."""

    fused: tuple[str, ...]
    """The operators in it, in order."""

    calls: int
    """Number of calls in one run of the model."""

    flop: float
    """Operations of one call; 0 when it only moves data."""

    moved_bytes: int
    """Bytes read and written by one call."""

    constant_bytes: int
    """Bytes of constants among them, such as weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduled:
    """Result of scheduling the programs, from packages above this one."""

    loop_nests: tuple[str, ...] = ()
    """Parts that nothing can schedule: programs by function, blocks of them, operators."""

    concats_in_place: int = 0
    """Concats without a program: their operands are written where they end up."""

    concats_copied: tuple[CopyReason, ...] = ()
    """Reasons why the other concats are copied."""

    left_out: frozenset[str] = frozenset()
    """Programs by function that are not called any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Result of lowering a model, pass by pass."""

    stages: tuple[GraphStage, ...]
    """The first is the model as imported, the last one calls the programs."""

    programs: tuple[Program, ...]
    """Those with the most operations in one run first."""

    scheduled: Scheduled


def explain(
    mod: IRModule, target: Target, schedule: Callable[[IRModule], Scheduled] = lambda _: Scheduled()
) -> Explanation:
    """Lower a model as the pipeline does, and note the changes of each pass.

    Args:
        schedule: returns the result of scheduling the lowered model.
    """
    from fleet.graph.pipeline import steps

    stages = [_stage("imported", "the model as its exporter wrote it", mod)]
    with make_target(target):
        for step in steps(target):
            mod = step.run(mod)
            stages.append(_stage(step.name, step.reason, mod))
    scheduled = schedule(mod)
    called = {callee: calls for callee, calls in calls_of(mod).items() if callee.name_hint not in scheduled.left_out}
    programs = [_program(mod, callee, calls) for callee, calls in called.items()]
    ordered = sorted(programs, key=lambda program: (-program.flop * program.calls, -program.moved_bytes, program.name))
    return Explanation(stages=tuple(stages), programs=tuple(ordered), scheduled=scheduled)


def _stage(name: str, reason: str, mod: IRModule) -> GraphStage:
    calls = list(_calls(mod))
    operators = Counter("+".join(_operators(call)) for call in calls)
    layouts = Counter(str(call.attrs.data_layout) for call in calls if "relax.nn.conv" in op_name(call))
    return GraphStage(
        name=name,
        reason=reason,
        operators=dict(operators.most_common()),
        convolution_layouts=dict(layouts.most_common()),
        transposes=sum(_is_transpose(call) for call in calls),
        moved_bytes=sum(_moved_bytes(call) for call in calls),
    )


def _program(mod: IRModule, callee: GlobalVar, calls: list[Call]) -> Program:
    keep_package_light()
    from tvm.s_tir.analysis import estimate_tir_flops

    first = calls[0]
    inputs = list(first.args[1].fields)
    args = (
        *(_spec(expr, is_output=False) for expr in inputs),
        *(_spec(expr, is_output=True) for expr in _results(first)),
    )
    return Program(
        name=str(callee.name_hint),
        operator=describe_workload(str(callee.name_hint), args),
        kind=workload_kind(str(callee.name_hint), args),
        fused=tuple(_operators(first)),
        calls=len(calls),
        flop=float(estimate_tir_flops(mod[callee].body)),
        moved_bytes=_moved_bytes(first),
        constant_bytes=sum(_size_bytes(expr) for expr in inputs if is_constant(expr)),
    )


def _calls(mod: IRModule) -> Iterator[Call]:
    """Return the calls of main that compute something at run time."""
    for block in mod["main"].body.blocks:
        for binding in block.bindings:
            if op_name(binding.value) and not all(is_constant(arg) for arg in _tensors(binding.value)):
                yield binding.value


def _operators(call: Call) -> list[str]:
    """Return the operators behind a call: several where they were fused."""
    name = op_name(call)
    if name != "relax.call_tir":
        return [name.removeprefix("relax.").removeprefix("nn.")]
    callee = str(call.args[0].name_hint)
    return operators_of(callee) or [callee]


def _is_transpose(call: Call) -> bool:
    return bool({"permute_dims", "transpose"}.intersection(_operators(call)))


def _moved_bytes(call: Call) -> int:
    if _FREE.issuperset(_operators(call)):
        return 0
    written = sum(map(_size_bytes, _results(call)))
    read = list(map(_size_bytes, _tensors(call)))
    if _LOOKUPS.intersection(_operators(call)):
        read = [min(size, written) for size in read]
    return sum(read) + written


def _tensors(call: Call) -> Iterator[Expr]:
    """Return the tensors that a call reads."""
    from tvm import relax

    for arg in call.args:
        for expr in arg.fields if isinstance(arg, relax.Tuple) else [arg]:
            if isinstance(expr.ty, relax.TensorType):
                yield expr


def _results(call: Call) -> list[Expr]:
    """Return the expressions of the tensors that a call writes."""
    from tvm import relax

    types = call.ty.fields if isinstance(call.ty, relax.TupleType) else [call.ty]
    return [relax.Var("result", kind) for kind in types if isinstance(kind, relax.TensorType)]


def _spec(expr: Expr, *, is_output: bool) -> TensorSpec:
    return TensorSpec(shape_of(expr) or (), dtype_of(expr), is_output)


def _size_bytes(expr: Expr) -> int:
    from tvm import DataType

    bits: int = DataType(dtype_of(expr)).bits
    return math.prod(shape_of(expr) or (0,)) * ((bits + 7) // 8)
