"""Builds device-tree overlays that tell Linux to program a fabric region, without a device-tree compiler. Pure.

The overlay has one fragment. Its target is the region, and its content names the firmware file. Format: Devicetree
Specification 0.4, chapter 5; properties: Documentation/devicetree/bindings/fpga/fpga-region.yaml of Linux.
"""

from __future__ import annotations

import struct

_MAGIC = 0xD00DFEED
_BEGIN_NODE, _END_NODE, _PROPERTY, _END = 1, 2, 3, 9
_HEADER_BYTES = 40
_RESERVATIONS = bytes(16)
"""An empty memory reservation block: its terminating entry of zeros."""


def make_overlay(region_path: str, firmware_name: str, *, is_partial: bool = False) -> bytes:
    """Return the .dtbo that programs the region at `region_path` ("/fpga-region") with a file of /lib/firmware."""
    strings = bytearray()
    offsets: dict[str, int] = {}

    def prop(name: str, content: bytes) -> bytes:
        if name not in offsets:
            offsets[name] = len(strings)
            strings.extend(name.encode() + b"\0")
        return struct.pack(">3I", _PROPERTY, len(content), offsets[name]) + _padded(content)

    def node(name: str, *content: bytes) -> bytes:
        head = struct.pack(">I", _BEGIN_NODE) + _padded(name.encode() + b"\0")
        return head + b"".join(content) + struct.pack(">I", _END_NODE)

    target = prop("target-path", region_path.encode() + b"\0")
    wanted = [prop("firmware-name", firmware_name.encode() + b"\0")]
    if is_partial:
        wanted.append(prop("partial-fpga-config", b""))
    fragment = node("fragment@0", target, node("__overlay__", *wanted))
    structure = node("", fragment) + struct.pack(">I", _END)
    at_structure = _HEADER_BYTES + len(_RESERVATIONS)
    at_strings = at_structure + len(structure)
    header = struct.pack(
        ">10I", _MAGIC, at_strings + len(strings), at_structure, at_strings, _HEADER_BYTES, 17, 16, 0,
        len(strings), len(structure),
    )  # fmt: skip
    return header + _RESERVATIONS + structure + bytes(strings)


def _padded(content: bytes) -> bytes:
    return content + bytes(-len(content) % 4)
