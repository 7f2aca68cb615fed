"""Reads the parts of ELF files that tell where they run: machine, float ABI, symbols; and renames symbols of object
files. Standard library only.

https://refspecs.linuxfoundation.org/elf/gabi4+/contents.html ; for ARM: e_flags in "ELF for the Arm Architecture" and
build attributes in "Addenda to, and Errata in, the ABI for the Arm Architecture", https://github.com/ARM-software/abi-aa
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

HEADER_BYTES = 64
"""Number of leading bytes that `read_header` can use."""

EM_CUDA = 190
EM_AMDGPU = 224

_MACHINES = {3: "i686", 40: "armv7l", 62: "x86_64", 183: "aarch64", 243: "riscv64"}
_ARM_SOFT, _ARM_HARD = 0x200, 0x400
_SHT_SYMTAB, _SHT_DYNSYM, _SHT_ARM_ATTRIBUTES = 2, 11, 0x70000003
_TAG_FILE, _TAG_VFP_ARGS = 1, 28
_TEXT_TAGS = (4, 5, 65, 67)


@dataclass(frozen=True, slots=True, kw_only=True)
class ElfHeader:
    """The first bytes of a file."""

    machine_number: int
    bits: int
    is_little: bool
    flags: int
    """e_flags; 0 where too few bytes were given."""

    abi_version: int

    @property
    def machine(self) -> str:
        """Architecture in the words of `uname -m`."""
        return _MACHINES.get(self.machine_number, f"elf-machine-{self.machine_number}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Section:
    kind: int
    offset: int
    size: int
    link: int
    header_at: int
    """Position of its entry in the section table."""


def read_header(content: bytes) -> ElfHeader | None:
    """Read the header from a file's first 20 to 64 bytes; None if it is not an ELF file."""
    if len(content) < 20 or content[:4] != b"\x7fELF" or content[4] not in (1, 2):
        return None
    order = "<" if content[5] == 1 else ">"
    at = 36 if content[4] == 1 else 48
    flags = struct.unpack_from(f"{order}I", content, at)[0] if len(content) >= at + 4 else 0
    return ElfHeader(
        machine_number=struct.unpack_from(f"{order}H", content, 18)[0],
        bits=32 if content[4] == 1 else 64,
        is_little=content[5] == 1,
        flags=flags,
        abi_version=content[8],
    )


def least_size(content: bytes) -> int:
    """Return the minimum size of an ELF file [bytes], computed from its first 64 bytes; 0 for other files.

    Linkers write the section table last, so its position in the header detects a truncated file.
    """
    header = read_header(content)
    if header is None or len(content) < HEADER_BYTES:
        return 0
    order = "<" if header.is_little else ">"
    is_wide = header.bits == 64
    programs, sections = struct.unpack_from(f"{order}{'QQ' if is_wide else 'II'}", content, 32 if is_wide else 28)
    sizes = struct.unpack_from(f"{order}HHHH", content, 54 if is_wide else 42)
    return int(max(programs + sizes[0] * sizes[1], sections + sizes[2] * sizes[3]))


def arm_float_abi(content: bytes) -> str:
    """Return how a 32-bit ARM file passes floats: "hard", "soft", or "" if the given bytes do not tell.

    Linkers write it into e_flags, but not all do; then the build attributes tell, which stand near the file's end.
    """
    header = read_header(content)
    if header is None or header.machine_number != 40:
        return ""
    if header.flags & _ARM_HARD:
        return "hard"
    if header.flags & _ARM_SOFT:
        return "soft"
    try:
        found = next((section for section in _sections(content) if section.kind == _SHT_ARM_ATTRIBUTES), None)
        if found is None:
            return ""
        attributes = content[found.offset : found.offset + found.size]
        return "hard" if _attribute(attributes, _TAG_VFP_ARGS) == 1 else "soft"
    except (struct.error, IndexError, OverflowError, ValueError):
        return ""


def undefined_symbols(content: bytes) -> frozenset[str]:
    """Return the undefined symbols of a shared library.

    Raises:
        ValueError: it is no complete ELF file.
    """
    header = read_header(content)
    if header is None:
        raise ValueError("no ELF file")
    try:
        sections = _sections(content)
        table = next((section for section in sections if section.kind == _SHT_DYNSYM), None)
        return frozenset(_undefined(content, header, table, sections[table.link])) if table else frozenset()
    except (struct.error, IndexError, OverflowError) as error:
        raise ValueError("the ELF file is cut short") from error


def with_renamed_symbols(content: bytes, names: Mapping[str, str]) -> bytes:
    """Return an object file with other names for some of its symbols.

    The new names follow a copy of the string table at the end of the file, so that nothing else moves.

    Raises:
        ValueError: it is no complete ELF object.
    """
    header = read_header(content)
    table = next((one for one in _sections(content) if one.kind == _SHT_SYMTAB), None)
    if header is None or table is None:
        raise ValueError("no ELF object with symbols")
    strings = _sections(content)[table.link]
    changed, text = bytearray(content), bytearray(content[strings.offset : strings.offset + strings.size])
    order, size = "<" if header.is_little else ">", 24 if header.bits == 64 else 16
    for at in range(table.offset, table.offset + table.size, size):
        (name_at,) = struct.unpack_from(f"{order}I", content, at)
        begin = strings.offset + name_at
        name = names.get(content[begin : content.index(b"\0", begin)].decode())
        if name is not None:
            struct.pack_into(f"{order}I", changed, at, len(text))
            text += name.encode() + b"\0"
    place, layout = (24, "QQ") if header.bits == 64 else (16, "II")
    struct.pack_into(f"{order}{layout}", changed, strings.header_at + place, len(changed), len(text))
    return bytes(changed + text)


def _undefined(content: bytes, header: ElfHeader, table: _Section, names: _Section) -> set[str]:
    order = "<" if header.is_little else ">"
    size, name_at, section_at = (24, 0, 6) if header.bits == 64 else (16, 0, 14)
    found = set()
    for start in range(table.offset + size, table.offset + table.size, size):
        if struct.unpack_from(f"{order}H", content, start + section_at)[0] == 0:
            at = names.offset + struct.unpack_from(f"{order}I", content, start + name_at)[0]
            found.add(content[at : content.index(b"\0", at)].decode())
    return found - {""}


def _sections(content: bytes) -> list[_Section]:
    header = read_header(content)
    if header is None:
        return []
    order = "<" if header.is_little else ">"
    is_wide = header.bits == 64
    (table,) = struct.unpack_from(f"{order}{'Q' if is_wide else 'I'}", content, 40 if is_wide else 32)
    size, count = struct.unpack_from(f"{order}HH", content, 58 if is_wide else 46)
    layout = f"{order}IIQQQQI" if is_wide else f"{order}IIIIIII"
    sections = []
    for index in range(count):
        header_at = table + index * size
        _, kind, _, _, offset, length, link = struct.unpack_from(layout, content, header_at)
        sections.append(_Section(kind=kind, offset=offset, size=length, link=link, header_at=header_at))
    return sections


def _attribute(content: bytes, wanted: int) -> int:
    """Return a number of the file's attributes in .ARM.attributes; 0, the default of all of them, if absent."""
    if content[:1] != b"A":
        raise ValueError("unknown version")
    position = 1
    while position + 4 <= len(content):
        (length,) = struct.unpack_from("<I", content, position)
        vendor_end = content.index(b"\0", position + 4)
        if content[position + 4 : vendor_end] == b"aeabi":
            return _in_subsection(content[vendor_end + 1 : position + length], wanted)
        position += max(length, 4)
    return 0


def _in_subsection(content: bytes, wanted: int) -> int:
    position = 0
    while position < len(content):
        tag, body = _uleb(content, position)
        (size,) = struct.unpack_from("<I", content, body)
        if tag == _TAG_FILE:
            return _in_attributes(content[body + 4 : position + size], wanted)
        position += max(size, 5)
    return 0


def _in_attributes(content: bytes, wanted: int) -> int:
    position = 0
    while position < len(content):
        tag, position = _uleb(content, position)
        if tag in _TEXT_TAGS or (tag > 32 and tag % 2):
            position = content.index(b"\0", position) + 1
            continue
        value, position = _uleb(content, position)
        if tag == 32:  # a number and a text
            position = content.index(b"\0", position) + 1
        if tag == wanted:
            return value
    return 0


def _uleb(content: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = content[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, position
