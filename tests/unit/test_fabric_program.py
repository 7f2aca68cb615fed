"""Calls of a fabric, against registers and a core in Python: writes, waits, copies and refusals."""

from __future__ import annotations

import ctypes
import struct

import pytest

from device_agents.fabric.program import FabricDead, FabricError, FabricProgram, FabricStuck
from device_agents.fabric.reader import parse_description

DESCRIPTION = """
name: scaler
clock_hz: 1_000_000
window: {uio: 0, size_bytes: 0x200}
identity: {register: id, value: 0x5ca1e}
registers:
  ctrl: {offset: 0x00}
  id: {offset: 0x04, access: ro}
  factor: {offset: 0x08, width: 4}
  count: {offset: 0x0c, width: 16}
  cycles: {offset: 0x10, access: ro, width: 16}
buffers:
  data: {offset: 0x100, size_bytes: 64}
reset:
  - {write: ctrl, value: 2}
  - {wait: ctrl, mask: 2, equals: 0, timeout_ms: 5}
functions:
  scale:
    parameters:
      - {name: x, type: tile, dtype: int16, rows: rows, columns: 3, stride: stride}
      - {name: rows, type: int, min: 1, max: 20}
      - {name: stride, type: int, min: 3}
      - {name: factor, type: int, min: 0, max: 100, multiple_of: 2}
    steps:
      - {copy_in: x, buffer: data}
      - {write: factor, value: factor}
      - {write: count, value: rows}
      - {write: ctrl, value: 1}
      - {wait: ctrl, mask: 1, equals: 0, timeout_ms: 5}
      - {copy_out: x, buffer: data}
    cycles: cycles
"""


class Scaler:
    """Multiplies `count` rows of three int16 by `factor`, unless it is broken."""

    def __init__(self) -> None:
        self.words = [0] * 128
        self.words[1] = 0x5CA1E
        self.words[4] = 0xABCD0000 + 7  # only 16 bits of it count
        self.is_broken = False
        self.is_dead = False
        self.resets = 0

    def read(self, offset: int) -> int:
        return self.words[offset // 4]

    def write(self, offset: int, value: int) -> None:
        self.words[offset // 4] = value
        if offset == 0 and value == 2 and not self.is_dead:
            self.resets += 1
            self.words[0] = 0
        elif offset == 0 and value == 1 and not self.is_broken:
            items = struct.unpack("<32h", self.read_bytes(0x100, 64))
            count = 3 * self.words[3]
            scaled = [item * self.words[2] for item in items[:count]] + list(items[count:])
            self.write_bytes(0x100, struct.pack("<32h", *scaled))
            self.words[0] = 0

    def read_bytes(self, offset: int, size_bytes: int) -> bytes:
        return struct.pack("<128I", *self.words)[offset : offset + size_bytes]

    def write_bytes(self, offset: int, content: bytes) -> None:
        assert len(content) % 4 == 0
        self.words[offset // 4 : (offset + len(content)) // 4] = struct.unpack(f"<{len(content) // 4}I", content)


class Ram:
    """Contiguous memory."""

    def __init__(self, size_bytes: int) -> None:
        self.address = 0x38000000
        self.bus = Scaler()
        self.size_bytes = size_bytes


class Here:
    """Access to the scaler, and to memory that it ignores."""

    def __init__(self, scaler: Scaler) -> None:
        self.scaler = scaler
        self.opened: list[str] = []
        self.rams: dict[str, Ram] = {}

    def window(self) -> Scaler:
        self.opened.append("window")
        return self.scaler

    def memory(self, name: str, size_bytes: int) -> Ram:
        self.opened.append(name)
        self.rams[name] = Ram(size_bytes)
        return self.rams[name]


@pytest.fixture
def scaler() -> Scaler:
    return Scaler()


@pytest.fixture
def program(scaler: Scaler) -> FabricProgram:
    return FabricProgram(parse_description(DESCRIPTION), Here(scaler))


def matrix(*values: int) -> ctypes.Array[ctypes.c_int16]:
    return (ctypes.c_int16 * len(values))(*values)


def test_a_tile_inside_a_matrix_is_copied_in_and_out(program: FabricProgram) -> None:
    """Rows apart from each other, of an odd number of bytes; the bytes between them stay."""
    values = matrix(1, 2, 3, 90, 91, 4, -5, 6, 92, 93, 7, 8, 9)

    program.call("scale", [ctypes.addressof(values), 3, 5, 4])

    assert list(values) == [4, 8, 12, 90, 91, 16, -20, 24, 92, 93, 28, 32, 36]


def test_cycles_add_up_over_calls(program: FabricProgram) -> None:
    """Only the register's bits in the description count."""
    values = matrix(1, 2, 3)
    for _ in range(3):
        program.call("scale", [ctypes.addressof(values), 1, 3, 0])

    assert program.cycles == 21


def test_no_connection_is_opened_before_the_first_call(scaler: Scaler) -> None:
    """A worker on a board without an accessible window still runs code that does not need the fabric."""
    here = Here(scaler)
    program = FabricProgram(parse_description(DESCRIPTION), here)
    assert here.opened == []

    values = matrix(1, 2, 3)
    program.call("scale", [ctypes.addressof(values), 1, 3, 2])
    program.call("scale", [ctypes.addressof(values), 1, 3, 2])

    assert (here.opened, scaler.resets, list(values)) == (["window"], 1, [4, 8, 12])


def test_a_stuck_core_is_reset_before_its_next_use(program: FabricProgram, scaler: Scaler) -> None:
    """Only the stuck call fails."""
    values = matrix(1, 2, 3)
    scaler.is_broken = True
    with pytest.raises(FabricStuck, match="scaler is stuck: ctrl & 0x1 was not 0x0 within 5 ms"):
        program.call("scale", [ctypes.addressof(values), 1, 3, 2])

    scaler.is_broken = False
    program.call("scale", [ctypes.addressof(values), 1, 3, 2])

    assert (scaler.resets, list(values)) == (2, [2, 4, 6])


def test_a_core_that_stays_stuck_is_dead(program: FabricProgram, scaler: Scaler) -> None:
    """The error does not blame a candidate."""
    scaler.is_dead = True
    with pytest.raises(FabricDead, match="does not come out of its reset"):
        program.call("scale", [1, 1, 3, 2])


def test_another_design_is_refused_by_its_identity(program: FabricProgram, scaler: Scaler) -> None:
    """Registers of one bitstream mean nothing to another."""
    scaler.words[1] = 0xDEAD
    with pytest.raises(FabricError, match="another design than scaler: id reads 0xdead, not 0x5ca1e"):
        program.call("scale", [1, 1, 3, 2])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1, 2, 3], "takes 4 arguments \\(x, rows, stride, factor\\), found 3"),
        ([0, 1, 3, 2], "x is not an address"),
        ([8, 0, 3, 2], "rows = 0, but it goes from 1 to 20"),
        ([8, 1, 3, 3], "factor = 3, but it goes from 0 to 100 in steps of 2"),
        ([8, 11, 3, 2], "tile x of 11 x 3 int16 does not fit the buffer data of 64 bytes"),
    ],
)
def test_arguments_that_do_not_fit_touch_no_memory(program: FabricProgram, values: list[int], message: str) -> None:
    """The addresses here are of nothing: reading them would end the process."""
    with pytest.raises(FabricError, match=message):
        program.call("scale", values)


def test_a_number_too_large_for_its_register_is_refused(program: FabricProgram) -> None:
    """It would be cut off silently."""
    values = matrix(1, 2, 3)
    with pytest.raises(FabricError, match="factor = 16 does not fit the 4 bits of factor"):
        program.call("scale", [ctypes.addressof(values), 1, 3, 16])


def test_the_design_is_pointed_to_buffers_in_memory(scaler: Scaler) -> None:
    """Tiles are copied to memory instead of the window; the memory has room for all buffers."""
    description = (
        DESCRIPTION.replace("  count: {", "  source: {offset: 0x14}\n  count: {")
        .replace("reset:", "  big: {udmabuf: dma3, offset: 0x40, size_bytes: 64}\nreset:")
        .replace("{copy_in: x, buffer: data}", "{copy_in: x, buffer: big}")
        .replace("- {write: factor, value: factor}", "- {point: source, to: big}")
        .replace("{copy_out: x, buffer: data}", "{copy_out: x, buffer: big}")
    )
    here = Here(scaler)
    values = matrix(1, 2, 3, 4, 5, 6)

    FabricProgram(parse_description(description), here).call("scale", [ctypes.addressof(values), 2, 3, 2])

    assert here.opened == ["window", "dma3"]
    assert here.rams["dma3"].size_bytes == 0x80
    assert here.rams["dma3"].bus.read_bytes(0x40, 12) == struct.pack("<6h", *values)
    assert scaler.read(0x14) == 0x38000040
    assert scaler.read_bytes(0x100, 12) == bytes(12)


def test_an_address_beyond_its_register_is_refused(scaler: Scaler) -> None:
    """Cut off, it would have the design write into memory of others."""
    description = (
        DESCRIPTION.replace("  count: {", "  source: {offset: 0x14, width: 24}\n  count: {")
        .replace("reset:", "  big: {udmabuf: dma3, offset: 0, size_bytes: 64}\nreset:")
        .replace("- {write: factor, value: factor}", "- {point: source, to: big}")
    )
    values = matrix(1, 2, 3)
    with pytest.raises(FabricDead, match="dma3 lies at 0x38000000, beyond what the 24 bits of source hold"):
        FabricProgram(parse_description(description), Here(scaler)).call("scale", [ctypes.addressof(values), 1, 3, 2])
