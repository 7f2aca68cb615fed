"""Checks that a fabric's description is consistent: named parts exist, fit the window, and do not overlap."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence

from device_agents.fabric.description import (
    ITEM_BYTES,
    WORD_BYTES,
    CopyIn,
    CopyOut,
    Description,
    Function,
    Parameter,
    Point,
    Step,
    Wait,
    Window,
    Write,
)
from fleet.base.config import did_you_mean
from fleet.errors import ConfigError

MEMORY_ALIGNMENT = 64
"""Alignment of buffers in memory [bytes]: a burst of 16 words that starts there crosses no page."""

_PAGE_BYTES = 4096
_NAME = re.compile(r"[a-z][a-z0-9_]*")


def check_description(description: Description, *, where: str) -> None:
    """Raise an error for the first inconsistency.

    Raises:
        ConfigError: something in it cannot work.
    """
    if not 0 < description.clock_hz < math.inf:
        raise ConfigError(f"{where}: clock_hz: expected a number above zero, found {description.clock_hz}")
    _check_window(description, where)
    _check_layout(description, where)
    if description.identity is not None:
        _known(description.identity.register, description.registers, f"{where}: identity", "register")
    for index, step in enumerate(description.reset):
        if not isinstance(step, Write | Wait):
            raise ConfigError(f"{where}: reset: steps[{index}]: only write and wait are possible here")
        _check_step(step, description, {}, f"{where}: reset: steps[{index}]")
    for name, function in description.functions.items():
        _check_function(name, function, description, f"{where}: functions: {name}")


def check_reach(window: Window, reachable: Sequence[range], *, where: str) -> None:
    """Refuse a window of physical memory that is not wholly the fabric's: descriptions come from peers.

    Args:
        reachable: physical addresses that lead to nothing but the fabric.

    Raises:
        ConfigError: it touches main memory, or the board's own devices.
    """
    if window.mem is None:
        return
    last = window.mem + window.size_bytes - 1
    if any(window.mem in addresses and last in addresses for addresses in reachable):
        return
    possible = ", ".join(f"{addresses.start:#x} to {addresses.stop - 1:#x}" for addresses in reachable)
    raise ConfigError(
        f"{where}: window: mem: {window.mem:#x} to {last:#x} is not the fabric's alone; the fabric of this chip has "
        f"{possible or 'no addresses that are known: name its part in agent.yaml'}"
    )


def _check_window(description: Description, where: str) -> None:
    window = description.window
    if (window.uio is None) == (window.mem is None):
        raise ConfigError(f"{where}: window: name either uio or mem")
    if window.mem is not None and (window.mem < 0 or window.mem % _PAGE_BYTES):
        raise ConfigError(f"{where}: window: mem: expected the start of a page of 4096 bytes, found {window.mem:#x}")
    if window.size_bytes <= 0 or window.size_bytes % WORD_BYTES:
        raise ConfigError(f"{where}: window: size_bytes: expected a multiple of 4, found {window.size_bytes}")


def _check_layout(description: Description, where: str) -> None:
    """Check that registers and buffers lie inside the window, on word boundaries, without overlaps."""
    size = description.window.size_bytes
    _check_memory(description, where)
    areas = [(register.offset, WORD_BYTES, f"registers: {name}") for name, register in description.registers.items()]
    areas += [
        (buffer.offset, buffer.size_bytes, f"buffers: {name}")
        for name, buffer in description.buffers.items()
        if buffer.udmabuf is None
    ]
    for offset, length, what in areas:
        if offset % WORD_BYTES or length % WORD_BYTES or length <= 0:
            raise ConfigError(
                f"{where}: {what}: offset and size are whole words of 4 bytes; found {offset:#x}, {length}"
            )
        if offset < 0 or offset + length > size:
            raise ConfigError(
                f"{where}: {what}: ends at {offset + length:#x}, but the window has {size:#x} bytes; raise "
                "window: size_bytes if the design decodes more"
            )
    areas.sort()
    for (offset, length, what), (next_offset, _, next_what) in itertools.pairwise(areas):
        if next_offset < offset + length:
            raise ConfigError(
                f"{where}: {next_what}: at {next_offset:#x} it overlaps {what}, which ends at {offset + length:#x}"
            )
    for name, register in description.registers.items():
        if register.access not in ("rw", "ro", "wo"):
            raise ConfigError(f"{where}: registers: {name}: access: expected rw, ro or wo, found {register.access!r}")
        if not 1 <= register.width <= 32:
            raise ConfigError(f"{where}: registers: {name}: width: expected 1 to 32 bits, found {register.width}")


def _check_function(name: str, function: Function, description: Description, where: str) -> None:
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{where}: a function's name is made of a-z, 0-9 and _, found {name!r}")
    parameters = {parameter.name: parameter for parameter in function.parameters}
    if len(parameters) != len(function.parameters):
        raise ConfigError(f"{where}: two parameters have the same name")
    for parameter in function.parameters:
        if parameter.type not in ("tile", "int"):
            found = f"{where}: parameters: {parameter.name}: type"
            raise ConfigError(f"{found}: expected tile or int, found {parameter.type!r}")
    for parameter in function.parameters:
        _check_parameter(parameter, parameters, f"{where}: parameters: {parameter.name}")
    for index, step in enumerate(function.steps):
        _check_step(step, description, parameters, f"{where}: steps[{index}]")
    if function.cycles is not None:
        register = _known(function.cycles, description.registers, f"{where}: cycles", "register")
        if description.registers[register].access == "wo":
            raise ConfigError(f"{where}: cycles: {register} cannot be read")


def _check_parameter(parameter: Parameter, parameters: Mapping[str, Parameter], where: str) -> None:
    if parameter.type == "int":
        if parameter.multiple_of < 1 or parameter.min > parameter.max:
            raise ConfigError(f"{where}: no number can be at least {parameter.min}, at most {parameter.max}")
        return
    if parameter.dtype not in ITEM_BYTES:
        raise ConfigError(
            f"{where}: dtype: unknown type {parameter.dtype!r}{did_you_mean(parameter.dtype, ITEM_BYTES)}"
        )
    for extent in (parameter.rows, parameter.columns, parameter.stride):
        if isinstance(extent, str):
            _int_parameter(extent, parameters, where)


def _check_step(step: Step, description: Description, parameters: Mapping[str, Parameter], where: str) -> None:
    match step:
        case Write():
            register = description.registers[_known(step.write, description.registers, where, "register")]
            if register.access == "ro":
                raise ConfigError(f"{where}: {step.write} is read only")
            if isinstance(step.value, str):
                _int_parameter(step.value, parameters, where)
            elif not 0 <= step.value < 1 << register.width:
                raise ConfigError(f"{where}: {step.value} does not fit the {register.width} bits of {step.write}")
        case Point():
            _check_point(step, description, where)
        case Wait():
            register = description.registers[_known(step.wait, description.registers, where, "register")]
            if register.access == "wo":
                raise ConfigError(f"{where}: {step.wait} cannot be read")
            if step.equals & ~step.mask or step.mask <= 0 or step.timeout_ms <= 0:
                raise ConfigError(
                    f"{where}: waits for an impossible value: mask {step.mask:#x}, equals {step.equals:#x}"
                )
        case CopyIn():
            _check_copy(step.copy_in, step.buffer, description, parameters, where)
        case CopyOut():
            _check_copy(step.copy_out, step.buffer, description, parameters, where)


def _check_memory(description: Description, where: str) -> None:
    """Check that buffers in memory are aligned for bursts, and do not overlap."""
    pieces = sorted(
        (buffer.udmabuf, buffer.offset, buffer.size_bytes, f"buffers: {name}")
        for name, buffer in description.buffers.items()
        if buffer.udmabuf is not None
    )
    for _, offset, length, what in pieces:
        if offset < 0 or offset % MEMORY_ALIGNMENT or length % WORD_BYTES or length <= 0:
            raise ConfigError(
                f"{where}: {what}: in memory, offsets are multiples of {MEMORY_ALIGNMENT} and sizes whole words; found "
                f"{offset:#x}, {length}"
            )
    for (name, offset, length, what), (next_name, next_offset, _, next_what) in itertools.pairwise(pieces):
        if name == next_name and next_offset < offset + length:
            raise ConfigError(
                f"{where}: {next_what}: at {next_offset:#x} of {name} it overlaps {what}, which ends at "
                f"{offset + length:#x}"
            )


def _check_point(step: Point, description: Description, where: str) -> None:
    register = description.registers[_known(step.point, description.registers, where, "register")]
    if register.access == "ro":
        raise ConfigError(f"{where}: {step.point} is read only")
    if description.buffers[_known(step.to, description.buffers, where, "buffer")].udmabuf is None:
        raise ConfigError(f"{where}: {step.to} lies in the window; only a buffer in memory (udmabuf) has an address")


def _check_copy(
    tile: str, buffer: str, description: Description, parameters: Mapping[str, Parameter], where: str
) -> None:
    _known(buffer, description.buffers, where, "buffer")
    if parameters[_known(tile, parameters, where, "parameter")].type != "tile":
        raise ConfigError(f"{where}: {tile} is not a tile")


def _int_parameter(name: str, parameters: Mapping[str, Parameter], where: str) -> None:
    if parameters[_known(name, parameters, where, "parameter")].type != "int":
        raise ConfigError(f"{where}: {name} is not an int")


def _known(name: str, known: Iterable[str], where: str, what: str) -> str:
    if name not in known:
        raise ConfigError(f"{where}: there is no {what} {name!r}{did_you_mean(name, known)}")
    return name
