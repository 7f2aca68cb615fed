"""Versions of a Linux machine's software below its programs: `fleet.domain.environment` compares them."""

from __future__ import annotations

import re
from pathlib import Path

from device_agents.machine.device_tree import read_bootloader
from fleet.base.machine import read_text

_RELEASE = ("PRETTY_NAME", "IMAGE_VERSION", "BUILD_ID")
"""Fields of os-release that name a system and the build of its image.

https://www.freedesktop.org/software/systemd/man/latest/os-release.html
"""


def read_software(root: Path = Path("/")) -> dict[str, str]:
    """Return the kernel, the system, the firmware and the processor's microcode, as far as they are known."""
    microcode = re.search(r"^microcode\s*:\s*(\S+)", read_text(root / "proc/cpuinfo"), re.MULTILINE)
    found = {
        "kernel": read_text(root / "proc/sys/kernel/osrelease").strip(),
        "system": _system(read_text(root / "etc/os-release")),
        "firmware": read_text(root / "sys/class/dmi/id/bios_version").strip() or read_bootloader(root),
        "microcode": microcode[1] if microcode else "",
    }
    return {name: text for name, text in found.items() if text}


def _system(release: str) -> str:
    fields = dict(re.findall(r"""^(\w+)=["']?(.*?)["']?$""", release, re.MULTILINE))
    return " ".join(fields[name] for name in _RELEASE if fields.get(name))
