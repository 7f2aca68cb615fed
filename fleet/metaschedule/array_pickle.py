"""Reads pickles of numpy arrays without unpickling: of the format's instructions, those that write arrays, and nothing
of what pickle or numpy would do for others.

To let only numpy's own functions through is not enough: with arguments that no array ever had, and with instructions
that no writer uses, 500 bytes made unpickling take ten gigabytes, and others a segmentation fault. Here an array is
made of its shape, its type of element and its bytes, which have to fit each other.
https://docs.python.org/3/library/pickletools.html names the instructions.
"""

from __future__ import annotations

import math
import pickletools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fleet.errors import InvalidRequest

_PLAIN_TYPES = frozenset({"f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1"})
_OBJECT = "O"
_MOST_DIMENSIONS = 8
_LITERALS = frozenset(
    {"BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "SHORT_BINBYTES", "BINBYTES", "BINBYTES8"}
    | {"SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"}
)
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_SILENT = frozenset({"PROTO", "FRAME"})


@dataclass(frozen=True, slots=True)
class _Function:
    """What the pickle would call."""

    name: str


_FUNCTIONS = {
    **{(f"numpy.{core}.multiarray", name): name for core in ("core", "_core") for name in ("_reconstruct", "scalar")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): "_frombuffer" for core in ("core", "_core")},
    ("numpy", "ndarray"): "ndarray",
    ("numpy", "dtype"): "dtype",
}


@dataclass(slots=True)
class _Type:
    """A type of element."""

    code: str
    order: str = "<"


@dataclass(slots=True)
class _Array:
    """An array, whose content follows."""

    content: NDArray[np.generic] | tuple[object, ...] | None = None
    """None: it has not come. A tuple: objects."""

    shape: tuple[int, ...] = ()


class _Mark:
    """Where the items of a tuple or list begin."""


def read_objects(content: bytes) -> tuple[tuple[int, ...], Sequence[object]]:
    """Return the shape and the items of an array of objects: texts, numbers, lists, and arrays.

    Raises:
        InvalidRequest: the pickle holds anything else.
    """
    try:
        found = _Machine().run(content)
    except InvalidRequest:
        raise
    except Exception as error:
        raise InvalidRequest(f"the records cannot be read: {error}") from error
    if not isinstance(found, _Array) or not isinstance(found.content, tuple):
        raise InvalidRequest("the records are no array of objects")
    return found.shape, [_plain(item) for item in found.content]


def _plain(item: object) -> object:
    """Return an item as its reader has it; a list holds arrays or numbers, and no lists."""
    if isinstance(item, list):
        return [each.content if isinstance(each, _Array) else each for each in item]
    return item.content if isinstance(item, _Array) else item


class _Machine:
    """Carries the instructions out, on a stack and a memory of values."""

    def __init__(self) -> None:
        self._stack: list[object] = []
        self._memory: dict[int, object] = {}

    def run(self, content: bytes) -> object:
        """Return what is on the stack at the end."""
        for opcode, argument, _ in pickletools.genops(content):
            name = opcode.name
            if name == "STOP":
                return self._stack.pop()
            if name in _LITERALS:
                self._stack.append(argument)
            elif name in _CONSTANTS:
                self._stack.append(_CONSTANTS[name])
            elif name in _TUPLES:
                self._stack.append(self._taken(_TUPLES[name]))
            elif name not in _SILENT:
                self._do(name, argument)
        raise InvalidRequest("the records are cut short")

    def _do(self, name: str, argument: object) -> None:
        """Carry out what is more than a value."""
        stack = self._stack
        match name:
            case "GLOBAL":
                stack.append(_function(*str(argument).split(" ", 1)))
            case "STACK_GLOBAL":
                stack.append(_function(*self._taken(2)))
            case "MARK":
                stack.append(_Mark())
            case "TUPLE":
                stack.append(tuple(self._since_mark()))
            case "EMPTY_TUPLE":
                stack.append(())
            case "EMPTY_LIST":
                stack.append([])
            case "APPEND" | "APPENDS":
                items = self._since_mark() if name == "APPENDS" else list(self._taken(1))
                _list(stack[-1]).extend(items)
            case "MEMOIZE":
                self._memory[len(self._memory)] = stack[-1]
            case "BINPUT" | "LONG_BINPUT":
                self._memory[_number(argument)] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(self._memory[_number(argument)])
            case "REDUCE":
                stack.append(_called(*self._taken(2)))
            case "BUILD":
                _build(*self._taken(2), keep=stack.append)
            case _:
                raise InvalidRequest(f"the file has the instruction {name}, which writes no array: it is not read")

    def _taken(self, count: int) -> tuple[object, ...]:
        if count > len(self._stack):
            raise InvalidRequest("the records take more than there is")
        taken = tuple(self._stack[-count:])
        del self._stack[-count:]
        return taken

    def _since_mark(self) -> list[object]:
        items: list[object] = []
        while not isinstance(item := self._stack.pop(), _Mark):
            items.append(item)
        return items[::-1]


def _function(module: object, name: object) -> _Function:
    known = _FUNCTIONS.get((str(module), str(name)))
    if known is None:
        raise InvalidRequest(f"the file asks for {module}.{name}, which is no part of an array: it is not read")
    return _Function(known)


def _called(function: object, arguments: object) -> object:
    if not isinstance(function, _Function) or not isinstance(arguments, tuple):
        raise InvalidRequest("the file calls what is no function")
    match function.name, arguments:
        case "dtype", (str() as code, *_):
            return _type(code)
        case "_reconstruct", _:
            return _Array()
        case "scalar", (_Type() as kind, bytes() as content):
            return _numbers(content, kind, (1,))[0].item()
        case "_frombuffer", (bytes() as content, _Type() as kind, tuple() as shape, _):
            return _Array(_numbers(content, kind, _shape(shape)), _shape(shape))
    raise InvalidRequest(f"the file calls {function.name} with what makes no array")


def _build(value: object, state: object, *, keep: Callable[[object], None]) -> None:
    """Give a type its order of bytes, or an array its content."""
    match value, state:
        case _Type(), (int(), str() as order, *_) if order in ("<", ">", "|", "="):
            value.order = order
        case _Array(), (int(), tuple() as shape, _Type() as kind, _, list() as items) if kind.code == _OBJECT:
            value.shape = _shape(shape)
            if math.prod(value.shape) != len(items):
                raise InvalidRequest(f"an array of the shape {value.shape} has {len(items)} items")
            value.content = tuple(items)
        case _Array(), (int(), tuple() as shape, _Type() as kind, is_fortran, bytes() as content):
            value.shape = _shape(shape)
            value.content = _numbers(content, kind, value.shape, order="F" if is_fortran else "C")
        case _:
            raise InvalidRequest("the file gives something a content that does not fit it")
    keep(value)


def _type(code: str) -> _Type:
    if code in ("O8", "O", "|O"):
        return _Type(_OBJECT)
    if code not in _PLAIN_TYPES:
        raise InvalidRequest(f"there are elements of the type {code[:20]!r}, which XGBModel does not write")
    return _Type(code)


def _numbers(content: bytes, kind: _Type, shape: tuple[int, ...], *, order: str = "C") -> NDArray[np.generic]:
    """Return an array of numbers, whose size is that of its bytes."""
    if kind.code == _OBJECT:
        raise InvalidRequest("objects are not made of bytes")
    dtype = np.dtype(f"{'>' if kind.order == '>' else '<'}{kind.code}")
    if math.prod(shape) * dtype.itemsize != len(content):
        raise InvalidRequest(f"an array of the shape {shape} has {len(content)} bytes")
    return np.frombuffer(content, dtype).reshape(shape, order="F" if order == "F" else "C")


def _shape(found: tuple[object, ...]) -> tuple[int, ...]:
    shape = tuple(extent for extent in found if isinstance(extent, int) and extent >= 0)
    if len(shape) < len(found) or len(shape) > _MOST_DIMENSIONS:
        raise InvalidRequest(f"{len(found)} numbers are no shape")
    return shape


def _number(argument: object) -> int:
    return argument if isinstance(argument, int) else -1


def _list(found: object) -> list[object]:
    if not isinstance(found, list):
        raise InvalidRequest("the file appends to what is no list")
    return found
