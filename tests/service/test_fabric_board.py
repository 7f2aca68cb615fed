"""A Zynq board of this machine's own architecture: client, tracker, agent, driver and worker in front of the core."""

from __future__ import annotations

from pathlib import Path

import pytest

import fleet.aio
from cross.targets.target import host_target
from device_agents.agent import Agent, Home
from device_agents.config import make_drivers, parse_config
from fleet.errors import InvalidRequest, MeasurementError
from fleet.testing import serve_tracker
from tests.emulated.fabric import bitstream, emulated_fabric
from tests.emulated.fabric_session import TILES, build_tilings, program, run, use_a_board
from tests.emulated.fpga_manager import fpga_manager
from tests.emulated.zynq_root import make_zynq_root

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


async def test_leases_program_the_fabric_and_run_on_it(tmp_path: Path) -> None:
    """Programming another bitstream changes the board's results and cycles."""
    root = make_zynq_root(tmp_path / "root", family="xlnx,zynqmp")
    artifacts = build_tilings(host_target(), tmp_path)
    entry = {"driver": "zynq", "name": "zynq", "part": "xczu3eg", "sys_root": str(root)}
    config = parse_config({"devices": [{**entry, "state_dir": str(tmp_path / "fabric"), "emulated": True}]})
    with (
        fpga_manager(root) as manager,
        emulated_fabric(root / "dev/uio0", sysfs_root=root) as fabric,
        manager.followed(fabric.take),
    ):
        async with serve_tracker() as tracker, fleet.aio.connect(tracker.address) as client:
            home = Home(tracker=tracker.address, state_dir=tmp_path / "agent")
            async with Agent(config, make_drivers(config), home) as agent:
                assert await agent.wait_attached(60.0)
                async with client.acquire("kind=zynq") as device:
                    assert device.inventory.facts["fabric_windows"] == "fabric (uio0, 0x4000 bytes)"
                    with pytest.raises(MeasurementError, match="program a bitstream with its description"):
                        await run(device, artifacts[TILES[0]])
                    await device.program(bitstream("gemm_i8", tmp_path))
                    with pytest.raises(MeasurementError, match="program a bitstream with its description"):
                        await run(device, artifacts[TILES[0]])
                    # The description alone is news, too.
                    assert not await program(device, "gemm_i8", tmp_path)
                    await run(device, artifacts[TILES[0]])
                    await program(device, "gemm_i8_relu", tmp_path)
                    wrong = tmp_path / "wrong.yaml"
                    wrong.write_text("name: gemm_i8\nclock: 1\n")
                    with pytest.raises(
                        InvalidRequest, match="the fabric's description: unknown key 'clock'; did you mean 'clock_hz'"
                    ):
                        await device.program(bitstream("gemm_i8", tmp_path), registers=wrong)
                    assert fabric.design == "gemm_i8_relu"

                await use_a_board(client, "kind=zynq", artifacts, tmp_path)
