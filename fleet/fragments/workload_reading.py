"""Reads files of workloads. They come from others: only plain values of bounded size, and operators of `OPERATORS`."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from cross.targets.target import Target, parse_target
from fleet.base.config import did_you_mean, parse_plain_yaml, shown
from fleet.base.source_locations import at
from fleet.base.yaml_text import read_text
from fleet.errors import ConfigError
from fleet.fragments.fragment import (
    DTYPES,
    MOST_VALUES,
    Attribute,
    Call,
    Fragment,
    Operand,
    Shape,
    Tensor,
)
from fleet.fragments.operators import OPERATORS
from fleet.fragments.workload_file import FORMAT, Entry
from fleet.models.importing.value import Model
from fleet.models.importing.workloads_file import MOST_BYTES

_MOST_WORKLOADS = 100_000
_MOST_TENSORS = 256
_MOST_CALLS = 256
_MOST_OPERANDS = 64
_MOST_AXES = 8
_MOST_DEPTH = 4
_MOST_CHARACTERS = 300
_MOST_MODELS = 1000
_LARGEST = 2**31 - 1
_MOST_ELEMENTS = 2**40
_NAME = re.compile(r"([iwc])(\d{1,4})(?:\.(\d{1,3}))?")
_HASH = re.compile(r"\d{1,20}")
_KEY = re.compile(r"[a-z][a-z0-9_]{0,40}")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadFile:
    """Content of a file of workloads."""

    target: Target
    workloads: tuple[Entry, ...]


def read_workloads(path: Path) -> WorkloadFile:
    """Read a file of workloads.

    Raises:
        ConfigError: see `parse_workloads`; or the file is missing, too large, or not UTF-8.
    """
    return parse_workloads(read_text(path, most_bytes=MOST_BYTES), where=str(path))


def entries_of(model: Model) -> tuple[Entry, ...]:
    """Return the workloads of a file that was imported.

    Raises:
        ConfigError: see `parse_workloads`.
    """
    return parse_workloads(model.content.decode(), where=f"{model.title}.yaml").workloads


def parse_workloads(text: str, *, where: str) -> WorkloadFile:
    """Return the workloads of a file.

    Args:
        where: name of the file, for messages.

    Raises:
        ConfigError: the text is no such file, or a value in it is not allowed; with the line and the entry.
    """
    content, place = parse_plain_yaml(text, where=where)
    top = _Value(content, place)
    found = top.mapping("format", "target", "workloads")
    if found["format"].content != FORMAT:
        found["format"].refuse(f"only format {FORMAT} can be read; a newer version may read this file")
    return WorkloadFile(target=_target(found["target"]), workloads=_workloads(found["workloads"]))


def parse_fragment(content: object, *, where: str) -> Fragment:
    """Return the fragment of a plain value.

    Raises:
        ConfigError: see `parse_workloads`.
    """
    return _fragment(_Value(content, where))


@dataclass(frozen=True, slots=True)
class _Value:
    """A value of a file and its place, which is composed for an error only."""

    content: object
    place: str
    keys: tuple[object, ...] = ()

    def refuse(self, message: str) -> NoReturn:
        raise ConfigError(f"{at(self.place, *self.keys)}: {message}")

    def below(self, key: object, content: object) -> _Value:
        return _Value(content, self.place, (*self.keys, key))

    def mapping(self, *required: str, optional: Sequence[str] = ()) -> dict[str, _Value]:
        """Return the values of a mapping of these keys."""
        if not isinstance(self.content, dict):
            self.refuse(f"expected a mapping with {', '.join(required)}, found {shown(self.content)}")
        known = (*required, *optional)
        for key in self.content:
            if key not in known:
                self.refuse(f"unknown key {shown(key)}{did_you_mean(str(key)[:40], known)}")
        for key in required:
            if key not in self.content:
                self.refuse(f"the key {key!r} is missing")
        return {key: self.below(key, value) for key, value in self.content.items()}

    def items(self, most: int, *, fewest: int = 0) -> Iterator[_Value]:
        """Yield the items of a list."""
        if not isinstance(self.content, list) or not fewest <= len(self.content) <= most:
            found = f"{len(self.content)} items" if isinstance(self.content, list) else shown(self.content)
            self.refuse(f"expected a list of {fewest} to {most} items, found {found}")
        yield from (self.below(number, item) for number, item in enumerate(self.content))

    def text(self, pattern: re.Pattern[str] | None = None) -> str:
        """Return a text of at most 300 printable characters."""
        found = self.content
        if not isinstance(found, str) or not found.isprintable() or not 0 < len(found) <= _MOST_CHARACTERS:
            self.refuse(f"expected a text of 1 to {_MOST_CHARACTERS} printable characters, found {shown(found)}")
        if pattern is not None and pattern.fullmatch(found) is None:
            self.refuse(f"{shown(found)} is not of the form {pattern.pattern}")
        return found

    def whole(self, least: int, most: int = _LARGEST) -> int:
        """Return a whole number."""
        found = self.content
        if isinstance(found, bool) or not isinstance(found, int) or not least <= found <= most:
            self.refuse(f"expected a whole number from {least} to {most}, found {shown(found)}")
        return found

    def one_of(self, known: Sequence[str] | frozenset[str], kind: str) -> str:
        """Return one of some words."""
        if not isinstance(self.content, str) or self.content not in known:
            self.refuse(f"unknown {kind} {shown(self.content)}{did_you_mean(str(self.content)[:60], known)}")
        return self.content


def _target(value: _Value) -> Target:
    if not isinstance(value.content, dict):
        value.refuse(f"expected a mapping with kind, found {shown(value.content)}")
    try:
        return parse_target(json.dumps(value.content))
    except (ConfigError, TypeError, ValueError) as error:
        value.refuse(f"is no target: {error}")


def _workloads(value: _Value) -> tuple[Entry, ...]:
    return tuple(_entry(one) for one in value.items(_MOST_WORKLOADS, fewest=1))


def _entry(value: _Value) -> Entry:
    found = value.mapping("operator", "name", "hash", "operations", "models", "fragment")
    return Entry(
        operator=found["operator"].text(),
        name=found["name"].text(),
        shash=found["hash"].text(_HASH),
        operations=_operations(found["operations"]),
        models=_models(found["models"]),
        fragment=_fragment(found["fragment"]),
    )


def _operations(value: _Value) -> float:
    found = _number(value)
    return float(found) if 0 <= found < math.inf else value.refuse(f"expected a number from 0, found {shown(found)}")


def _models(value: _Value) -> Mapping[str, int]:
    if not isinstance(value.content, dict) or len(value.content) > _MOST_MODELS:
        value.refuse(f"expected a mapping of at most {_MOST_MODELS} models, found {shown(value.content)}")
    pairs = value.content.items()
    return {value.below(key, key).text(): value.below(key, count).whole(1) for key, count in pairs}


def _fragment(value: _Value) -> Fragment:
    found = value.mapping("inputs", "weights", "calls")
    inputs = tuple(_tensor(one, has_values=False) for one in found["inputs"].items(_MOST_TENSORS))
    weights = tuple(_tensor(one, has_values=True) for one in found["weights"].items(_MOST_TENSORS))
    counts = {"i": len(inputs), "w": len(weights)}
    calls = tuple(
        _call(one, {**counts, "c": number}) for number, one in enumerate(found["calls"].items(_MOST_CALLS, fewest=1))
    )
    return Fragment(inputs=inputs, weights=weights, calls=calls)


def _tensor(value: _Value, *, has_values: bool) -> Tensor:
    found = value.mapping("shape", "dtype", optional=("values",) if has_values else ())
    shape = _shape(found["shape"], least=0)
    if (count := math.prod(shape)) > _MOST_ELEMENTS:
        value.refuse(f"has {count} elements; at most {_MOST_ELEMENTS} can be read")
    values = tuple(_number(one) for one in found["values"].items(MOST_VALUES)) if "values" in found else ()
    if len(values) not in (0, 1, count):
        found["values"].refuse(f"has {len(values)} values for {count} elements; write one, or one for each")
    return Tensor(shape=shape, dtype=found["dtype"].one_of(DTYPES, "type"), values=values)


def _shape(value: _Value, *, least: int) -> tuple[int, ...]:
    return tuple(one.whole(least) for one in value.items(_MOST_AXES))


def _call(value: _Value, counts: Mapping[str, int]) -> Call:
    found = value.mapping("operator", "operands", optional=("attributes",))
    return Call(
        operator=found["operator"].one_of(OPERATORS, "operator"),
        operands=tuple(_operand(one, counts) for one in found["operands"].items(_MOST_OPERANDS)),
        attributes=_attributes(found["attributes"]) if "attributes" in found else {},
    )


def _operand(value: _Value, counts: Mapping[str, int], *, depth: int = 0) -> Operand:
    content = value.content
    if isinstance(content, str):
        return _reference(value, content, counts)
    if isinstance(content, dict):
        return Shape(shape=_shape(value.mapping("shape")["shape"], least=-1))
    if isinstance(content, list) and depth < _MOST_DEPTH:
        return tuple(_operand(one, counts, depth=depth + 1) for one in value.items(_MOST_OPERANDS))
    return _number(value)


def _reference(value: _Value, text: str, counts: Mapping[str, int]) -> str:
    match = _NAME.fullmatch(text)
    if match is None or (match[3] and match[1] != "c"):
        value.refuse(f"{shown(text)} names no tensor; write i0, w0, c0 or c0.1")
    if int(match[2]) >= counts[match[1]]:
        value.refuse(f"{shown(text)} names a tensor that is not there before this call")
    return text


def _attributes(value: _Value) -> Mapping[str, Attribute]:
    if not isinstance(value.content, dict) or len(value.content) > _MOST_OPERANDS:
        value.refuse(f"expected a mapping of at most {_MOST_OPERANDS} attributes, found {shown(value.content)}")
    for key in value.content:
        value.below(key, key).text(_KEY)
    return {key: _attribute(value.below(key, item)) for key, item in value.content.items()}


def _attribute(value: _Value, *, depth: int = 0) -> Attribute:
    content = value.content
    if content is None or isinstance(content, bool):
        return content
    if isinstance(content, str):
        return value.text() if content else ""
    if isinstance(content, list) and depth < _MOST_DEPTH:
        return tuple(_attribute(one, depth=depth + 1) for one in value.items(_MOST_OPERANDS))
    return _number(value)


def _number(value: _Value) -> bool | int | float:
    found = value.content
    if not isinstance(found, bool | int | float) or found != found:
        value.refuse(f"expected a number, found {shown(found)}")
    if isinstance(found, int) and abs(found) >= 2**63:
        value.refuse(f"the number {shown(found)} needs more than 64 bits")
    return found
