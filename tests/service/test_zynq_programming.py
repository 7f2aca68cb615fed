"""Programming a board's fabric under a lease: client, tracker, agent and driver, on an emulated FPGA manager."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import fleet.aio
from device_agents.agent import Agent, Home
from device_agents.config import make_drivers, parse_config
from device_agents.driver import NoStrays, ProgramOrder
from device_agents.drivers.zynq.driver import ZynqDriver
from device_agents.drivers.zynq.fabric import ZynqFabric
from device_agents.registry import find_devices
from fleet.base.digests import digest_of
from fleet.client.device import Device
from fleet.errors import DeviceError, InvalidRequest, NotProgrammable, ProgrammingFailed
from fleet.testing import ServedTracker, eventually, serve_tracker
from tests import bitstreams
from tests.emulated.fpga_manager import FakeFabric, fpga_manager
from tests.emulated.zynq_root import make_zynq_root, set_boot_id

REGISTERS = (
    "{name: gemm, clock_hz: 100000000, window: {uio: gemm, size_bytes: 4096}, "
    "registers: {start: {offset: 0}}, functions: {}}"
)

pytestmark = pytest.mark.slow


@dataclass
class Board:
    """A Zynq board with an agent that can be restarted."""

    tracker: ServedTracker
    folder: Path
    fabric: FakeFabric

    def entry(self, name: str) -> dict[str, object]:
        root, state_dir = str(self.folder / "root"), str(self.folder / f"fabric-{name}")
        return {"driver": "zynq", "name": name, "part": "xc7z020", "sys_root": root, "state_dir": state_dir}

    @contextlib.asynccontextmanager
    async def agent(self, name: str = "zynq") -> AsyncIterator[Agent]:
        config = parse_config({"devices": [self.entry(name)]})
        home = Home(tracker=self.tracker.address, state_dir=self.folder / f"agent-{name}")
        async with Agent(config, make_drivers(config), home) as agent:
            assert await agent.wait_attached(60.0)
            yield agent

    @contextlib.asynccontextmanager
    async def leased(self) -> AsyncIterator[Device]:
        async with (
            self.agent(),
            fleet.aio.connect(self.tracker.address) as client,
            client.acquire("kind=zynq") as device,
        ):
            yield device

    def bitstream(self, name: str, **fields: object) -> Path:
        path = self.folder / f"{name}.bit"
        path.write_bytes(bitstreams.make_bit(name.encode(), design=name, **fields))  # type: ignore[arg-type]
        return path


@pytest.fixture
async def board(tmp_path: Path) -> AsyncIterator[Board]:
    make_zynq_root(tmp_path / "root")
    with fpga_manager(tmp_path / "root") as fabric:
        async with serve_tracker() as tracker:
            yield Board(tracker, tmp_path, fabric)


def image_of(path: Path) -> bytes:
    content = path.read_bytes()
    return bitstreams.swap_words(content[content.index(b"\xff" * 16) :])


def order_for(path: Path, registers_yaml: str = "") -> ProgramOrder:
    return ProgramOrder(path=path, digest=digest_of(path), registers_yaml=registers_yaml)


async def label_of(client: fleet.aio.Fleet) -> str:
    snapshot = await client.snapshot()
    return snapshot.devices[0].bitstream_digest


async def test_a_lease_programs_the_fabric_once(board: Board) -> None:
    """The header is removed and bytes are swapped; a loaded bitstream is loaded again only on demand."""
    design = board.bitstream("gemm")
    async with board.leased() as device:
        loaded = [await device.program(design), await device.program(design)]
        loaded.append(await device.program(str(design), force=True))

    assert loaded == [True, False, True]
    assert board.fabric.loaded == [image_of(design)] * 2


async def test_the_bitstream_label_outlives_the_lease(board: Board) -> None:
    """The label lives longer than the lease, and finds the board."""
    design = board.bitstream("gemm")
    async with board.agent(), fleet.aio.connect(board.tracker.address) as client:
        async with client.acquire("kind=zynq") as device:
            await device.program(design)

        async def is_seen() -> bool:
            return await label_of(client) == digest_of(design)

        await eventually(is_seen)
        async with client.acquire(f"kind=zynq,bitstream={digest_of(design)}", wait_timeout_sec=60) as device:
            assert await device.program(design) is False


async def test_a_failed_bitstream_gives_way_to_the_last_good_one(board: Board) -> None:
    """The holder's error names both bitstreams, the fleet sees the good one, and the board goes on."""
    good, bad = board.bitstream("good"), board.bitstream("bad")
    async with board.leased() as device:
        await device.program(good)
        board.fabric.fault("hang")
        programming = asyncio.create_task(device.program(bad))
        await eventually(lambda: (board.fabric.control / "state").read_text() == "write")
        board.fabric.fault("")
        with pytest.raises(ProgrammingFailed, match=r"bad .* was not loaded: .*ETIMEDOUT.* good .* loaded again"):
            await programming

        assert board.fabric.loaded == [image_of(good), image_of(good)]
        assert await device.program(good) is False


async def test_a_board_that_cannot_go_back_takes_no_leases(board: Board) -> None:
    """The board's results would be unknown."""
    async with board.agent(), fleet.aio.connect(board.tracker.address) as client:
        async with client.acquire("kind=zynq") as device:
            await device.program(board.bitstream("good"))
            board.fabric.fault("io")
            with pytest.raises(ProgrammingFailed, match=r"Going back to good .* failed, too"):
                await device.program(board.bitstream("bad"))

        async def reason() -> str:
            return (await client.snapshot()).devices[0].reason

        assert "repair the board" in await eventually(reason)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (bitstreams.make_bit(idcode=bitstreams.XC7Z010), "made for xc7z010, devices/zynq has xc7z020"),
        (bitstreams.make_bit()[:-8], "truncated"),
        (b"no bitstream", "no bitstream"),
        (b"", "is empty"),
    ],
)
async def test_a_bad_file_never_reaches_the_fabric(board: Board, content: bytes, message: str) -> None:
    """The loaded bitstream stays, without a reload."""
    good, bad = board.bitstream("good"), board.folder / "bad.bit"
    bad.write_bytes(content)
    async with board.leased() as device:
        await device.program(good)
        with pytest.raises(InvalidRequest, match=message):
            await device.program(bad)

        assert await device.program(good) is False
    assert len(board.fabric.loaded) == 1


async def test_a_window_into_main_memory_is_refused_before_anything_is_programmed(board: Board) -> None:
    """The chip determines the fabric's address range."""
    design = board.bitstream("gemm")
    inside, outside = board.folder / "inside.yaml", board.folder / "outside.yaml"
    inside.write_text(REGISTERS.replace("uio: gemm", "mem: 0x43c00000"))
    outside.write_text(REGISTERS.replace("uio: gemm", "mem: 0x100000"))
    async with board.leased() as device:
        with pytest.raises(InvalidRequest, match="0x40000000 to 0xbfffffff"):
            await device.program(design, registers=outside)
        assert board.fabric.loaded == []

        assert await device.program(design, registers=inside)


async def test_a_failed_programming_start_keeps_the_bitstream(board: Board) -> None:
    """Without a place for the kernel's file, programming fails with one sentence, and the board keeps its bitstream and
    stays healthy.
    """
    good, late = board.bitstream("good"), board.bitstream("late")
    firmware = board.folder / "root/lib/firmware"
    async with board.leased() as device:
        await device.program(good)
        firmware.rmdir()
        firmware.write_text("in the way")
        with pytest.raises(ProgrammingFailed, match=r"lib/firmware"):
            await device.program(late)
        firmware.unlink()
        firmware.mkdir()

        assert await device.program(good) is False
        assert board.fabric.loaded == [image_of(good)]
        assert await device.program(late) is True


async def test_a_partial_bitstream_needs_a_full_one_under_it(board: Board) -> None:
    """Going back loads both again, in order."""
    full, part, bad = board.bitstream("full"), board.bitstream("part"), board.bitstream("bad")
    async with board.leased() as device:
        with pytest.raises(ProgrammingFailed, match="program the full bitstream"):
            await device.program(part, partial=True)
        await device.program(full)
        await device.program(part, partial=True)
        board.fabric.fault("hang")
        going_back = asyncio.create_task(device.program(bad))
        await eventually(lambda: (board.fabric.control / "state").read_text() == "write")
        board.fabric.fault("")
        with pytest.raises(ProgrammingFailed, match=r"part .* loaded again"):
            await going_back

    assert board.fabric.flags == ["0", "1"] * 2


async def test_a_restarted_agent_restores_the_bitstream_label(board: Board) -> None:
    """It knows as long as the machine was not rebooted and the fabric not lost."""
    design = board.bitstream("gemm")
    async with board.leased() as device:
        await device.program(design)

    async with board.agent() as agent:
        assert agent.device_names == ["devices/zynq"]
        async with fleet.aio.connect(board.tracker.address) as client:
            assert await label_of(client) == digest_of(design)


@pytest.mark.parametrize("lost", ["boot", "state"])
async def test_after_a_boot_the_fabric_counts_as_empty(board: Board, lost: str) -> None:
    """The last good bitstream is still known as a fallback."""
    design = board.bitstream("gemm")
    async with board.leased() as device:
        await device.program(design)
    if lost == "boot":
        set_boot_id(board.folder / "root", "boot-2")
    else:
        board.fabric.set_state("unknown")

    async with board.agent(), fleet.aio.connect(board.tracker.address) as client:
        assert await label_of(client) == ""
        async with client.acquire("kind=zynq") as device:
            assert await device.program(design) is True


async def test_a_revoked_lease_leaves_a_known_fabric(board: Board) -> None:
    """Programming continues to its end, and the next session starts after it."""
    design = board.bitstream("gemm")
    async with board.agent(), fleet.aio.connect(board.tracker.address) as client:
        async with client.acquire("kind=zynq") as device:
            board.fabric.fault("hang")
            programming = asyncio.create_task(device.program(design))
            await eventually(lambda: (board.fabric.control / "state").read_text() == "write")
        programming.cancel()
        await asyncio.gather(programming, return_exceptions=True)
        asyncio.get_running_loop().call_later(0.3, board.fabric.fault, "")

        async with client.acquire("kind=zynq") as device:
            assert await device.program(design) is True
        assert board.fabric.loaded == [image_of(design)]


async def test_no_kernel_runs_while_the_fabric_is_programmed(board: Board) -> None:
    """If the client leaves in the middle, a worker waits for the end and then knows the loaded design."""
    (driver,) = make_drivers(parse_config({"devices": [board.entry("zynq")]}))
    await driver.open(NoStrays())
    good, hung = board.bitstream("good"), board.bitstream("hung")
    try:
        assert driver.fabric is not None
        await driver.fabric.program(order_for(good, REGISTERS))
        board.fabric.fault("hang")
        programming = asyncio.create_task(driver.fabric.program(order_for(hung)))
        await eventually(lambda: (board.fabric.control / "state").read_text() == "write")
        programming.cancel()
        preparing = asyncio.create_task(driver.prepare())
        await asyncio.wait({programming})
        _, pending = await asyncio.wait({preparing}, timeout=0.3)
        assert pending

        board.fabric.fault("")
        await preparing

        assert driver.fabric.digest == digest_of(good)
        assert driver.worker_spec().settings["registers_yaml"] == REGISTERS
    finally:
        board.fabric.fault("")
        await driver.close()


async def test_no_worker_is_started_for_the_former_design(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session opened during programming waits, and gets a worker that knows the new registers."""
    begun, going_on = asyncio.Event(), asyncio.Event()
    program = ZynqFabric.program

    async def late(fabric: ZynqFabric, order: ProgramOrder) -> bool:
        begun.set()
        await going_on.wait()
        return await program(fabric, order)

    monkeypatch.setattr(ZynqFabric, "program", late)
    async with (
        board.agent() as agent,
        fleet.aio.connect(board.tracker.address) as client,
        client.acquire("kind=zynq") as device,
    ):
        programming = asyncio.create_task(device.program(board.bitstream("gemm")))
        await begun.wait()
        opening = asyncio.create_task(device.open())
        _, pending = await asyncio.wait({opening}, timeout=0.3)
        assert pending
        assert agent.worker_pids == []

        going_on.set()
        await asyncio.gather(programming, opening)


async def test_programming_timeouts_are_bounded(board: Board) -> None:
    """The next holder waits for a load in progress, so its time limit is bounded."""
    async with board.leased() as device:
        for timeout_sec in (0.0, 31_536_000.0):
            with pytest.raises(InvalidRequest, match="up to 600"):
                await device.program(board.bitstream("gemm"), timeout_sec=timeout_sec)
    assert board.fabric.loaded == []


async def test_a_killed_agent_leaves_no_image_to_its_successor(board: Board) -> None:
    """The next start removes the leftovers of a killed agent, and keeps other files."""
    firmware = board.folder / "root/lib/firmware"
    for name in (f"fleet-{'0f' * 8}.bin", "fleet-overlay.dtbo", "fleet-notes.bin", "wifi.bin"):
        (firmware / name).write_text("left")

    async with board.agent():
        assert sorted(path.name for path in firmware.iterdir()) == ["fleet-notes.bin", "wifi.bin"]


async def test_a_device_without_a_fabric_takes_no_bitstream(board: Board, tmp_path: Path) -> None:
    """It is not even uploaded."""
    config = parse_config({"devices": [{"driver": "simulated", "name": "sim"}]})
    home = Home(tracker=board.tracker.address, state_dir=tmp_path / "sim")
    async with Agent(config, make_drivers(config), home) as agent:
        assert await agent.wait_attached(60.0)
        async with fleet.aio.connect(board.tracker.address) as client, client.acquire("simulated") as device:
            with pytest.raises(NotProgrammable, match="has no fabric to program"):
                await device.program(board.bitstream("gemm"))
    assert list((tmp_path / "sim/artifacts").glob("*.so")) == []


def test_a_zynq_is_found_by_its_device_tree(tmp_path: Path) -> None:
    """Boards of either family are found, and are not served as a mere CPU."""
    assert ZynqDriver.find(tmp_path) == []
    for number, family in enumerate(("xlnx,zynq-7000", "xlnx,zynqmp")):
        root = make_zynq_root(tmp_path / str(number), family=family)
        assert {"driver": "zynq"} in find_devices(root)
        assert {"driver": "cpu"} not in find_devices(root)


async def test_the_converter_of_the_fabric_tells_the_temperature(tmp_path: Path) -> None:
    """(raw + offset) * scale is thousandths of a degree."""
    root = make_zynq_root(tmp_path / "root")
    (driver,) = ZynqDriver.from_config({"sys_root": str(root)}, where="test", host_name="h")
    await driver.open(NoStrays())
    try:
        assert (await driver.telemetry()).temp_c == pytest.approx(45.28, abs=0.1)
    finally:
        await driver.close()


async def test_another_machine_is_refused(tmp_path: Path) -> None:
    """A laptop's times would otherwise be stored as a board's; an explicit part in the configuration is trusted."""
    entry = {"driver": "zynq", "sys_root": str(tmp_path), "state_dir": str(tmp_path / "fabric")}
    (stranger,) = make_drivers(parse_config({"devices": [entry]}))
    with pytest.raises(DeviceError, match="no Zynq: it has no device tree; use the driver cpu"):
        await stranger.open(NoStrays())
    (named,) = make_drivers(parse_config({"devices": [{**entry, "part": "xc7z020"}]}))
    await named.open(NoStrays())
    await named.close()
