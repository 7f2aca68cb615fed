"""Gives each output of a model its own memory, even if it is an input, a constant, or another output.

TVM returns that tensor itself, also in another shape: among several outputs, its reshapes are views. A kept answer
changed with the next input; a write into one changed the model's constants.
"""

from __future__ import annotations

from tvm import relax, te
from tvm.ir import IRModule
from tvm.relax import Expr
from tvm.te import Tensor

from fleet.graph.constants import is_constant, shape_of
from fleet.graph.rebuilding import Rebuild, op_name, rebuild_functions


def own_outputs(mod: IRModule) -> IRModule:
    """Return a module of fused programs whose functions return no shared tensors."""
    returned: list[Expr] = []
    copied: list[Expr] = []

    def own(rebuild: Rebuild, expr: Expr, seen: Expr) -> Expr:
        """Return an output, copied if it shares memory. `seen` is its variable in the function's return value."""
        value = rebuild.bound_to(expr)
        if isinstance(value, relax.Tuple):
            is_written_out = isinstance(seen, relax.Tuple)
            names = seen.fields if is_written_out else [relax.TupleGetItem(seen, at) for at in range(len(value.fields))]
            return relax.Tuple([own(rebuild, *each) for each in zip(value.fields, names, strict=True)])
        memory = _memory_of(mod, rebuild, expr)
        is_shared = isinstance(memory, relax.Var) or is_constant(memory) or any(map(memory.same_as, returned))
        returned.append(memory)
        if not is_shared or not isinstance(expr.ty, relax.TensorType) or 0 in (shape_of(expr) or ()):
            return seen
        copied.append(expr)
        source = rebuild.bind(seen) if isinstance(seen, relax.TupleGetItem) else seen
        return rebuild.builder.emit_te(_copy, source, primfunc_name_hint="copy")

    changed = rebuild_functions(mod, lambda _, expr: expr, lambda rebuild, expr: own(rebuild, expr, expr))
    return changed if copied else mod


def _memory_of(mod: IRModule, rebuild: Rebuild, expr: Expr) -> Expr:
    """Return the value, parameter or constant whose memory an expression uses."""
    while isinstance(expr, relax.Var):
        value = rebuild.builder.lookup_binding(expr)
        if value is None:
            return expr
        is_view = isinstance(expr, relax.DataflowVar) and _is_reshape(mod, value)
        if not is_view and not isinstance(value, relax.Var):
            return value
        expr = value.args[1].fields[0] if is_view else value
    return expr


def _is_reshape(mod: IRModule, value: Expr) -> bool:
    """Tell whether TVM replaces a program's copy by a view."""
    return (
        op_name(value) == "relax.call_tir"
        and len(value.args[1].fields) == 1
        and bool(relax.analysis.has_reshape_pattern(mod[value.args[0]]))
    )


def _copy(source: Tensor) -> Tensor:
    return te.compute(source.shape, lambda *at: source(*at), name="copy")
