"""Facts about this machine from its device tree. Boards have one, PCs do not.

https://docs.kernel.org/devicetree/usage-model.html
"""

from __future__ import annotations

from pathlib import Path

from fleet.base.machine import read_text

_TREES = ("proc/device-tree", "sys/firmware/devicetree/base")


def read_model(root: Path = Path("/")) -> str:
    """Return the machine's model, "Raspberry Pi 4 Model B Rev 1.4"; empty if there is no device tree."""
    return _read(root, "model").strip("\0 \n")


def read_compatible(root: Path = Path("/")) -> list[str]:
    """Return the machine's compatible strings, most specific first."""
    return [word for word in _read(root, "compatible").split("\0") if word]


def read_bootloader(root: Path = Path("/")) -> str:
    """Return the version of a Raspberry Pi's boot loader; empty on other machines.

    https://www.raspberrypi.com/documentation/computers/configuration.html#device-tree-parameters
    """
    return _read(root, "chosen/bootloader/version").strip("\0 \n")


def _read(root: Path, name: str) -> str:
    for tree in _TREES:
        text = read_text(root / tree / name)
        if text:
            return text
    return ""
