"""Hardware that appears after the agent's start, with the real tracker and the real client."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import fleet.aio
from device_agents.agent import Agent, Home
from device_agents.config import make_drivers, parse_config, short_host_name
from device_agents.drivers.opencl.devices import find_opencl_devices
from device_agents.drivers.opencl.driver import target_of
from device_agents.drivers.rocm.driver import RocmDriver
from device_agents.machine.host import read_host
from device_agents.serving.timing import Timing
from fleet.artifacts.artifact import Artifact
from fleet.domain.measuring import TensorSpec, Trial
from fleet.testing import ServedTracker, eventually, serve_tracker
from tests.contract.amd_cards import put_card
from tests.emulated.pi_files import PI_4, put_files
from tests.emulated.zynq_root import make_zynq_root
from tests.service.opencl_presence import require_opencl
from tests.system.fleet_processes import FLEET

pytestmark = pytest.mark.slow
HERE = {"driver": "simulated", "name": "here", "time_scale": 0.0}
SIZE = 48


QUICK = Timing(search_pause_sec=0.05, search_share=1.0, health_sec=0.05, heartbeat_sec=0.1)


@asynccontextmanager
async def serving(folder: Path, *entries: dict[str, Any]) -> AsyncIterator[tuple[ServedTracker, Agent]]:
    """Serve a device that is here, and these entries."""
    async with serve_tracker() as tracker:
        config = parse_config({"devices": [HERE, *entries]})
        home = Home(tracker=tracker.address, state_dir=folder / "agent")
        agent = Agent(config, make_drivers(config), home, timing=QUICK)
        async with agent:
            assert await agent.wait_attached(60.0)
            yield tracker, agent


def reasons(tracker: ServedTracker) -> dict[str, str]:
    """Return the tracker's reason for each device; empty for devices that can be leased."""
    devices = tracker.tracker.state.devices
    return {
        name.removeprefix("devices/"): device.reason if device.is_attached else "offline"
        for name, device in devices.items()
    }


def labels_of(tracker: ServedTracker, name: str) -> dict[str, str]:
    return tracker.tracker.state.devices[f"devices/{name}"].labels


@pytest.fixture(scope="module")
def matmul(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A product of two matrices by OpenCL."""
    require_opencl()
    path = tmp_path_factory.mktemp("opencl") / "matmul.so"
    target = json.dumps(target_of(find_opencl_devices()[0], read_host()))
    command = [FLEET, "build", f"matmul-{SIZE}", "--untuned", "--target", target, "-o", str(path)]
    subprocess.run(command, check=True, timeout=100)
    return path


async def test_a_driver_that_is_installed_later_is_found(
    tmp_path: Path, matmul: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent runs on, the device takes a lease, and its kernels run; no runtime was loaded for them before."""
    vendors = tmp_path / "vendors"
    vendors.mkdir()
    monkeypatch.setenv("OCL_ICD_VENDORS", str(vendors))
    built = Artifact.of_file(matmul)
    given = TensorSpec((SIZE, SIZE), "float32")
    made = TensorSpec((SIZE, SIZE), "float32", is_output=True)
    trial = Trial(candidate_id="c", artifact_digest=built.digest, args=(given, given, made))

    async with serving(tmp_path, {"driver": "opencl", "name": "cl"}) as (tracker, agent):
        before = reasons(tracker)["cl"]
        warm_pid = agent.warm_pid
        shutil.copy("/etc/OpenCL/vendors/pocl.icd", vendors)
        await eventually(lambda: reasons(tracker) == {"here": "", "cl": ""}, timeout_sec=60)
        async with fleet.aio.connect(tracker.address) as client, client.acquire("opencl") as device:
            await device.ensure([built])
            (result,) = [result async for result in device.measure([trial])]

        assert warm_pid == agent.warm_pid
    assert "no OpenCL driver is installed" in before
    assert result.error is None, result.error_message
    assert result.run_secs


@pytest.mark.parametrize("kind", ["raspberry_pi", "zynq"])
async def test_a_board_that_shows_itself_later_is_served(kind: str, tmp_path: Path) -> None:
    """An entry that names its device keeps all but the fault."""
    root, ready = tmp_path / "root", tmp_path / "ready"
    _ = put_files(ready, PI_4) if kind == "raspberry_pi" else make_zynq_root(ready)
    more = {"state_dir": str(tmp_path / "fabric")} if kind == "zynq" else {}

    async with serving(tmp_path, {"driver": kind, "name": "board", "sys_root": str(root), **more}) as (tracker, agent):
        before = reasons(tracker)["board"]
        labels = [labels_of(tracker, "board")]
        ready.rename(root)
        await eventually(lambda: "missing" not in labels_of(tracker, "board"))
        labels.append(labels_of(tracker, "board"))
        async with fleet.aio.connect(tracker.address) as client, client.acquire("name=board") as device:
            assert "devices/board" == device.name

        assert ["devices/here", "devices/board"] == agent.device_names
    assert "this machine is no" in before
    assert ["true", None] == [each.get("missing") for each in labels]
    assert "cores" in labels[1]


async def test_labels_are_independent_of_when_a_device_appears(tmp_path: Path) -> None:
    """The labels count all processors of the machine, even those that the agent leaves to another device."""
    first, *_ = sorted(os.sched_getaffinity(0))
    pinned = {"driver": "cpu", "name": "pinned", "cpus": [first]}
    root = tmp_path / "root"
    late = {"driver": "raspberry_pi", "name": "pi", "sys_root": str(root)}

    async with serving(tmp_path, pinned, late) as (tracker, _):
        put_files(tmp_path / "ready", PI_4).rename(root)
        await eventually(lambda: reasons(tracker)["pi"] == "")
        labels = [labels_of(tracker, "pi")]
    async with serving(tmp_path / "again", pinned, late) as (tracker, _):
        labels.append(labels_of(tracker, "pi"))

    assert labels[0] == labels[1]


async def test_an_appearing_device_replaces_its_missing_entry(tmp_path: Path) -> None:
    """A device that appears replaces the line of its entry, under its own name. While it is missing, the newest reason
    is shown; an entry for a device that is already served says so.
    """
    stages = {name: tmp_path / name for name in ("driver", "card")}
    (stages["driver"] / "sys/class/kfd").mkdir(parents=True)
    put_card(stages["card"], "mi300x")
    root = tmp_path / "root"
    entry = {"driver": "rocm", "sys_root": str(root)}
    base = f"{short_host_name()}-rocm"

    async with serving(tmp_path, entry, entry) as (tracker, agent):
        before = reasons(tracker)
        show(root, stages["driver"])
        await eventually(lambda: all("lists no GPU" in reasons(tracker)[name] for name in (base, f"{base}-1")))
        show(root, stages["card"])
        await eventually(lambda: "served already" in "".join(reasons(tracker).values()))
        after = reasons(tracker)
        names = agent.device_names

    assert {"here", base, f"{base}-1"} == set(before)
    assert "is not loaded" in before[base]
    assert "looked for again without a restart" in before[base]
    card = next(name for name in after if name not in before)
    assert card.startswith(f"{base}-")
    assert "USE_ROCM" in after[card]
    (left,) = before.keys() & after.keys() - {"here"}
    assert {"here", card, left} == set(after)
    assert {f"devices/{name}" for name in after} == set(names)


async def test_an_opening_that_fails_half_way_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A card is not lost because the machine had no process left to look at its libraries."""
    root = tmp_path / "root"
    put_card(tmp_path / "card", "mi300x")
    (card,) = RocmDriver.find(tmp_path / "card")
    entry = {"driver": "rocm", "name": "card", "sys_root": str(root), **card}

    async with serving(tmp_path, entry) as (tracker, _):
        with monkeypatch.context() as patch:
            patch.setattr(sys, "executable", str(tmp_path / "nothing"))
            (tmp_path / "card").rename(root)
            await eventually(lambda: "cannot be opened" in reasons(tracker)["card"])
        await eventually(lambda: "USE_ROCM" in reasons(tracker)["card"])


async def test_a_restarted_tracker_gets_devices_that_appeared(tmp_path: Path) -> None:
    """The tracker's new list has the device that appeared, and no longer a missing one."""
    root = tmp_path / "root"
    async with serving(tmp_path, {"driver": "raspberry_pi", "name": "pi", "sys_root": str(root)}) as (tracker, _):
        put_files(tmp_path / "ready", PI_4).rename(root)
        await eventually(lambda: reasons(tracker) == {"here": "", "pi": ""})

        await tracker.restart()

        await eventually(lambda: reasons(tracker) == {"here": "", "pi": ""})


def show(root: Path, stage: Path) -> None:
    """Let the machine look like this, at once."""
    link = root.with_name("next")
    link.symlink_to(stage)
    link.replace(root)
