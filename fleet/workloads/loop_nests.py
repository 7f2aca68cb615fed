"""Lists the parts of a model that stay loop nests: programs that no space fits, and operators that TVM lowers
itself.
"""

from __future__ import annotations

from tvm import relax
from tvm.ir import IRModule
from tvm.s_tir import Schedule

from fleet.graph.rebuilding import op_name
from fleet.spaces.fallback_rules import unscheduled

_VIEWS = frozenset({"reshape", "expand_dims", "squeeze", "flatten"})
"""Operators that compute nothing: their result is another view of the same memory."""


def blocks_left(function: str, schedule: Schedule | None) -> list[str]:
    """Return a function's name if no schedule exists for it; followed by the unscheduled blocks if one exists.

    An empty list: it is scheduled as a whole.
    """
    if schedule is None:
        return [function]
    blocks = unscheduled(schedule)
    return [f"{function} ({', '.join(blocks)})"] if blocks else []


def operators_left(mod: IRModule) -> list[str]:
    """Return the operators of a lowered model that are not yet tensor programs: scans and sorts, which TVM adds."""
    found = []
    for function in mod.functions.values():
        if isinstance(function, relax.Function):
            bindings = (binding for block in function.body.blocks for binding in block.bindings)
            found += [op_name(binding.value).removeprefix("relax.") for binding in bindings]
    return [name for name in found if name and not name.startswith("call_") and name not in _VIEWS]
