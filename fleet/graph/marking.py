"""Annotates each tensor program with its arguments that are constant at every call, mostly weights.

Only those may be stored in another order than the model's: a design space that wants them packed transforms the
parameter, and the compilation of the model repacks the constant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fleet.graph.constants import is_constant
from fleet.graph.rebuilding import op_name

if TYPE_CHECKING:
    from tvm.ir import GlobalVar, IRModule
    from tvm.relax import Call

ATTRIBUTE = "fleet.constants"
"""Attribute of a PrimFunc: the indices of the arguments that are constant at each of its call sites."""


def mark_constants(mod: IRModule) -> IRModule:
    """Return the module with the attribute on each PrimFunc that has such arguments."""
    from tvm import ir

    functions = dict(mod.functions)
    for callee, calls in calls_of(mod).items():
        indices = constant_arguments(calls)
        if indices:
            functions[callee] = functions[callee].with_attr(ATTRIBUTE, indices)
    return ir.IRModule(functions, attrs=mod.attrs)


def constant_arguments(calls: list[Call]) -> list[int]:
    """Return the indices of the arguments that are constant in all these calls of one PrimFunc."""
    by_call = [{index for index, arg in enumerate(call.args[1].fields) if is_constant(arg)} for call in calls]
    return sorted(set.intersection(*by_call))


def calls_of(mod: IRModule) -> dict[GlobalVar, list[Call]]:
    """Return the calls of each PrimFunc, in order."""
    from tvm import relax

    calls: dict[GlobalVar, list[Call]] = {}
    for function in mod.functions.values():
        if isinstance(function, relax.Function):
            for block in function.body.blocks:
                for binding in block.bindings:
                    if op_name(binding.value) == "relax.call_tir":
                        calls.setdefault(binding.value.args[0], []).append(binding.value)
    return calls
