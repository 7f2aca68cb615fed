"""Gives each output of a model memory of its own, where it is an input, a constant, or another output, too.

TVM returns that tensor itself. Who kept such an answer saw it change with the next input; who wrote into one wrote into
the model's constants.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fleet.graph.constants import is_constant
from fleet.graph.rebuilding import rebuild_functions

if TYPE_CHECKING:
    from tvm.ir import IRModule
    from tvm.relax import Expr
    from tvm.te import Tensor

    from fleet.graph.rebuilding import Rebuild


def own_outputs(mod: IRModule) -> IRModule:
    """Return a module of fused programs whose functions return nothing that somebody else has, too."""
    returned: list[Expr] = []
    copied: list[Expr] = []

    def own(rebuild: Rebuild, expr: Expr) -> Expr:
        from tvm import relax

        value = rebuild.bound_to(expr)
        if isinstance(value, relax.Tuple):
            return relax.Tuple([own(rebuild, field) for field in value.fields])
        is_shared = isinstance(value, relax.Var) or is_constant(value) or any(map(value.same_as, returned))
        returned.append(value)
        if not is_shared or not isinstance(expr.ty, relax.TensorType):
            return expr
        copied.append(expr)
        return rebuild.builder.emit_te(_copy, expr, primfunc_name_hint="copy")

    changed = rebuild_functions(mod, lambda _, expr: expr, own)
    return changed if copied else mod


def _copy(source: Tensor) -> Tensor:
    from tvm import te

    return te.compute(source.shape, lambda *at: source(*at), name="copy")
