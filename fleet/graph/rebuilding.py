"""Rewrites the functions of a Relax module binding by binding: the base of every pass here.

A pass is a set of rules, by operator. A rule sees a call with arguments of the new function, and returns its
replacement, or None to keep it; replacements are visited again. Rules look backwards
(`Rebuild.bound_to`), never forwards, so one walk is enough. Functions with branches inside are left as they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from tvm.ir import BaseFunc, GlobalVar, IRModule
    from tvm.relax import BlockBuilder, Call, Expr, Function, TensorType, Var

Rule: TypeAlias = "Callable[[Rebuild, Call], Expr | None]"
Rewrite: TypeAlias = "Callable[[Rebuild, Expr], Expr]"

TUPLE_ITEM = "tuple_item"
"""The key of the rule for items of tuples, which are no calls."""

_MAX_REWRITES = 8
"""Rules that undo each other are stopped here."""


class Rebuild:
    """State of a function under construction: the values and readers of its variables."""

    def __init__(self, builder: BlockBuilder, uses: Counter[Var], apply: Rewrite) -> None:
        self.builder = builder
        self._uses = uses
        self._apply = apply

    def bound_to(self, expr: Expr) -> Expr:
        """Return the value of a variable, through its aliases; other expressions and parameters are returned
        unchanged.
        """
        from tvm import relax

        while isinstance(expr, relax.Var):
            value = self.builder.lookup_binding(expr)
            if value is None:
                return expr
            expr = value
        return expr

    def call_of(self, expr: Expr, *op_names: str) -> Call | None:
        """Return the call behind a value if it calls one of these operators."""
        call = self.bound_to(expr)
        return call if op_name(call) in op_names else None

    def call_only_for(self, expr: Expr, *op_names: str) -> Call | None:
        """Return the call behind a value if it calls one of these operators and has no other reader.

        Only then may the call be changed, or be repeated in another form.
        """
        return self.call_of(expr, *op_names) if self._uses[expr] <= 1 else None

    def emit(self, expr: Expr, name: str = "") -> Expr:
        """Return a variable or constant for a value, after applying the rules to it, too."""
        from tvm import ir, relax

        new = self._apply(self, expr)
        return new if isinstance(new, relax.Var | ir.GenericConst) else self.builder.emit(new, name)

    def bind(self, expr: Expr) -> Expr:
        """Return a variable for a value without applying rules: a rule's own result, which would match again."""
        return self.builder.emit(expr)

    def carry_uses(self, old: Var, new: Expr) -> None:
        """Transfer the readers of a variable of the old function to a value of the new one."""
        self._uses[new] += self._uses[old]


def op_name(expr: Expr) -> str:
    """Return the operator that an expression calls; "" if it calls none."""
    from tvm import ir, relax

    return str(expr.op.name) if isinstance(expr, relax.Call) and isinstance(expr.op, ir.Op) else ""


def result_types(call: Call) -> list[TensorType]:
    """Return the types of the tensors that the program of a `call_tir` writes."""
    from tvm import relax

    [kind] = call.ty_args
    return list(kind.fields) if isinstance(kind, relax.TupleType) else [kind]


def with_attrs(call: Call, args: list[Expr], changed: dict[str, object]) -> Expr:
    """Return a call with other arguments, and some of its attributes changed."""
    import tvm
    from tvm import relax

    if not changed:
        return relax.Call(call.op, args, call.attrs)
    kind = type(call.attrs).__tvm_ffi_type_info__
    attrs = {field.name: getattr(call.attrs, field.name) for field in kind.fields} | changed
    return relax.Call(call.op, args, tvm.ir.make_node(kind.type_key, **attrs))


def rewrite(mod: IRModule, *rule_sets: Mapping[str, Rule]) -> IRModule:
    """Return the module with the rules applied to each call of its functions; several sets are applied in order."""
    from tvm import relax

    def first_found(rebuild: Rebuild, expr: Expr) -> Expr | None:
        name = TUPLE_ITEM if isinstance(expr, relax.TupleGetItem) else op_name(expr)
        rules = (rule_set[name] for rule_set in rule_sets if name in rule_set)
        return next((found for rule in rules if (found := rule(rebuild, expr)) is not None), None)

    def apply(rebuild: Rebuild, expr: Expr) -> Expr:
        for _ in range(_MAX_REWRITES):
            found = first_found(rebuild, expr)
            if found is None:
                break
            expr = found
        return expr

    return rebuild_functions(mod, apply)


def rebuild_functions(mod: IRModule, apply: Rewrite, finish: Rewrite = lambda _, expr: expr) -> IRModule:
    """Return the module with each bound value of its functions replaced; unused values are dropped.

    Args:
        finish: replaces a function's return value, a tensor or a tuple of them, after all that.
    """
    from tvm import ir, relax

    functions = dict(mod.functions)
    for variable, function in mod.functions.items():
        if isinstance(function, relax.Function) and is_plain(function) and not is_taken(function):
            others = {other: found for other, found in functions.items() if not other.same_as(variable)}
            rebuilt, functions = _rebuild(variable.name_hint, function, others, apply, finish)
            functions[variable] = rebuilt
    return relax.transform.DeadCodeElimination()(ir.IRModule(functions, attrs=mod.attrs))


def count_uses(function: Function) -> Counter[Var]:
    """Return the number of reads of each variable."""
    values = [binding.value for block in function.body.blocks for binding in block.bindings]
    return Counter(var for value in [*values, function.body.body] for var in variables_of(value))


def variables_of(expr: Expr) -> Iterator[Var]:
    """Return the variables that an expression reads, once per read."""
    from tvm import relax

    if isinstance(expr, relax.Var):
        yield expr
    elif isinstance(expr, relax.Tuple | relax.Call):
        for child in expr.fields if isinstance(expr, relax.Tuple) else expr.args:
            yield from variables_of(child)
    elif isinstance(expr, relax.TupleGetItem):
        yield from variables_of(expr.tuple_value)


def is_plain(function: Function) -> bool:
    """Tell whether a function is one sequence of bindings, without branches or nested functions."""
    from tvm import relax

    return isinstance(function.body, relax.SeqExpr) and all(
        not isinstance(binding.value, relax.If | relax.Function | relax.SeqExpr)
        for block in function.body.blocks
        for binding in block.bindings
    )


def is_taken(function: Function) -> bool:
    """Tell whether a function belongs to another compiler, as after TVM's partitioning for a vendor's library."""
    return any(name in (function.attrs or {}) for name in ("Codegen", "Composite", "Primitive"))


def _rebuild(
    name: str, function: Function, others: Mapping[GlobalVar, BaseFunc], apply: Rewrite, finish: Rewrite
) -> tuple[Function, dict[GlobalVar, BaseFunc]]:
    """Return the rewritten function, and the module's others, to which rules add tensor programs with unique names."""
    from tvm import ir, relax

    builder = relax.BlockBuilder(ir.IRModule(others))
    rebuild = Rebuild(builder, count_uses(function), apply)
    renamed: dict[Var, Expr] = {}
    attrs = dict(function.attrs or {})
    is_private = "global_symbol" not in attrs
    with builder.function(name, list(function.params), attrs, pure=function.is_pure, private=is_private):
        for block in function.body.blocks:
            if isinstance(block, relax.DataflowBlock):
                with builder.dataflow():
                    _rebuild_block(block, rebuild, renamed)
            else:
                _rebuild_block(block, rebuild, renamed)
        builder.emit_func_output(finish(rebuild, _renamed(function.body.body, renamed)))
    built = builder.finalize()
    return built[name], {var: found for var, found in built.functions.items() if var.name_hint != name}


def _rebuild_block(block: object, rebuild: Rebuild, renamed: dict[Var, Expr]) -> None:
    from tvm import relax

    is_dataflow = isinstance(block, relax.DataflowBlock)
    for binding in block.bindings:  # type: ignore[attr-defined]  # TVM has no types
        value = _renamed(binding.value, renamed)
        if isinstance(binding, relax.MatchCast):
            new: Expr = rebuild.builder.match_cast(value, binding.ty, binding.var.name)
        else:
            new = rebuild.emit(value, binding.var.name)
            if is_dataflow and not isinstance(binding.var, relax.DataflowVar):
                new = rebuild.builder.emit_output(new, binding.var.name)
        renamed[binding.var] = new
        rebuild.carry_uses(binding.var, new)


def _renamed(expr: Expr, renamed: Mapping[Var, Expr]) -> Expr:
    """Return an expression with the old function's variables replaced by the new ones."""
    from tvm import relax

    if isinstance(expr, relax.Var):
        return renamed.get(expr, expr)
    if isinstance(expr, relax.Tuple):
        return relax.Tuple([_renamed(field, renamed) for field in expr.fields])
    if isinstance(expr, relax.TupleGetItem):
        return _tuple_item(_renamed(expr.tuple_value, renamed), expr.index)
    if isinstance(expr, relax.Call):
        args = [_renamed(arg, renamed) for arg in expr.args]
        return relax.Call(expr.op, args, expr.attrs, expr.ty_args, expr.span)
    return expr


def _tuple_item(value: Expr, index: int) -> Expr:
    from tvm import relax

    return value.fields[index] if isinstance(value, relax.Tuple) else relax.TupleGetItem(value, index)
