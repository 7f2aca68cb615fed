"""Bitstreams as people have them: with and without header, in both byte orders, damaged, for other parts."""

from __future__ import annotations

import contextlib
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_agents.drivers.zynq.bitstream import check_chip, chip_of, parse_bitstream, read_bitstream
from fleet.errors import InvalidRequest
from tests import bitstreams

PAYLOADS = st.binary(min_size=0, max_size=400).filter(lambda payload: b"\xaa" not in payload and b"\x66" not in payload)


@given(payload=PAYLOADS, idcode=st.sampled_from([bitstreams.XC7Z010, bitstreams.XC7Z020, bitstreams.XCZU3]))
def test_all_containers_give_the_same_image(payload: bytes, idcode: int) -> None:
    """A .bit, a .bin and a swapped .bin of one configuration are the same to the FPGA manager."""
    words = bitstreams.make_words(payload, idcode=idcode)

    images = [
        parse_bitstream(content)
        for content in (bitstreams.make_bit(payload, idcode=idcode), words, bitstreams.swap_words(words))
    ]

    assert {found.image for found in images} == {bitstreams.swap_words(words)}
    assert {found.idcode for found in images} == {idcode}


@given(payload=PAYLOADS, cut=st.integers(min_value=1, max_value=10_000))
def test_a_truncated_file_is_refused_wherever_it_ends(payload: bytes, cut: int) -> None:
    """Half a configuration would leave the fabric in any state."""
    whole = bitstreams.make_bit(payload)
    with pytest.raises(InvalidRequest):
        parse_bitstream(whole[: max(0, len(whole) - cut)])


@given(payload=PAYLOADS, cut=st.integers(min_value=2, max_value=60))
def test_a_bin_file_without_its_end_is_refused(payload: bytes, cut: int) -> None:
    """No header has the file's length; the packets tell it."""
    words = bitstreams.make_words(payload)
    with pytest.raises(InvalidRequest, match=r"truncated|no bitstream"):
        parse_bitstream(words[: max(4, len(words) - 4 * cut)])


def test_the_header_tells_design_part_and_time() -> None:
    """Facts of a bitstream that people see come from its header."""
    found = parse_bitstream(bitstreams.make_bit(design="gemm_i8"))

    assert (found.design, found.part, found.built) == ("gemm_i8", "7z020clg400", "2026/01/31 12:00:00")


def test_the_image_holds_the_sync_word_as_the_kernel_looks_for_it() -> None:
    """Bytes 66 55 99 aa at a multiple of four, or zynq-fpga answers EINVAL."""
    image = parse_bitstream(bitstreams.make_bit()).image

    assert bytes.fromhex("665599aa") in [image[at : at + 4] for at in range(0, 128, 4)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"\x7fELF" + bytes(100), "ELF library"),
        (b"no bitstream at all!", "no bitstream"),
        (b"\0" * 5, "no whole number of words"),
        (b"\xff\xff" + bitstreams.make_words() + b"\xff\xff", "not where a word begins"),
        (bitstreams.make_bit()[:30], "damaged or cut off"),
    ],
)
def test_invalid_bitstreams_have_specific_errors(content: bytes, message: str) -> None:
    """Each mistake has its own message."""
    with pytest.raises(InvalidRequest, match=message):
        parse_bitstream(content)


def test_a_bitstream_for_another_chip_is_refused_by_its_idcode() -> None:
    """The header's claims do not count."""
    found = parse_bitstream(bitstreams.make_bit(part="7z020clg400", idcode=bitstreams.XC7Z010))

    with pytest.raises(InvalidRequest, match="made for xc7z010, devices/z has xc7z020"):
        check_chip(found, "xc7z020clg400-1", device_name="devices/z")


def test_an_unknown_idcode_is_refused_where_the_board_is_known() -> None:
    """An unknown IDCODE belongs to another chip."""
    found = parse_bitstream(bitstreams.make_bit(idcode=0x0362D093))

    with pytest.raises(InvalidRequest, match="IDCODE 0x362d093"):
        check_chip(found, "xc7z020", device_name="devices/z")


@pytest.mark.parametrize(("part", "is_right"), [("xck24-ubva530-2LV-c", True), ("xczu3eg-sbva484-1-e", False)])
def test_a_board_with_a_chip_newer_than_the_list_goes_by_the_header(part: str, *, is_right: bool) -> None:
    """Its IDCODE is not known here, which must not keep its own bitstreams out."""
    found = parse_bitstream(bitstreams.make_bit(part=part, idcode=0x04712093))

    with contextlib.nullcontext() if is_right else pytest.raises(InvalidRequest, match="made for xczu3"):
        check_chip(found, "xck24", device_name="devices/z")


def test_any_revision_of_the_chip_will_do() -> None:
    """The upper four bits of an IDCODE count the revisions of the silicon."""
    found = parse_bitstream(bitstreams.make_bit(idcode=0x23727093))

    check_chip(found, "xc7z020", device_name="devices/z")


def test_an_encrypted_bitstream_is_not_walked_into() -> None:
    """After the write to CBC the content cannot be parsed: the file is let through, and the kernel decides."""
    words = bitstreams.make_words()
    at = words.index(struct.pack(">I", bitstreams.SYNC)) + 4
    encrypted = words[:at] + struct.pack(">I", 0x30016004) + b"\xde\xad\xbe\xef" * 16

    assert parse_bitstream(encrypted).idcode is None


@pytest.mark.parametrize(
    ("part", "chip"),
    [
        ("7z020clg400", "xc7z020"),
        ("xc7z030sbg485-1", "xc7z030"),
        ("XC7Z007SCLG225", "xc7z007s"),
        ("xczu3eg-sbva484-1-e", "xczu3"),
        ("xczu28dr-ffvg1517-2-e", "xczu28dr"),
        ("xck26-sfvc784-2LV-c", "xck26"),
        ("spartan", ""),
    ],
)
def test_a_parts_package_and_speed_grade_are_ignored(part: str, chip: str) -> None:
    """A part's package, speed grade and letter case do not matter."""
    assert chip_of(part) == chip


def test_a_huge_file_is_refused_unread(tmp_path: Path) -> None:
    """A file larger than a board's memory does not end its agent."""
    path = tmp_path / "huge.bin"
    with path.open("wb") as file:
        file.truncate(2 * 1024**3)

    with pytest.raises(InvalidRequest, match="2048 MiB is no bitstream"):
        read_bitstream(path)


@pytest.mark.slow
def test_endless_padding_is_not_walked(tmp_path: Path) -> None:
    """A file full of padding would keep a small board's core busy for minutes."""
    words = bitstreams.make_words()
    at = words.index(bytes.fromhex("aa995566")) + 4
    path = tmp_path / "padded.bin"
    path.write_bytes(words[:at] + bytes(20_000_000) + words[at:])

    with pytest.raises(InvalidRequest, match="the command that ends the configuration is missing"):
        read_bitstream(path)
