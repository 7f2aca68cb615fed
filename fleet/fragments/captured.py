"""Reads fragments out of a model as it was imported."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from fleet.errors import InvalidRequest
from fleet.fragments.built import PREFIX, attributes_type
from fleet.fragments.fragment import MOST_VALUES, Attribute, Call, Fragment, Operand, Shape, Tensor
from fleet.fragments.operators import ANCHORS, BORDERS, OPERATORS
from fleet.fragments.regions import Graph
from fleet.graph.constants import dtype_of, shape_of
from fleet.graph.rebuilding import op_name, variables_of

if TYPE_CHECKING:
    from tvm.ir import IRModule
    from tvm.relax import Call as RelaxCall
    from tvm.relax import Expr, Var

_Result = tuple[int, int | None]
"""Result of a numbered call, or one item of it."""


class CapturedModel:
    """The calls of a model's `main`, numbered in order."""

    def __init__(self, mod: IRModule) -> None:
        from tvm import relax

        function = mod["main"]
        self.calls: list[RelaxCall] = []
        self._values: dict[Var, Expr | _Result] = {}
        self._constants: dict[Expr, Tensor] = {}
        self._attributes: dict[int, Mapping[str, Attribute]] = {}
        self._sources: dict[int, list[tuple[Expr, Expr | _Result]]] = {}
        for binding in (binding for block in function.body.blocks for binding in block.bindings):
            value = binding.value
            self._values[binding.var] = self._value(value)
            if isinstance(value, relax.Call):
                self.calls.append(value)
        self._outputs = {source[0] for source in self._results(function.body.body)}

    @functools.cached_property
    def graph(self) -> Graph:
        """The calls as numbers."""
        reads = {number: [source[0] for source in self._results(call)] for number, call in enumerate(self.calls)}
        names = [operator_of(call) for call in self.calls]
        constants: set[int] = set()
        for number, call in enumerate(self.calls):
            if not list(self._parameters(call)) and constants.issuperset(reads[number]):
                constants.add(number)
        return Graph(
            reads=reads,
            readers={number: [other for other in reads if number in reads[other]] for number in reads},
            constants=constants,
            anchors={number for number in reads if names[number] in ANCHORS and number not in constants},
            borders={number for number in reads if names[number] in BORDERS},
            outputs=self._outputs,
        )

    def fragment(self, region: frozenset[int]) -> Fragment:
        """Return the calls of a region.

        Raises:
            InvalidRequest: one of them is of another kind than `OPERATORS`, or has an open shape.
        """
        return _Capture(self, region).fragment()

    def sources(self, number: int) -> list[tuple[Expr, Expr | _Result]]:
        """Return the operands of a call, each with the call or the expression behind it."""
        if number not in self._sources:
            self._sources[number] = [(arg, self.resolved(arg)) for arg in self.calls[number].args]
        return self._sources[number]

    def resolved(self, expr: Expr) -> Expr | _Result:
        """Return the call behind a variable; other expressions and parameters without aliases."""
        from tvm import relax

        found: Expr | _Result = expr
        while isinstance(found, relax.Var) and found in self._values:
            found = self._values[found]
        return found

    def constant(self, constant: Expr) -> Tensor:
        """Return a constant of the model, which many regions share and which may be large.

        Raises:
            InvalidRequest: it has a type that numpy lacks.
        """
        if constant not in self._constants:
            self._constants[constant] = _constant(constant)
        return self._constants[constant]

    def attributes(self, number: int) -> Mapping[str, Attribute]:
        """Return the attributes of a call.

        Raises:
            InvalidRequest: they have another type than its operator's.
        """
        if number not in self._attributes:
            call = self.calls[number]
            self._attributes[number] = _attributes(call, operator_of(call))
        return self._attributes[number]

    def _value(self, value: Expr) -> Expr | _Result:
        from tvm import relax

        if isinstance(value, relax.Call):
            return len(self.calls), None
        if isinstance(value, relax.TupleGetItem):
            source = self.resolved(value.tuple_value)
            if isinstance(source, tuple):
                return source[0], int(value.index)
            return source.fields[value.index] if isinstance(source, relax.Tuple) else value
        return value

    def _results(self, expr: Expr) -> Iterator[_Result]:
        """Yield the results that an expression reads."""
        for var in variables_of(expr):
            source = self.resolved(var)
            if isinstance(source, tuple):
                yield source
            elif not source.same_as(var):
                yield from self._results(source)

    def _parameters(self, expr: Expr) -> Iterator[Var]:
        """Yield the parameters of the model that an expression reads."""
        for var in variables_of(expr):
            source = self.resolved(var)
            if not isinstance(source, tuple):
                yield from [var] if source.same_as(var) else self._parameters(source)


class _Capture:
    """A fragment under construction."""

    def __init__(self, model: CapturedModel, region: frozenset[int]) -> None:
        self._model = model
        self._numbers = {call: number for number, call in enumerate(sorted(region))}
        self._inputs: dict[Expr | _Result, tuple[str, Tensor]] = {}
        self._weights: dict[Expr, tuple[str, Tensor]] = {}

    def fragment(self) -> Fragment:
        calls = tuple(self._call(number) for number in self._numbers)
        inputs, weights = (tuple(tensor for _, tensor in one.values()) for one in (self._inputs, self._weights))
        return Fragment(inputs=inputs, weights=weights, calls=calls)

    def _call(self, number: int) -> Call:
        call = self._model.calls[number]
        operator = operator_of(call)
        if operator not in OPERATORS:
            raise InvalidRequest(f"{operator or 'another call'} is no operator of fragments")
        operands = tuple(self._operand(*one) for one in self._model.sources(number))
        return Call(operator=operator, operands=operands, attributes=self._model.attributes(number))

    def _operand(self, expr: Expr, source: Expr | _Result) -> Operand:
        if isinstance(source, tuple) and source[0] in self._numbers:
            return f"c{self._numbers[source[0]]}" + ("" if source[1] is None else f".{source[1]}")
        from tvm import ir, relax, tirx

        if isinstance(source, tuple | relax.Var):
            return _named("i", self._inputs, source, lambda: _input(expr))
        if isinstance(source, ir.GenericConst):
            return _named("w", self._weights, source, lambda: self._model.constant(source))
        if isinstance(source, relax.Tuple):
            return tuple(self._operand(field, self._model.resolved(field)) for field in source.fields)
        if isinstance(source, relax.ShapeExpr) and all(isinstance(dim, tirx.IntImm) for dim in source.values):
            return Shape(shape=tuple(int(dim) for dim in source.values))
        if isinstance(source, tirx.IntImm):
            return int(source)
        if isinstance(source, tirx.FloatImm):
            return float(source)
        raise InvalidRequest(f"{type(source).__name__} is no operand of fragments")


def operator_of(call: RelaxCall) -> str:
    """Return the name of a call's operator without "relax."; empty if it calls a program."""
    return op_name(call).removeprefix(PREFIX)


def _named(letter: str, known: dict[Any, tuple[str, Tensor]], source: object, make: Callable[[], Tensor]) -> str:
    if source not in known:
        known[source] = f"{letter}{len(known)}", make()
    return known[source][0]


def _input(expr: Expr) -> Tensor:
    shape = shape_of(expr)
    if shape is None:
        raise InvalidRequest("an input has an open shape")
    return Tensor(shape=shape, dtype=dtype_of(expr))


def _constant(constant: Any) -> Tensor:
    try:
        array = np.from_dlpack(constant.value)
    except (AttributeError, BufferError, RuntimeError) as error:
        raise InvalidRequest("a constant has a type that numpy lacks") from error
    values = array.ravel()
    if array.size and (values == values[0]).all():
        values = values[:1]
    is_kept = values.size == 1 or (values.size <= MOST_VALUES and array.dtype.kind in "biu")
    shown: list[bool | int | float] = values.tolist() if is_kept else []  # type: ignore[assignment]
    return Tensor(shape=tuple(array.shape), dtype=str(array.dtype), values=tuple(shown))


def _attributes(call: RelaxCall, operator: str) -> dict[str, Attribute]:
    if call.attrs is None:
        return {}
    kind = type(call.attrs).__tvm_ffi_type_info__
    if kind.type_key != attributes_type(operator):
        raise InvalidRequest(f"{operator} has attributes of another type than {attributes_type(operator)!r}")
    return {field.name: _attribute(getattr(call.attrs, field.name)) for field in kind.fields}


def _attribute(value: Any) -> Attribute:
    from tvm import tirx

    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, tirx.IntImm):
        return int(value)
    if isinstance(value, tirx.FloatImm):
        return float(value)
    if isinstance(value, str) or not hasattr(value, "__iter__"):
        return str(value)
    return tuple(_attribute(item) for item in value)
