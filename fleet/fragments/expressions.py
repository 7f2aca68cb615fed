"""Expressions in rules: arithmetic, comparisons and lists of numbers, without calls and attributes."""

from __future__ import annotations

import ast
import math
import operator
import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from simpleeval import EvalWithCompoundTypes, InvalidExpression

from fleet.base.config import did_you_mean, shown
from fleet.errors import ConfigError

Number: TypeAlias = "int | float"
Result: TypeAlias = "Number | list[Number]"

_MOST_CHARACTERS = 300
"""Also bounds the depth of an expression."""

_MOST = 2.0**63
_MOST_EXPONENT = 64


class Expression:
    """A parsed expression."""

    def __init__(self, text: str, *, names: frozenset[str], where: str) -> None:
        """Parse an expression.

        Args:
            names: names that may stand in it.
            where: its place in a file, for messages.

        Raises:
            ConfigError: it is too long, is no expression, or contains a call, an attribute or an unknown name.
        """
        self._text, self._where = text, where
        self._tree = _parsed(text, where)
        self.names = {node.id for node in ast.walk(self._tree) if isinstance(node, ast.Name)}
        """Names that stand in it."""

        for node in ast.walk(self._tree):
            if isinstance(node, ast.Name) and node.id not in names:
                raise ConfigError(f"{where}: unknown name {shown(node.id)}{did_you_mean(node.id, names)}")
            if not isinstance(node, _NODES):
                raise ConfigError(
                    f"{where}: {shown(text)} has a {type(node).__name__}; write arithmetic and lists only"
                )
            if isinstance(node, ast.Constant) and not isinstance(node.value, int | float):
                raise ConfigError(f"{where}: {shown(node.value)} is no number")

    def value(self, names: Mapping[str, int]) -> Result:
        """Return the value for some sizes.

        Raises:
            ConfigError: it cannot be computed, or a number in it is larger than 2^63.
        """
        evaluator = EvalWithCompoundTypes(operators=_OPERATORS, functions={}, names=dict(names))
        try:
            found: Result = evaluator.eval(self._text, previously_parsed=self._tree)
        except _Explosion as error:
            raise ConfigError(f"{self._where}: {shown(self._text)} exceeds 2^63; choose smaller numbers") from error
        except (InvalidExpression, ArithmeticError, TypeError, ValueError, LookupError) as error:
            raise ConfigError(f"{self._where}: {shown(self._text)} cannot be computed: {error}") from error
        return found


class _Explosion(Exception):
    """A number is too large."""


_NODES = (
    *(ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.List, ast.Constant, ast.Name, ast.Load),
    *(ast.operator, ast.unaryop, ast.boolop, ast.cmpop),
)


def _parsed(text: str, where: str) -> ast.expr:
    if len(text) > _MOST_CHARACTERS:
        raise ConfigError(f"{where}: an expression has at most {_MOST_CHARACTERS} characters, not {len(text)}")
    try:
        with warnings.catch_warnings(action="ignore"):
            return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise ConfigError(f"{where}: {shown(text)} is no expression: {error}") from error


def _bounded(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return an operation on two numbers that refuses lists and large results."""

    def bounded(one: object, other: object) -> Any:
        if not isinstance(one, int | float) or not isinstance(other, int | float):
            raise TypeError("a list is no number")
        found = function(one, other)
        if isinstance(found, complex) or abs(found) > _MOST or not math.isfinite(found):
            raise _Explosion
        return found

    return bounded


def _power(base: Number, exponent: Number) -> Any:
    if abs(exponent) > _MOST_EXPONENT or abs(base) > _MOST:
        raise _Explosion
    return base**exponent


_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: _bounded(operator.add),
    ast.Sub: _bounded(operator.sub),
    ast.Mult: _bounded(operator.mul),
    ast.Div: _bounded(operator.truediv),
    ast.FloorDiv: _bounded(operator.floordiv),
    ast.Mod: _bounded(operator.mod),
    ast.Pow: _bounded(_power),
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Not: operator.not_,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
