"""One program for several sets of input shapes: a function for each, and a `main` that dispatches on its arguments.

    main(ids):
        if ids is [1, 64]: shapes_0(ids)        else if ids is [1, 128]: shapes_1(ids)        else: an error

Tensor programs that are the same for several shapes are compiled once. Constants that are equal are stored once: the
VM's builder compares them by content. Picking takes about a microsecond.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from tvm import ir, relax, tirx
from tvm.ir import GlobalVar, IRModule, Type
from tvm.relax import BlockBuilder, Function, SeqExpr, Var
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.tirx import PrimFunc

from fleet.domain.measuring import TensorSpec

FunctionT = TypeVar("FunctionT", Function, PrimFunc)

_REFUSE = "refuse_shapes"


def one_program(title: str, mods: Mapping[tuple[TensorSpec, ...], IRModule]) -> IRModule:
    """Return one module with a `main` that takes each of these sets of inputs.

    Args:
        title: of the model, for the error that other shapes get.
        mods: scheduled module by the inputs of its `main`.
    """
    builder = relax.BlockBuilder()  # gives functions unique names, and equal ones the same
    entries = {specs: _add(builder, mod, f"shapes_{index}") for index, (specs, mod) in enumerate(mods.items())}
    refuse = builder.add_func(_refusing(_known_shapes(title, list(mods))), _REFUSE)
    whole = builder.get()
    whole["main"] = _picking(whole, entries, refuse)
    return relax.transform.Normalize()(whole)


def _add(builder: BlockBuilder, mod: IRModule, name: str) -> GlobalVar:
    """Add a module's tensor programs, and its `main` under another name, which is returned."""
    added = {
        variable: builder.add_func(_nameless(function), variable.name_hint)
        for variable, function in mod.functions.items()
        if isinstance(function, PrimFunc)
    }

    @mutator
    class Renamer(PyExprMutator):  # type: ignore[misc]
        """Calls the added functions."""

        def visit_global_var_(self, variable: GlobalVar) -> GlobalVar:
            return added.get(variable, variable)

    return builder.add_func(_nameless(Renamer().visit_expr(mod["main"])), name)


def _nameless(function: FunctionT) -> FunctionT:
    """Return a function without its global symbol, which must be unique for a linker."""
    return function.without_attr("global_symbol") if "global_symbol" in (function.attrs or {}) else function


def _refusing(text: str) -> PrimFunc:
    """Return a host function that only raises."""
    # TVM 0.27 takes the condition before the kind, contrary to its parameter names.
    statement = tirx.AssertStmt(tirx.const(False, "bool"), ir.StringImm("ValueError"), [ir.StringImm(text)])
    function = tirx.PrimFunc([], statement).with_attr("global_symbol", _REFUSE)
    return function.with_attr("tirx.is_host_func", True).with_attr("tirx.is_scheduled", True)


def _known_shapes(title: str, known: Sequence[tuple[TensorSpec, ...]]) -> str:
    listed = " or ".join(", ".join(str(list(spec.shape)) for spec in specs) for specs in known)
    return f"{title} is compiled for inputs of shapes {listed}; not for these"


def _picking(mod: IRModule, entries: Mapping[tuple[TensorSpec, ...], GlobalVar], refuse: GlobalVar) -> Function:
    """Return the function that calls the entry for the shapes of its arguments."""
    first = next(iter(entries))
    dims = [
        [tirx.Var(f"n{place}_{axis}", "int64") for axis in range(len(spec.shape))] for place, spec in enumerate(first)
    ]
    names = [str(param.name) for param in mod[entries[first]].params]
    params = [
        relax.Var(name, relax.TensorType(sizes, spec.dtype))
        for name, sizes, spec in zip(names, dims, first, strict=True)
    ]
    returned = _loose(mod[entries[first]].ret_ty)
    body = _refusal(mod, first, entries[first], params, refuse)
    for specs, entry in reversed(list(entries.items())):
        fits = tirx.all(
            *(
                dim == tirx.IntImm("int64", size)
                for sizes, spec in zip(dims, specs, strict=True)
                for dim, size in zip(sizes, spec.shape, strict=True)
            )
        )
        result = relax.Var("result", returned)
        choice = relax.If(fits, _call(mod, specs, entry, params), body)
        body = relax.SeqExpr([relax.BindingBlock([relax.VarBinding(result, choice)])], result)
    return relax.Function(params, body, returned).with_attr("global_symbol", "main")


def _refusal(
    mod: IRModule, specs: tuple[TensorSpec, ...], entry: GlobalVar, params: Sequence[Var], refuse: GlobalVar
) -> SeqExpr:
    """Raise an error, followed by an unreachable call, because every branch needs a value."""
    call = _call(mod, specs, entry, params)
    nothing = relax.Var("nothing", relax.TupleType([]))
    raising = relax.BindingBlock([relax.VarBinding(nothing, relax.Call(refuse, []))])
    return relax.SeqExpr([raising, *call.blocks], call.body)


def _call(mod: IRModule, specs: tuple[TensorSpec, ...], entry: GlobalVar, params: Sequence[Var]) -> SeqExpr:
    types = [relax.TensorType(spec.shape, spec.dtype) for spec in specs]
    given = [relax.Var("given", kind) for kind in types]
    casts = [relax.MatchCast(*cast) for cast in zip(given, params, types, strict=True)]
    answer = relax.Var("answer", mod[entry].ret_ty)
    return relax.SeqExpr([relax.BindingBlock([*casts, relax.VarBinding(answer, relax.Call(entry, given))])], answer)


def _loose(kind: Type) -> Type:
    """Return a type without the sizes of its tensors."""
    if isinstance(kind, relax.TupleType):
        return relax.TupleType([_loose(field) for field in kind.fields])
    return relax.TensorType(dtype=kind.dtype, ndim=kind.ndim) if isinstance(kind, relax.TensorType) else kind
