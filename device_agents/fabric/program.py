"""Runs the functions of a fabric's description: checked once, compiled to closures, then called by artifacts.

Nothing of a peer is executed: a description can only write and read registers and buffers of its own window, and
the tiles that an artifact passes.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from device_agents.fabric.description import (
    ITEM_BYTES,
    WORD_BYTES,
    Buffer,
    CopyIn,
    CopyOut,
    Description,
    Function,
    Parameter,
    Point,
    Step,
    Wait,
    Write,
)

_SPINS = 200
"""Polls of a register before the thread sleeps between them."""

_REST_SEC = 50e-6

Arguments = dict[str, int]
"""Arguments by parameter name; a tile is passed as its address."""

_Action = Callable[[Arguments], None]


class FabricError(RuntimeError):
    """Error of the fabric that fails one candidate."""


class FabricStuck(FabricError):
    """The fabric did not answer in time."""


class FabricDead(FabricError):
    """The fabric is unreachable, or does not recover after a reset: no candidate will run."""


class Bus(Protocol):
    """Access to a window, word by word. Offsets are in bytes."""

    def read(self, offset: int) -> int:
        """Read one word."""

    def write(self, offset: int, value: int) -> None:
        """Write one word."""

    def read_bytes(self, offset: int, size_bytes: int) -> bytes:
        """Read consecutive words."""

    def write_bytes(self, offset: int, content: bytes) -> None:
        """Write consecutive words."""


class Memory(Protocol):
    """Contiguous memory that the design can access, too."""

    @property
    def address(self) -> int:
        """Address for the design."""

    @property
    def bus(self) -> Bus:
        """Access for this process."""


class Places(Protocol):
    """Access to a description's window and memory."""

    def window(self) -> Bus:
        """Open the window."""

    def memory(self, name: str, size_bytes: int) -> Memory:
        """Open the contiguous memory of that name."""


class FabricProgram:
    """Executable form of a description. Opens its resources on first use."""

    def __init__(self, description: Description, places: Places) -> None:
        self._description = description
        self._places = places
        self._bus: Bus | None = None
        self._memories: dict[str, Memory] = {}
        self._needs_reset = True
        self._actions = {
            name: [self._compile(step, function) for step in function.steps]
            for name, function in description.functions.items()
        }
        self._reset_actions = [self._compile(step, None) for step in description.reset]
        self.cycles = 0
        """Clock cycles of all calls so far."""

    def call(self, name: str, values: Sequence[int]) -> None:
        """Run one function.

        Raises:
            FabricError: wrong arguments, another bitstream than described, or the fabric does not answer.
        """
        function = self._description.functions[name]
        arguments = _checked(name, function, values)
        self._make_ready()
        try:
            for action in self._actions[name]:
                action(arguments)
        except FabricStuck:
            self._needs_reset = True
            raise
        if function.cycles is not None:
            self.cycles += self._read(function.cycles)

    def _make_ready(self) -> None:
        if not self._needs_reset:
            return
        if self._bus is None:
            self._bus = self._places.window()
        try:
            for action in self._reset_actions:
                action({})
        except FabricStuck as error:
            raise FabricDead(f"the fabric does not come out of its reset: {error}; program it again") from error
        self._check_identity()
        self._needs_reset = False

    def _check_identity(self) -> None:
        identity = self._description.identity
        if identity is None:
            return
        found = self._read(identity.register)
        if found != identity.value:
            raise FabricError(
                f"the fabric holds another design than {self._description.name}: {identity.register} reads {found:#x}, "
                f"not {identity.value:#x}; program the bitstream that this description belongs to"
            )

    def _compile(self, step: Step, function: Function | None) -> _Action:
        match step:
            case Write():
                return self._compile_write(step)
            case Point():
                return self._compile_point(step)
            case Wait():
                return self._compile_wait(step)
            case CopyIn():
                return self._compile_copy(step.copy_in, step.buffer, function, into_buffer=True)
            case CopyOut():
                return self._compile_copy(step.copy_out, step.buffer, function, into_buffer=False)

    def _compile_write(self, step: Write) -> _Action:
        register = self._description.registers[step.write]
        offset, limit, value = register.offset, 1 << register.width, step.value
        if isinstance(value, int):
            number = value
            return lambda arguments: self._ready_bus().write(offset, number)

        def write(arguments: Arguments) -> None:
            number = arguments[value]
            if not 0 <= number < limit:
                raise FabricError(f"{value} = {number} does not fit the {register.width} bits of {step.write}")
            self._ready_bus().write(offset, number)

        return write

    def _compile_point(self, step: Point) -> _Action:
        register, buffer = self._description.registers[step.point], self._description.buffers[step.to]

        def point(arguments: Arguments) -> None:
            address = self._memory(buffer).address + buffer.offset
            if address >= 1 << register.width:
                raise FabricDead(
                    f"{buffer.udmabuf} lies at {address:#x}, beyond what the {register.width} bits of "
                    f"{step.point} hold; give it memory below (dma-mask, or reserved-memory in the device tree)"
                )
            self._ready_bus().write(register.offset, address)

        return point

    def _compile_wait(self, step: Wait) -> _Action:
        offset, mask, equals = self._description.registers[step.wait].offset, step.mask, step.equals

        def wait(arguments: Arguments) -> None:
            bus = self._ready_bus()
            deadline = time.monotonic() + step.timeout_ms / 1000
            spins = 0
            while bus.read(offset) & mask != equals:
                spins += 1
                if time.monotonic() > deadline and bus.read(offset) & mask != equals:
                    raise FabricStuck(
                        f"{self._description.name} is stuck: {step.wait} & {mask:#x} was not {equals:#x} within "
                        f"{step.timeout_ms} ms; the core is reset before its next use"
                    )
                if spins > _SPINS:
                    time.sleep(_REST_SEC)

        return wait

    def _compile_copy(self, tile: str, buffer_name: str, function: Function | None, *, into_buffer: bool) -> _Action:
        buffer = self._description.buffers[buffer_name]
        parameter = next(p for p in (function.parameters if function else ()) if p.name == tile)
        item = ITEM_BYTES[parameter.dtype]

        def copy(arguments: Arguments) -> None:
            rows, columns, stride = (_extent(value, arguments) for value in _shape(parameter))
            size = rows * columns * item
            if size > buffer.size_bytes or min(rows, columns, stride) < 1:
                raise FabricError(
                    f"the tile {tile} of {rows} x {columns} {parameter.dtype} does not fit the buffer "
                    f"{buffer_name} of {buffer.size_bytes} bytes; use smaller tiles"
                )
            row_bytes = columns * item
            bus = self._ready_bus() if buffer.udmabuf is None else self._memory(buffer).bus
            places = range(arguments[tile], arguments[tile] + rows * stride * item, stride * item)
            padded = -(-size // WORD_BYTES) * WORD_BYTES
            if into_buffer:
                content = b"".join(ctypes.string_at(place, row_bytes) for place in places)
                bus.write_bytes(buffer.offset, content.ljust(padded, b"\0"))
                return
            content = bus.read_bytes(buffer.offset, padded)
            for index, place in enumerate(places):
                ctypes.memmove(place, content[index * row_bytes : (index + 1) * row_bytes], row_bytes)

        return copy

    def _read(self, register: str) -> int:
        found = self._description.registers[register]
        return self._ready_bus().read(found.offset) & ((1 << found.width) - 1)

    def _memory(self, buffer: Buffer) -> Memory:
        name = buffer.udmabuf or ""
        if name not in self._memories:
            used = (other for other in self._description.buffers.values() if other.udmabuf == name)
            size = max(other.offset + other.size_bytes for other in used)
            self._memories[name] = self._places.memory(name, size)
        return self._memories[name]

    def _ready_bus(self) -> Bus:
        if self._bus is None:
            raise FabricError("the register window is not open")
        return self._bus


def _shape(parameter: Parameter) -> tuple[int | str, int | str, int | str]:
    return parameter.rows, parameter.columns, parameter.columns if parameter.stride is None else parameter.stride


def _extent(value: int | str, arguments: Arguments) -> int:
    return value if isinstance(value, int) else arguments[value]


def _checked(name: str, function: Function, values: Sequence[int]) -> Arguments:
    if len(values) != len(function.parameters):
        names = ", ".join(parameter.name for parameter in function.parameters)
        raise FabricError(f"fabric.{name} takes {len(function.parameters)} arguments ({names}), found {len(values)}")
    arguments = {}
    for parameter, value in zip(function.parameters, values, strict=True):
        is_in_range = parameter.min <= value <= parameter.max and value % parameter.multiple_of == 0
        if parameter.type == "int" and not is_in_range:
            raise FabricError(
                f"fabric.{name}: {parameter.name} = {value}, but it goes from {parameter.min} to {parameter.max} in "
                f"steps of {parameter.multiple_of}"
            )
        if parameter.type == "tile" and value == 0:
            raise FabricError(f"fabric.{name}: {parameter.name} is not an address")
        arguments[parameter.name] = value
    return arguments
