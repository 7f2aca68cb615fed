"""Artifacts and arguments that do not fit a device are refused by the client, before the agent receives them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import fleet.aio
from fleet.artifacts.artifact import Artifact
from fleet.errors import ArtifactRefused, InvalidRequest
from fleet.v1 import device_pb2
from tests.service.client_fakes import small_fleet

PI4 = device_pb2.Inventory(
    kind="raspberry_pi",
    labels={"arch": "aarch64", "asimd": "true"},
    target_json='{"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a72"}',
)
ZYNQ = device_pb2.Inventory(kind="zynq", labels={"arch": "armv7l", "neon": "true"})


def library(folder: Path, machine: int, *, flags: int = 0, **target: str) -> Artifact:
    """Write something with the header of a shared library."""
    content = bytearray(200)
    content[:7] = b"\x7fELF" + bytes((1 if machine == 40 else 2, 1, 1))
    content[18:20] = machine.to_bytes(2, "little")
    content[36:40] = flags.to_bytes(4, "little") if machine == 40 else bytes(4)
    path = folder / "it.so"
    path.write_bytes(content)
    return Artifact.of_file(path, target_json=json.dumps({"kind": "llvm", **target}) if target else "")


@pytest.mark.parametrize(
    ("inventory", "machine", "facts", "said"),
    [
        (PI4, 62, {}, "built for x86_64, devices/small is aarch64"),
        (PI4, 183, {"mcpu": "cortex-a76"}, "CPU features that devices/small lacks: asimddp .by mcpu cortex-a76."),
        (ZYNQ, 40, {"flags": 0x5000200}, "soft-float"),
    ],
)
async def test_it_is_refused_with_the_reason_before_anything_is_sent(
    inventory: device_pb2.Inventory, machine: int, facts: dict[str, object], said: str, tmp_path: Path
) -> None:
    """Architecture, CPU features, float ABI: each in a message of its own."""
    artifact = library(tmp_path, machine, **facts)  # type: ignore[arg-type]
    async with small_fleet() as (address, tracker, agent), fleet.aio.connect(address) as client:
        tracker.device.inventory.CopyFrom(inventory)
        async with client.acquire("name=small") as device:
            with pytest.raises(ArtifactRefused, match=said):
                await device.ensure([artifact])

        assert agent.stored == {}
        assert agent.puts == 0


async def test_loading_an_incompatible_module_names_the_target_to_build_for(tmp_path: Path) -> None:
    """The message comes before anything runs, with the board's name if the device is one, else its target."""
    path = library(tmp_path, 62).path
    board = device_pb2.Inventory()
    board.CopyFrom(PI4)
    board.labels["board"] = "rpi4-64"
    async with small_fleet() as (address, tracker, agent), fleet.aio.connect(address) as client:
        for inventory, said in ((PI4, 'own target: {"kind": "llvm", "mtriple"'), (board, "own target: rpi4-64$")):
            tracker.device.inventory.CopyFrom(inventory)
            async with client.acquire("name=small") as device:
                with pytest.raises(ArtifactRefused, match=said):
                    device.load(path)
                with pytest.raises(InvalidRequest, match=r"cannot read .*nowhere\.so"):
                    device.load(tmp_path / "nowhere.so")

    assert agent.puts == 0


async def test_a_compatible_module_is_loaded(tmp_path: Path) -> None:
    """Hard-float ARM code for the board's own core."""
    artifact = library(tmp_path, 40, flags=0x5000400, mcpu="cortex-a9")
    async with small_fleet() as (address, tracker, agent), fleet.aio.connect(address) as client:
        tracker.device.inventory.CopyFrom(ZYNQ)
        async with client.acquire("name=small") as device:
            await device.ensure([artifact])

        assert list(agent.stored) == [artifact.digest]
