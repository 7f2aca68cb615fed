"""The description of a fabric: mistakes in it are reported before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from device_agents.drivers.zynq.bitstream import fabric_addresses
from device_agents.fabric.reader import check_registers, parse_description
from fleet.errors import ConfigError, InvalidRequest

EXAMPLE = (Path(__file__).parents[2] / "examples/zynq_gemm_i8/registers.yaml").read_text()
SMALL = """
name: adder
clock_hz: 50_000_000
window: {uio: 0, size_bytes: 0x1000}
registers:
  ctrl: {offset: 0, width: 2}
  count: {offset: 4, width: 10}
  sum: {offset: 8, access: ro}
  source: {offset: 12}
buffers:
  in: {offset: 0x100, size_bytes: 256}
  big: {udmabuf: udmabuf0, offset: 0, size_bytes: 4096}
  bigger: {udmabuf: udmabuf0, offset: 0x1000, size_bytes: 8192}
functions:
  add:
    parameters:
      - {name: x, type: tile, dtype: int8, rows: 1, columns: n}
      - {name: n, type: int, max: 256}
    steps:
      - {copy_in: x, buffer: in}
      - {write: count, value: n}
      - {point: source, to: big}
      - {write: ctrl, value: 1}
      - {wait: ctrl, mask: 1, equals: 0}
    cycles: sum
"""


def test_the_example_is_read() -> None:
    """The description beside the example's bitstream covers all of its functions."""
    found = parse_description(EXAMPLE)

    assert set(found.functions) == {"gemm_i8", "gemm_i8_from_zero", "gemm_i8_dma"}
    assert found.clock_hz == 1e8
    assert found.registers["id"].access == "ro"
    assert found.window.uio == "fabric"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("clock_hz: 50_000_000", "clock_mhz: 50", "unknown key 'clock_mhz'; did you mean 'clock_hz'"),
        ("clock_hz: 50_000_000", "clock_hz: 0", "clock_hz: expected a number above zero"),
        ("clock_hz: 50_000_000", "clock_hz: .nan", "clock_hz: expected a number above zero"),
        ("name: adder\n", "", "the key 'name' is missing"),
        ("{offset: 0, width: 2}", "{ofset: 0}", "unknown key 'ofset'; did you mean 'offset'"),
        ("{offset: 0, width: 2}", "{offset: 0, width: 33}", "width: expected 1 to 32 bits"),
        ("{offset: 4, width: 10}", "{offset: 0}", "overlaps registers: c"),
        ("{offset: 4, width: 10}", "{offset: 0x180}", "registers: count: at 0x180 it overlaps buffers: in"),
        ("{offset: 4, width: 10}", "{offset: 6}", "whole words of 4 bytes"),
        ("{offset: 4, width: 10}", "{offset: 0x1000}", "ends at 0x1004, but the window has 0x1000 bytes"),
        ("size_bytes: 256", "size_bytes: 0x1000", "buffers: in: ends at 0x1100, but the window has 0x1000"),
        ("uio: 0, ", "", "name either uio or mem"),
        ("uio: 0, ", "uio: 0, mem: 0x40000000, ", "name either uio or mem"),
        ("uio: 0, ", "mem: 0x40000010, ", "mem: expected the start of a page"),
        ("access: ro", "access: r", "access: expected rw, ro or wo"),
        ("{write: count, value: n}", "{write: cuont, value: n}", "no register 'cuont'; did you mean 'count'"),
        ("{write: count, value: n}", "{write: sum, value: n}", "sum is read only"),
        ("{write: count, value: n}", "{write: count, value: m}", "no parameter 'm'"),
        ("{write: count, value: n}", "{write: count, value: x}", "x is not an int"),
        ("{write: ctrl, value: 1}", "{write: ctrl, value: 4}", "4 does not fit the 2 bits of ctrl"),
        ("{write: ctrl, value: 1}", "{wirte: ctrl, value: 1}", "found 'wirte'; did you mean 'write'"),
        ("{write: ctrl, value: 1}", "[ctrl, 1]", "expected 'key: value' entries"),
        ("mask: 1, equals: 0", "mask: 1, equals: 2", "waits for an impossible value"),
        ("buffer: in}", "buffer: out}", "no buffer 'out'"),
        (
            "offset: 0x1000, size_bytes: 8192",
            "offset: 0xfc0, size_bytes: 64",
            "bigger: at 0xfc0 of udmabuf0 it overlaps",
        ),
        ("offset: 0x1000, size_bytes: 8192", "offset: 0x1010, size_bytes: 64", "offsets are multiples of 64"),
        ("{point: source, to: big}", "{point: sum, to: big}", "sum is read only"),
        ("{point: source, to: big}", "{point: source, to: in}", "in lies in the window"),
        ("{point: source, to: big}", "{point: source, to: bog}", "no buffer 'bog'; did you mean 'big'"),
        ("{copy_in: x,", "{copy_in: n,", "n is not a tile"),
        ("dtype: int8", "dtype: int7", "unknown type 'int7'; did you mean 'int"),
        ("columns: n", "columns: m", "no parameter 'm'"),
        ("type: int, max: 256", "type: integer", "type: expected tile or int"),
        ("type: int, max: 256", "type: int, min: 9, max: 8", "no number can be at least 9, at most 8"),
        ("cycles: sum", "cycles: clocks", "cycles: there is no register 'clocks'"),
        ("functions:\n  add:", "functions:\n  Add-8:", "made of a-z, 0-9 and _"),
        ("name: adder", "name: [", "is not YAML"),
    ],
)
def test_an_invalid_description_names_place_and_value(old: str, new: str, message: str) -> None:
    """The message names the place, the value found and the one expected."""
    assert old in SMALL
    parse_description(SMALL)

    with pytest.raises(ConfigError) as raised:
        parse_description(SMALL.replace(old, new, 1))

    assert message in str(raised.value)
    assert str(raised.value).startswith("registers.yaml")


@pytest.mark.parametrize(
    ("chip", "address"),
    [("xc7z020", 0x43C00000), ("xc7z", 0xBFFFF000), ("xczu3eg", 0xA0000000), ("xck26", 0x500000000)],
)
def test_a_window_of_physical_memory_may_be_where_only_the_fabric_is(chip: str, address: int) -> None:
    """The window may be at Vivado's addresses of both chip families."""
    check_registers(SMALL.replace("uio: 0", f"mem: {address:#x}"), fabric_addresses(chip))


@pytest.mark.parametrize(
    ("chip", "address"),
    [
        ("xc7z020", 0x00100000),  # main memory
        ("xc7z020", 0xF8000000),  # the board's own control registers
        ("xc7z020", 0x3FFFF000),
        ("xczu3eg", 0x43C00000),  # main memory there
        ("xczu3eg", 0x7FFFF000),
        ("xczu3eg", 0xFF5E0000),
        ("", 0x43C00000),
    ],
)
def test_a_window_anywhere_else_in_physical_memory_is_refused(chip: str, address: int) -> None:
    """The lease's holder writes the description, but may not reach the machine's memory."""
    text = SMALL.replace("uio: 0", f"mem: {address:#x}").replace("size_bytes: 0x1000}", "size_bytes: 0x2000}", 1)

    with pytest.raises(InvalidRequest, match=rf"window: mem: {address:#x} .* is not the fabric's alone"):
        check_registers(text, fabric_addresses(chip))


def test_aliases_cannot_grow_without_bound() -> None:
    """Ten lines that stand for a billion values cost the agent nothing."""
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]\n" for level in range(1, 10)
    )
    for text in (bomb, SMALL + "extra: &loop [*loop]\n"):
        with pytest.raises(ConfigError, match="more than 10000 values"):
            parse_description(text)


def test_a_description_that_is_too_long_for_an_order_is_refused() -> None:
    """The limit counts bytes, even if they are comments."""
    check_registers(SMALL, ())
    for padding in ("# \n" * 15_000, "# \u00e9" * 8_000):
        with pytest.raises(InvalidRequest, match="longer than 48 KiB"):
            check_registers(SMALL + padding, ())


JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 2**33),
    st.floats(),
    st.text(max_size=3),
    st.just([]),
    st.just({}),
    st.just([{}]),
)


@pytest.mark.slow
@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_junk_anywhere_is_a_configuration_error(data: st.DataObject) -> None:
    """One value of a good description replaced by anything: it is refused in words, or still good."""
    document = yaml.safe_load(SMALL)
    places = list(places_in(document))
    container, key = data.draw(st.sampled_from(places))
    container[key] = data.draw(JUNK)

    message = "registers.yaml"
    try:
        parse_description(yaml.safe_dump(document))
    except ConfigError as error:
        message = str(error)
    assert message.startswith("registers.yaml")


def places_in(content: Any) -> Any:
    """Yield container and key of every value in it."""
    items = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in items:
        yield content, key
        yield from places_in(value)


_NINE = ", ".join(["*{0}"] * 9)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 20_000, "nested deeper than 20 levels"),
        ("{a: " * 8_000, "nested deeper than 20 levels"),
        ("clock_hz: " + "1" * 5_000, "is not YAML"),
        ("clock_hz: 0x" + "f" * 5_000, "more than 64 bits"),
        ("clock_hz: 2001-99-99", "is not YAML: month must be"),
        ("clock_hz: !!python/object/apply:os.getpid []", "neither tags"),
        ("a: &a [*a]", "more than 10000 values"),
        ('name: &a "' + "x" * 20_000 + '"\nregisters: [' + ", ".join(["*a"] * 5_000) + "]", "49152 letters, aliases"),
        (
            "a0: &a0 {x: 1}\n" + "".join(f"a{n + 1}: &a{n + 1} {{<<: [{_NINE.format(f'a{n}')}]}}\n" for n in range(30)),
            "nor merges",
        ),
    ],
)
@pytest.mark.timeout(20)
def test_a_hostile_description_takes_no_memory_or_time(text: str, message: str) -> None:
    """A lease's holder sends it and the agent reads it: its size and depth are bounded."""
    with pytest.raises(InvalidRequest, match=message) as refused:
        check_registers(text, ())

    assert len(str(refused.value)) <= 1_000
