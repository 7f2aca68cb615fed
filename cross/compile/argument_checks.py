"""Finds the called programs of a planned Relax module, and the ones with arguments that need no checks.

The VM allocates the tensors between programs in the shapes and types that the compiler gave them. Only arguments of the
model come from outside. The checks are a quarter of a small program's compilation time, and two thirds of its code. A
program is never called if it was a reshape that became a view.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tvm.ir import Expr, IRModule
    from tvm.relax import Function, Var
    from tvm.tirx import PrimFunc

_ALLOCATION, _VIEW = "relax.vm.alloc_tensor", "vm.builtin.reshape"
_SHAPE = 2
"""Index of the shape among the arguments of an allocation."""


def called_programs(planned: IRModule) -> dict[str, bool]:
    """Return, by the name of each program that is called, whether it must check its arguments.

    Those that only get constants and tensors allocated by the VM need not.

    Args:
        planned: a module after Relax's passes, before code is generated for its functions.
    """
    from tvm import relax
    from tvm.tirx import PrimFunc

    programs = {str(name.name_hint): one for name, one in planned.functions.items() if isinstance(one, PrimFunc)}
    checks: dict[str, bool] = {}
    for graph in planned.functions.values():
        if isinstance(graph, relax.Function):
            for name, is_inner in _calls(graph):
                checks[name] = checks.get(name, False) or not is_inner
    return {name: checks[name] or _asserts(one) for name, one in programs.items() if name in checks}


def _calls(graph: Function) -> Iterator[tuple[str, bool]]:
    """Yield the name of the program in each call, and True if nothing from outside is among its arguments."""
    from tvm import ir, relax

    allocated = _allocated(graph)
    found: list[tuple[str, bool]] = []

    def visit(expr: Expr) -> None:
        if isinstance(expr, relax.Call) and isinstance(expr.op, ir.GlobalVar):
            found.append((str(expr.op.name_hint), all(_is_inner(argument, allocated) for argument in expr.args)))
        elif isinstance(expr, relax.Call):  # a program that is passed to an operator may be called with anything
            found.extend((str(one.name_hint), False) for one in expr.args if isinstance(one, ir.GlobalVar))

    relax.analysis.post_order_visit(graph, visit)
    yield from found


def _is_inner(argument: Expr, allocated: set[Var]) -> bool:
    from tvm import relax

    return argument in allocated if isinstance(argument, relax.Var) else _is_constant(argument)


def _is_constant(argument: Expr) -> bool:
    from tvm import ir
    from tvm.tirx import FloatImm, IntImm

    return isinstance(argument, ir.GenericConst | IntImm | FloatImm)


def _allocated(graph: Function) -> set[Var]:
    """Return the variables of tensors of known size that the VM allocates, and of their reshaped views."""
    found: set[Var] = set()
    for block in graph.body.blocks:
        for binding in block.bindings:
            if _is_allocation(getattr(binding, "value", None), found):
                found.add(binding.var)
    return found


def _is_allocation(value: Expr | None, allocated: set[Var]) -> bool:
    from tvm import ir, relax

    if not isinstance(value, relax.Call):
        return False
    if isinstance(value.op, ir.Op) and value.op.name == _ALLOCATION:
        return _is_known(value.args[_SHAPE])
    is_view = isinstance(value.op, relax.ExternFunc) and str(value.op.global_symbol) == _VIEW
    return is_view and value.args[0] in allocated and _is_known(value.args[1])


def _is_known(shape: Expr) -> bool:
    from tvm import relax
    from tvm.tirx import IntImm

    return isinstance(shape, relax.ShapeExpr) and all(isinstance(size, IntImm) for size in shape.values)


def _asserts(program: PrimFunc) -> bool:
    """Tell whether a program has assertions of its own."""
    import tvm_ffi
    from tvm.tirx import AssertStmt

    found: list[AssertStmt] = []

    def note(statement: AssertStmt) -> AssertStmt:
        found.append(statement)
        return statement

    tvm_ffi.structural_map(program.body, [(AssertStmt, note)])
    return bool(found)
