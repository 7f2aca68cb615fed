"""The files of a Zynq's kernel that the agent reads, below a folder; the rest of /proc is this machine's."""

from __future__ import annotations

from pathlib import Path

_SHARED = ("cpuinfo", "meminfo", "stat", "loadavg")


def make_zynq_root(root: Path, *, family: str = "xlnx,zynq-7000", boot_id: str = "boot-1") -> Path:
    """Make it, and return it."""
    (root / "proc/sys/kernel/random").mkdir(parents=True)
    for name in _SHARED:
        (root / "proc" / name).symlink_to(f"/proc/{name}")
    set_boot_id(root, boot_id)
    tree = root / "sys/firmware/devicetree/base"
    tree.mkdir(parents=True)
    (tree / "compatible").write_bytes(f"digilent,pynq-z1\0{family}\0".encode())
    (tree / "model").write_bytes(b"PYNQ-Z1\0")
    converter = root / "sys/bus/iio/devices/iio:device0"
    converter.mkdir(parents=True)
    # An XADC at 45 degC: (2587 + offset) * scale / 1000, as drivers/iio/adc/xilinx-xadc-core.c scales it.
    for name, value in (("raw", "2587"), ("offset", "-2219"), ("scale", "123.040771484")):
        (converter / f"in_temp0_{name}").write_text(f"{value}\n")
    return root


def set_boot_id(root: Path, boot_id: str) -> None:
    """Have the machine be booted again."""
    (root / "proc/sys/kernel/random/boot_id").write_text(f"{boot_id}\n")
