"""Loading the fabric through the kernel's files, against a file system that answers as the kernel does."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from device_agents.drivers.zynq.fpga import FpgaManager
from fleet.errors import DiskFull, ProgrammingFailed
from fleet.testing import eventually
from tests import bitstreams
from tests.emulated.fpga_manager import FakeFabric, fpga_manager
from tests.emulated.overlays import overlays

IMAGE = bitstreams.swap_words(bitstreams.make_words())

pytestmark = pytest.mark.slow


@pytest.fixture
async def fabric(tmp_path: Path) -> AsyncIterator[FakeFabric]:
    with fpga_manager(tmp_path / "root") as mounted:
        yield mounted


@pytest.fixture
def manager(fabric: FakeFabric, tmp_path: Path) -> FpgaManager:
    return FpgaManager(tmp_path / "root")


async def load(
    manager: FpgaManager, image: bytes = IMAGE, *, is_partial: bool = False, timeout_sec: float = 30
) -> None:
    await manager.load(image, name="test", is_partial=is_partial, timeout_sec=timeout_sec)


async def test_a_good_image_operates(manager: FpgaManager, fabric: FakeFabric, tmp_path: Path) -> None:
    """The kernel gets exactly these bytes, and the file is removed afterwards."""
    await load(manager)

    assert manager.state == "operating"
    assert fabric.loaded == [IMAGE]
    assert list((tmp_path / "root/lib/firmware").iterdir()) == []


async def test_a_partial_image_is_announced_as_one(manager: FpgaManager, fabric: FakeFabric) -> None:
    """The kernel gets the flag for a partial image only for that image."""
    await load(manager)
    await load(manager, b"\0" * 16, is_partial=True)
    await load(manager)

    assert fabric.flags == ["0", "1", "0"]


async def test_a_kernel_error_has_errno_and_state(manager: FpgaManager) -> None:
    """EINVAL, and the state that it left."""
    with pytest.raises(ProgrammingFailed, match=r"EINVAL, state 'write init error': .* no bitstream of this chip"):
        await load(manager, bitstreams.make_words())


async def test_a_fabric_that_does_not_answer_is_named(manager: FpgaManager, fabric: FakeFabric) -> None:
    """ETIMEDOUT comes from the kernel's driver."""
    fabric.fault("timeout")

    with pytest.raises(ProgrammingFailed, match=r"ETIMEDOUT.*power-cycle"):
        await load(manager)


async def test_success_is_not_believed_without_the_state(manager: FpgaManager, fabric: FakeFabric) -> None:
    """The write went well, and yet the fabric does not operate."""
    fabric.fault("wrong state")

    with pytest.raises(ProgrammingFailed, match="state is 'write complete' instead of 'operating'"):
        await load(manager)


@pytest.mark.skipif(os.geteuid() != 0, reason="a small file system is mounted for it")
async def test_a_full_disk_is_left_as_it_was(manager: FpgaManager, tmp_path: Path) -> None:
    """An image that does not fit beside the present one leaves no piece."""
    firmware = tmp_path / "root/lib/firmware"
    mounted = await run("mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(firmware))
    if mounted != 0:
        pytest.skip("mounting is not allowed here")
    try:
        with pytest.raises(DiskFull, match="no room for a bitstream of 100000 bytes"):
            await manager.stage(bytes(100_000), name="test")

        assert list(firmware.iterdir()) == []
    finally:
        await run("umount", str(firmware))


async def run(*command: str) -> int:
    process = await asyncio.create_subprocess_exec(*command)
    return await process.wait()


async def test_a_hung_write_does_not_block_other_devices(manager: FpgaManager, fabric: FakeFabric) -> None:
    """It is given up at its time limit; others get an error until it returns from the kernel, then they work."""
    fabric.fault("hang")
    with pytest.raises(ProgrammingFailed, match=r"did not come up within 0\.5 s"):
        await load(manager, timeout_sec=0.5)

    assert manager.is_hanging
    with pytest.raises(ProgrammingFailed, match="still hangs in the kernel"):
        await load(manager)

    fabric.fault("")
    await eventually(lambda: not manager.is_hanging)
    await load(manager)
    assert manager.state == "operating"


async def test_a_kernel_without_fpga_manager_reports_the_requirement(tmp_path: Path) -> None:
    """A plain PC, or a kernel built without it."""
    with pytest.raises(ProgrammingFailed, match="CONFIG_FPGA"):
        await load(FpgaManager(tmp_path))


async def test_without_the_attribute_an_overlay_programs_the_region(tmp_path: Path) -> None:
    """Overlays are applied one after the other, and the earlier one is removed; the kernel's errors are named here,
    too.
    """
    root = tmp_path / "root"
    with overlays(root) as applied:
        manager = FpgaManager(root)
        await load(manager)
        await load(manager, b"\0" * 16, is_partial=True)

        assert applied.read() == [
            ("fleet", "/fpga-region", False, IMAGE),
            ("fleet", "/fpga-region", True, b"\0" * 16),
        ]
        assert manager.state == "operating"
        assert list((root / "lib/firmware").iterdir()) == []
        with pytest.raises(
            ProgrammingFailed, match=r"overlays/fleet/path failed with EINVAL, state 'write init error'"
        ):
            await load(manager, bitstreams.make_words())


async def test_a_device_tree_without_a_region_cannot_take_an_overlay(tmp_path: Path) -> None:
    """The error names the missing property."""
    root = tmp_path / "root"
    with overlays(root):
        (root / "sys/firmware/devicetree/base/fpga-region/compatible").unlink()

        with pytest.raises(ProgrammingFailed, match="compatible with 'fpga-region'"):
            await load(FpgaManager(root))


async def test_a_mainline_kernel_without_overlays_is_reported(tmp_path: Path) -> None:
    """The error explains that the kernel has an FPGA manager without a programming interface."""
    attributes = tmp_path / "sys/class/fpga_manager/fpga0"
    attributes.mkdir(parents=True)
    (attributes / "state").write_text("unknown\n")

    assert "neither the FPGA manager's attribute 'firmware'" in FpgaManager(tmp_path).obstacle()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become someone who may not")
def test_missing_rights_come_with_the_remedy(tmp_path: Path) -> None:
    """A process that is not root gets the remedy before anything is written."""
    attributes = tmp_path / "sys/class/fpga_manager/fpga0"
    attributes.mkdir(parents=True)
    for name in ("state", "flags", "firmware"):
        (attributes / name).write_text("0\n")
        (attributes / name).chmod(0o444)
    code = (
        "import os, sys; from pathlib import Path; from device_agents.drivers.zynq.fpga import FpgaManager; "
        "os.setgid(65534); os.setuid(65534); print(FpgaManager(Path('.')).obstacle())"
    )

    tmp_path.chmod(0o755)

    # From inside, by a relative path: the folders above need not be open to anyone else.
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)

    assert "no permission to write sys/class/fpga_manager/fpga0/firmware" in done.stdout
    assert "run the agent as root" in done.stdout
