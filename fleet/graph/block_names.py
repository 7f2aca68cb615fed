"""Block names that are independent of the model: a schedule is stored with the names of the blocks that it changes.

TVM names the parts of a reduction after the variable that it reads, `lv85_red`, and its structural hash knows no names.
So the same program of another model, or of this one after another pass, has the same records; otherwise their schedules
would find no block there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tvm.ir import IRModule
    from tvm.s_tir import SBlock
    from tvm.tirx import PrimFunc

_PART = r"(?:var_sum|sum|mean|red_temp|red)"
_OF_A_REDUCTION = re.compile(rf"\w+?_({_PART})(?:_?\d+)?")
_BEGINNING = re.compile(rf"\w+?_({_PART})(?=_|$)")
"""Schedules name derived blocks after the original: "lv85_red_rf"."""


def with_steady_names(mod: IRModule) -> IRModule:
    """Return a module whose block names are the same in each model."""
    from tvm import ir
    from tvm.tirx import PrimFunc

    functions = {
        variable: _renamed(function) if isinstance(function, PrimFunc) else function
        for variable, function in mod.functions.items()
    }
    return ir.IRModule(functions, attrs=mod.attrs)


def name_in(name: str, names: Sequence[str]) -> str:
    """Return a block's name in a program with these names, given its name in another; unchanged if in doubt."""
    found = _BEGINNING.match(name)
    if found is None or name in names:
        return name
    alike = [other for other in names if (of := _OF_A_REDUCTION.fullmatch(other)) is not None and of[1] == found[1]]
    return alike[0] + name[found.end() :] if len(alike) == 1 else name


def block_names(function: PrimFunc) -> list[str]:
    """Return the names of all blocks of a program."""
    import tvm_ffi
    from tvm.s_tir import SBlock

    found: list[str] = []
    tvm_ffi.structural_walk(function.body, [(SBlock, lambda block: found.append(block.name_hint))])
    return found


def _renamed(function: PrimFunc) -> PrimFunc:
    import tvm_ffi
    from tvm.s_tir import SBlock

    taken = {name for name in block_names(function) if _OF_A_REDUCTION.fullmatch(name) is None}

    def renamed(block: SBlock) -> SBlock:
        found = _OF_A_REDUCTION.fullmatch(block.name_hint)
        if found is None:
            return block
        name = f"T_{found[1]}"
        name = next(name for name in (name, *(f"{name}_{count}" for count in range(1, 1000))) if name not in taken)
        taken.add(name)
        return SBlock(
            block.iter_vars,
            block.reads,
            block.writes,
            name,
            block.body,
            block.init,
            block.alloc_buffers,
            block.match_buffers,
            block.annotations,
            block.span,
        )

    body = tvm_ffi.structural_map(function.body, [(SBlock, renamed)])
    return function if body.same_as(function.body) else function.with_body(body)
