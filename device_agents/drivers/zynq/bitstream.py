"""Parses bitstreams of Zynq parts and converts them for Linux's FPGA manager. Pure, except for one read.

A .bit file is a header (design, part, date, time, length) and configuration words, highest byte first. A .bin file is
the words alone, in that order or with the bytes of each word reversed. Linux wants the latter, and checks only the
sync word: a bitstream for another part hangs the board, so the part is checked here, by the write to the IDCODE
register that every bitstream contains. Formats: AMD UG470 and UG570, chapter "Configuration Details".
"""

from __future__ import annotations

import array
import re
from dataclasses import dataclass
from pathlib import Path

from fleet.errors import InvalidRequest

_BIT_HEAD = bytes.fromhex("00090ff00ff00ff00ff0000001")
_SYNC = bytes.fromhex("aa995566")
_SWAPPED_SYNC = _SYNC[::-1]
_MOST_BYTES = 64 * 1024**2
"""The largest Zynq needs some 40 MB. Files from peers are held in memory, on boards that have little."""

_MOST_PACKETS = 4_000_000
"""Limit on packets, padding included: more than any part needs, and read within a few seconds."""

_SYNC_WITHIN_BYTES = 4096
"""Dummy words before the sync word are a few dozen."""

_REGISTER_COMMAND, _REGISTER_CBC, _REGISTER_IDCODE = 4, 11, 12
_COMMAND_DESYNC = 13
_TYPE_1, _TYPE_2 = 1, 2
_OPCODE_WRITE = 2

_CHIPS_BY_IDCODE = {
    0x3723093: "xc7z007s",
    0x3722093: "xc7z010",
    0x373C093: "xc7z012s",
    0x3728093: "xc7z014s",
    0x373B093: "xc7z015",
    0x3727093: "xc7z020",
    0x372C093: "xc7z030",
    0x3732093: "xc7z035",
    0x3731093: "xc7z045",
    0x3736093: "xc7z100",
    0x4826093: "xczu1",
    0x4A43093: "xczu2",
    0x4A42093: "xczu3",
    0x4A47093: "xczu4",
    0x4A46093: "xczu5",
    0x484B093: "xczu6",
    0x4A5A093: "xczu7",
    0x484A093: "xczu9",
    0x4A4E093: "xczu11",
    0x4A52093: "xczu15",
    0x4A57093: "xczu17",
    0x4A56093: "xczu19",
    0x4A83093: "xczu21dr",
    0x4A87093: "xczu25dr",
    0x4A86093: "xczu27dr",
    0x4A82093: "xczu28dr",
    0x4A84093: "xczu29dr",
    0x4A88093: "xczu39dr",
    0x4A49093: "xck26",
}
"""IDCODE of the programmable logic without its revision (upper four bits). Zynq-7000: UG585 table 6-24; ZynqMP: the
values that bitstreams hold, which are not those that the processor system shows on JTAG."""

_CHIP = re.compile(r"(?:xc)?(7z(?:007s|012s|014s|\d{3})|zu\d+(?:dr|t(?=[ce]g))?|k\d+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bitstream:
    """One bitstream, ready for the FPGA manager."""

    image: bytes
    """Configuration words, lowest byte first, without a header."""

    design: str = ""
    """From the header: the name of the top module."""

    part: str = ""
    """From the header: "7z020clg400"."""

    built: str = ""
    """From the header: date and time."""

    idcode: int | None = None
    """Value for the IDCODE register, without the revision; None if there is none in clear."""

    @property
    def chip(self) -> str:
        """Chip that it was made for, "xc7z020"; empty if unknown."""
        if self.idcode is not None:
            return _CHIPS_BY_IDCODE.get(self.idcode, "")
        return chip_of(self.part)


def read_bitstream(path: Path) -> Bitstream:
    """Read a file of a peer; see `parse_bitstream`."""
    size = path.stat().st_size
    if size > _MOST_BYTES:
        raise InvalidRequest(f"a file of {size // 1024**2} MiB is no bitstream of a Zynq; give the .bit or .bin file")
    return parse_bitstream(path.read_bytes())


def parse_bitstream(content: bytes) -> Bitstream:
    """Read a .bit or .bin file, told apart by content.

    Raises:
        InvalidRequest: empty, truncated, or no bitstream.
    """
    if not content:
        raise InvalidRequest("the bitstream is empty; write it again with Vivado's write_bitstream")
    fields: dict[str, str] = {}
    words = content
    if content.startswith(_BIT_HEAD):
        fields, words = _split_header(content)
    elif content[:4] == b"\x7fELF":
        raise InvalidRequest("this is an ELF library, no bitstream; give the .bit or .bin file")
    image = _in_manager_order(words)
    return Bitstream(
        image=image,
        design=fields.get("a", "").partition(";")[0],
        part=fields.get("b", ""),
        built=f"{fields.get('c', '')} {fields.get('d', '')}".strip(),
        idcode=_check_packets(image),
    )


def chip_of(part: str) -> str:
    """Return a part's chip, without package and speed grade: "7z020clg400-1" -> "xc7z020"; empty if unknown."""
    found = _CHIP.match(part.strip())
    return f"xc{found[1].lower()}" if found else ""


def fabric_addresses(chip: str) -> tuple[range, ...]:
    """Return the physical address ranges that reach only the fabric; None for unknown chips.

    Those of the general purpose and high performance ports M_AXI_GP and M_AXI_HPM, as UG585 ("System Addresses") and
    UG1085 ("System Address Map") list them.
    """
    gib = 1024**3
    if chip.startswith("xc7z"):
        return (range(1 * gib, 3 * gib),)
    if chip.startswith(("xczu", "xck")):
        return (
            *(range(2 * gib, 3 * gib), range(16 * gib, 24 * gib)),
            *(range(64 * gib, 288 * gib), range(288 * gib, 512 * gib)),
        )
    return ()


def check_chip(bitstream: Bitstream, board_part: str, *, device_name: str) -> None:
    """Refuse a bitstream for another chip. If the board's part is unknown, accept any.

    Raises:
        InvalidRequest: it was made for another one.
    """
    board_chip = chip_of(board_part)
    if not board_chip:
        return
    is_listed = board_chip in _CHIPS_BY_IDCODE.values()
    made_for = bitstream.chip or (chip_of(bitstream.part) if not is_listed else "")
    if not made_for and bitstream.idcode is not None and is_listed:
        made_for = f"a chip with IDCODE {bitstream.idcode:#09x}"
    if made_for and made_for != board_chip:
        raise InvalidRequest(
            f"the bitstream was made for {made_for}, {device_name} has {board_chip}; "
            f"set the project's part to {board_chip} and run the implementation again"
        )


def _split_header(content: bytes) -> tuple[dict[str, str], bytes]:
    """Return the header's fields by their letters, and the rest."""
    fields: dict[str, str] = {}
    at = len(_BIT_HEAD)
    while True:
        key = content[at : at + 1].decode("latin-1")
        if key == "e":
            size = int.from_bytes(content[at + 1 : at + 5], "big")
            words = content[at + 5 :]
            if len(content) < at + 5 or len(words) < size:
                raise InvalidRequest(
                    f"the bitstream is truncated: its header announces {size} bytes, {len(words)} follow; copy it again"
                )
            return fields, words[:size]
        size = int.from_bytes(content[at + 1 : at + 3], "big")
        text = content[at + 3 : at + 3 + size]
        if key not in ("a", "b", "c", "d") or len(text) < size:
            raise InvalidRequest("the header of the .bit file is damaged or cut off; copy the file again")
        fields[key] = text.rstrip(b"\0").decode("latin-1")
        at += 3 + size


def _in_manager_order(words: bytes) -> bytes:
    if len(words) % 4:
        raise InvalidRequest(
            f"the bitstream has {len(words)} bytes, no whole number of words: it is cut off; copy it again"
        )
    head = words[:_SYNC_WITHIN_BYTES]
    if _aligned(head, _SWAPPED_SYNC):
        return words
    if _aligned(head, _SYNC):
        swapped = array.array("I", words)
        swapped.byteswap()
        return swapped.tobytes()
    where = "not where a word begins" if _SYNC in head or _SWAPPED_SYNC in head else "nowhere"
    raise InvalidRequest(
        f"this is no bitstream: the sync word aa995566 is {where} in its first {len(head)} bytes; "
        "give the .bit file of write_bitstream, or a .bin file without a header"
    )


def _aligned(content: bytes, pattern: bytes) -> bool:
    at = content.find(pattern)
    while at >= 0:
        if at % 4 == 0:
            return True
        at = content.find(pattern, at + 1)
    return False


def _check_packets(image: bytes) -> int | None:
    """Walk the packets to the end of the configuration; return the value written to IDCODE."""
    idcode = None
    at = image.find(_SWAPPED_SYNC)
    while at % 4:
        at = image.find(_SWAPPED_SYNC, at + 1)
    at += 4
    for _ in range(_MOST_PACKETS):
        if at >= len(image):
            break
        header = int.from_bytes(image[at : at + 4], "little")
        kind, is_write = header >> 29, header >> 27 & 3 == _OPCODE_WRITE
        register = header >> 13 & 0x1F
        count = (header & 0x7FF if kind == _TYPE_1 else header & 0x7FFFFFF) if is_write else 0
        if kind not in (0, 7, _TYPE_1, _TYPE_2) or (kind == _TYPE_1 and is_write and register == _REGISTER_CBC):
            return idcode  # the rest is encrypted or in a newer format, and cannot be checked
        at += 4
        if kind in (0, 7):
            continue
        if at + 4 * count > len(image):
            raise InvalidRequest(
                f"the bitstream is truncated: {4 * count} bytes of configuration are announced, "
                f"{len(image) - at} follow; copy it again"
            )
        value = int.from_bytes(image[at : at + 4], "little") if count else 0
        if kind == _TYPE_1 and count and register == _REGISTER_IDCODE:
            idcode = value & 0x0FFFFFFF
        if kind == _TYPE_1 and count and register == _REGISTER_COMMAND and value == _COMMAND_DESYNC:
            return idcode
        at += 4 * count
    raise InvalidRequest(
        "the bitstream is truncated: the command that ends the configuration is missing; copy it again"
    )
