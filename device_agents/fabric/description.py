"""Parts of a fabric's description; see device_agents.fabric.reader for the format, with an example."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

WORD_BYTES = 4
ITEM_BYTES = {"int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4, "float32": 4}
"""Sizes of the element types that tiles can have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Location of the registers."""

    size_bytes: int
    uio: str | int | None = None
    """Name in /sys/class/uio/uio*/name, or the number of /dev/uioN."""

    mem: int | None = None
    """Physical address, reached through /dev/mem; for kernels without UIO."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Register with a constant value that identifies the bitstream."""

    register: str
    value: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Register:
    """A word of the window."""

    offset: int
    access: str = "rw"
    """ "rw", "ro" or "wo"."""

    width: int = 32
    """Number of bits that are used."""

    reset: int = 0
    """Value after a reset, for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """Memory of the design inside the window, or a region of main memory that the design accesses."""

    offset: int
    """From the start of the window, or of the memory."""

    size_bytes: int
    udmabuf: str | None = None
    """Contiguous memory, by its name in /sys/class/u-dma-buf."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One parameter of a function."""

    name: str
    type: str
    """ "tile" or "int"."""

    dtype: str = ""
    rows: int | str = 1
    columns: int | str = 1
    stride: int | str | None = None
    """Elements from one row to the next; the number of columns unless given."""

    min: int = 0
    max: int = 2**31 - 1
    multiple_of: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """Write a register."""

    write: str
    value: int | str
    """A number, or the name of an integer parameter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Write the bus address of a buffer in memory into a register."""

    point: str
    to: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Wait until some bits of a register have a given value."""

    wait: str
    mask: int
    equals: int
    timeout_ms: int = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyIn:
    """Copy a tile into a buffer, with contiguous rows."""

    copy_in: str
    buffer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyOut:
    """Copy a buffer into a tile."""

    copy_out: str
    buffer: str


Step = Write | Point | Wait | CopyIn | CopyOut


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """Function that artifacts call as "fabric.<name>"."""

    parameters: tuple[Parameter, ...]
    steps: tuple[Step, ...]
    cycles: str | None = None
    """Register with the number of clock cycles that the call took."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """Description of the fabric's content."""

    name: str
    clock_hz: float
    window: Window
    identity: Identity | None
    registers: Mapping[str, Register]
    buffers: Mapping[str, Buffer]
    reset: tuple[Step, ...]
    functions: Mapping[str, Function]
