"""Reads the description of a fabric: registers, buffers, and functions for artifacts.

It lies beside the bitstream as YAML (examples/zynq_gemm_i8/registers.yaml is a whole one) and travels with Program:

    name: gemm_i8
    clock_hz: 100_000_000
    window: {uio: fabric, size_bytes: 0x4000}       # name in /sys/class/uio, or number; or mem: ADDRESS of the fabric
    identity: {register: id, value: 0x474d4938}     # read before the first use: these registers are this bitstream's
    registers:
      ctrl: {offset: 0x00}
      id: {offset: 0x04, access: ro}
      m: {offset: 0x0c, width: 10}
    buffers:
      a: {offset: 0x1000, size_bytes: 4096}         # memory of the design inside the window
      big: {udmabuf: udmabuf0, offset: 0, size_bytes: 65536}  # memory that the design reads and writes by itself
    reset:
      - {write: ctrl, value: 2}
    functions:
      gemm_i8:                                      # artifacts call it "fabric.gemm_i8"
        parameters:
          - {name: a, type: tile, dtype: int8, rows: m, columns: k, stride: a_stride}
          - {name: m, type: int, min: 1, max: 256}
        steps:
          - {copy_in: a, buffer: a}
          - {write: m, value: m}
          - {point: b_address, to: big}             # its bus address
          - {wait: ctrl, mask: 1, equals: 0, timeout_ms: 1000}
          - {copy_out: c, buffer: c}
        cycles: cycles                              # register with the clock cycles that the call took

Memory for the design is a buffer of u-dma-buf (https://github.com/ikwzm/udmabuf), a kernel module that gives user
space contiguous memory and its address; it is mapped without caching. A tile is a matrix in main memory: artifacts pass
the address of its first element, and integers for all else. Offsets are bytes; every access is 32 bits wide, `width`
says how many of them count.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

import yaml

from device_agents.fabric.checks import check_description, check_reach
from device_agents.fabric.description import (
    Buffer,
    CopyIn,
    CopyOut,
    Description,
    Function,
    Identity,
    Parameter,
    Point,
    Register,
    Step,
    Wait,
    Window,
    Write,
)
from fleet.base import yaml_text
from fleet.base.config import did_you_mean, parse
from fleet.errors import ConfigError, InvalidRequest

T = TypeVar("T")

_Entries: TypeAlias = dict[str, Any]
"""Entries in the form of YAML; `parse` checks each against the field that it becomes."""

_FROM_PEER = "the fabric's description"
_MOST_DEPTH = 20
_MOST_BITS = 64
_SHOWN_CHARS = 1_000
_MOST_VALUES = 10_000
_MOST_CHARS = 48 * 1024
"""Maximum length as JSON: the description is sent with each order for a worker."""

_STEPS: dict[str, type[Step]] = {"write": Write, "point": Point, "wait": Wait, "copy_in": CopyIn, "copy_out": CopyOut}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Document:
    name: str
    clock_hz: float
    window: _Entries
    registers: _Entries
    functions: _Entries
    buffers: _Entries = field(default_factory=dict)
    identity: _Entries | None = None
    reset: list[object] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class _FunctionDocument:
    parameters: list[object]
    steps: list[object]
    cycles: str | None = None


def parse_description(text: str, *, where: str = "registers.yaml") -> Description:
    """Read and check a description.

    Raises:
        ConfigError: no YAML, an unknown key, or an invalid value; the message names it and the remedy.
    """
    try:
        _check_shape(text, where)
        content, _ = yaml_text.load(text, where=where)
    except (yaml.YAMLError, ValueError) as error:  # ValueError comes from impossible numbers and dates
        raise ConfigError(f"{where} is not YAML: {error}") from error
    _check_size(content, where)
    document = parse(_Document, _mapping(content, where), where=where)
    description = Description(
        name=document.name,
        clock_hz=document.clock_hz,
        window=parse(Window, document.window, where=f"{where}: window"),
        identity=parse(Identity, document.identity, where=f"{where}: identity") if document.identity else None,
        registers=_named(Register, document.registers, f"{where}: registers"),
        buffers=_named(Buffer, document.buffers, f"{where}: buffers"),
        reset=_steps(document.reset, f"{where}: reset"),
        functions={
            str(name): _function(values, f"{where}: functions: {name}") for name, values in document.functions.items()
        },
    )
    check_description(description, where=where)
    return description


def check_registers(text: str, reachable: Sequence[range]) -> None:
    """Refuse a bitstream's description that cannot be used, before programming.

    Args:
        reachable: physical addresses that the fabric has for itself.

    Raises:
        InvalidRequest: as of `parse_description`, or its window is elsewhere.
    """
    if len(json.dumps(text)) > _MOST_CHARS:
        raise InvalidRequest(f"the fabric's description is longer than {_MOST_CHARS // 1024} KiB; describe less")
    try:
        description = parse_description(text, where=_FROM_PEER)
        check_reach(description.window, reachable, where=_FROM_PEER)
    except ConfigError as error:
        raise InvalidRequest(str(error)[:_SHOWN_CHARS]) from error


def _function(values: object, where: str) -> Function:
    document = parse(_FunctionDocument, _mapping(values, where), where=where)
    parameters = tuple(
        parse(Parameter, _mapping(entry, f"{where}: parameters"), where=f"{where}: parameters[{index}]")
        for index, entry in enumerate(document.parameters)
    )
    return Function(parameters=parameters, steps=_steps(document.steps, where), cycles=document.cycles)


def _steps(entries: Sequence[object], where: str) -> tuple[Step, ...]:
    return tuple(_step(entry, f"{where}: steps[{index}]") for index, entry in enumerate(entries))


def _step(values: object, where: str) -> Step:
    mapping = _mapping(values, where)
    kinds = [key for key in mapping if key in _STEPS]
    if len(kinds) != 1:
        first = str(next(iter(mapping), ""))
        raise ConfigError(
            f"{where}: a step is one of {', '.join(_STEPS)}, found {first!r}{did_you_mean(first, _STEPS)}"
        )
    return parse(_STEPS[kinds[0]], mapping, where=where)


def _named(cls: type[T], entries: _Entries, where: str) -> dict[str, T]:
    return {
        str(name): parse(cls, _mapping(values, f"{where}: {name}"), where=f"{where}: {name}")
        for name, values in entries.items()
    }


def _check_shape(text: str, where: str) -> None:
    """Refuse text that could exhaust this process when it is parsed. Checks YAML events, which need no more memory than
    the text.

    Merging a mapping of merged mappings multiplies, as aliases do, but before anybody can count.
    """
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _MOST_DEPTH:
            raise ConfigError(f"{where}: nested deeper than {_MOST_DEPTH} levels; describe it flatter")
        if getattr(event, "tag", None) is not None or (isinstance(event, yaml.ScalarEvent) and event.value == "<<"):
            raise ConfigError(f"{where}: neither tags (!!...) nor merges (<<) are read here; write it out")


def _check_size(content: object, where: str) -> None:
    """Refuse a small text that expands to a large one through aliases: it comes from a peer."""
    waiting: list[object] = [content]
    count = chars = 0
    while waiting:
        count += 1
        value = waiting.pop()
        if isinstance(value, dict):
            waiting.extend(value)
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)
        elif isinstance(value, str | bytes):
            chars += len(value)
        elif isinstance(value, int) and value.bit_length() > _MOST_BITS:
            raise ConfigError(f"{where}: a number has more than {_MOST_BITS} bits")
        if count > _MOST_VALUES or chars > _MOST_CHARS:
            raise ConfigError(
                f"{where}: more than {_MOST_VALUES} values or {_MOST_CHARS} letters, aliases included; describe less"
            )


def _mapping(values: object, where: str) -> _Entries:
    if not isinstance(values, dict):
        raise ConfigError(f"{where}: expected 'key: value' entries, found {values!r}")
    return values
