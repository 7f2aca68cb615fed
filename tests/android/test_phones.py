"""Tests of Android phones with the real adb client and server, real workers and TVM's RPC: only the phone is
emulated.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from device_agents.serving.timing import Timing
from fleet.testing import eventually
from fleet.v1 import measurement_pb2, session_service_pb2
from tests.android.fake_phone import FakePhone
from tests.android.phones import AdbHost, add_opencl, make_rpc_dir, serve_adb
from tests.android.test_tvm_rpc import tensor
from tests.service.agent_bench import Bench, Holder, kind_of, request_for, serve_bench
from tests.service.tensors import spec

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the modules are built for x86_64"),
    pytest.mark.timeout(300),
]
DEVICE = "devices/phone"
OPENCL = {
    "kind": "opencl",
    "max_threads_per_block": 256,
    "host": {"kind": "llvm", "mtriple": "x86_64-linux-android"},
}
MATMUL = [spec("fill", 16, 16), spec("fill", 16, 16), spec("output", 16, 16)]
_SET_UP_SEC = 60.0
_TRIAL_SEC = 60.0
"""Only a hang takes so long; on a busy machine a moment may take ten seconds."""

GOES_WITH_SECOND_PHONE = """#!/bin/sh
case "$*" in *" devices -l") ;; *) exec {adb} "$@" ;; esac
listed=$({adb} "$@")
[ "$(echo "$listed" | grep -c " device ")" -lt 2 ] || mv "$0" {away}
echo "$listed"
"""
"""A fake adb that fails after it has listed two phones."""


@pytest.fixture(scope="module")
def rpc_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_rpc_dir(tmp_path_factory.mktemp("android") / "tvm")


@pytest.fixture
async def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[AdbHost]:
    async with serve_adb(tmp_path, monkeypatch) as served:
        yield served


def entry(host: AdbHost, phone: FakePhone | None, rpc_dir: Path | None, **more: object) -> dict[str, object]:
    named = {"name": "phone"} if phone is not None else {}
    return {"driver": "android", **host.settings(phone, rpc_dir, **named, **more)}


@asynccontextmanager
async def serve_phone(tmp_path: Path, settings: dict[str, object]) -> AsyncIterator[Bench]:
    """Serve a phone, and wait until it is set up; the agent itself starts serving it after some seconds in any case."""
    async with serve_bench(tmp_path / "state", {"devices": [settings]}) as bench:
        await eventually(lambda: is_healthy(bench), _SET_UP_SEC)
        yield bench


async def measure(
    holder: Holder, matmul: bytes, evaluator: measurement_pb2.Evaluator | None = None
) -> measurement_pb2.Measurement:
    evaluator = evaluator or measurement_pb2.Evaluator(number=3, repeat=3)
    return await holder.run(matmul, args=MATMUL, evaluator=evaluator, timeout_sec=_TRIAL_SEC)


def reason_of(bench: Bench, device: str = DEVICE) -> str:
    report = bench.tracker.reports.get(device)
    return report.reason if report else "no report"


def is_healthy(bench: Bench, device: str = DEVICE) -> bool:
    report = bench.tracker.reports.get(device)
    return report is not None and report.is_healthy


async def test_a_phone_is_described_measured_and_left_clean(
    host: AdbHost, rpc_dir: Path, tmp_path: Path, matmul: bytes
) -> None:
    """The inventory is the phone's own, each record has heat and battery, and no process of ours remains there."""
    phone = await host.phone()
    async with serve_phone(tmp_path, entry(host, phone, rpc_dir, cores="big")) as bench:
        inventory = bench.tracker.hellos[-1].devices[0].inventory
        idle = phone.processes()
        result = await measure(bench.holding(epoch=1, device=DEVICE), matmul)
        busy = phone.processes()
        cores = os.sched_getaffinity(busy[0])
    after = phone.processes()

    assert kind_of(result) == "UNSPECIFIED", result.error_message
    assert len(result.run_secs) == 3
    assert 87.0 == result.provenance.before.battery_percent
    assert 41.5 == result.provenance.before.temp_c
    assert 1e-6 < result.provenance.after.reference_sec < 1
    assert ("emulated Fake Pixel 0", "x86_64", "34") == (
        inventory.device_model.removesuffix(" big x1"),
        inventory.labels["arch"],
        inventory.labels["sdk"],
    )
    assert inventory.is_simulated
    assert {1} == cores
    assert [] == idle
    assert busy
    assert [] == after


async def test_phones_come_and_go_while_the_agent_runs(
    host: AdbHost, rpc_dir: Path, tmp_path: Path, matmul: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a serial, all present and later phones are served, and a disconnected one stays in the list. The server's
    files are found at their usual place.
    """
    shutil.copytree(rpc_dir, tmp_path / "data/android/x86_64", symlinks=True)
    monkeypatch.setenv("FLEET_DATA_DIR", str(tmp_path / "data"))
    first = await host.phone("first")
    async with serve_bench(tmp_path / "state", {"devices": [entry(host, None, None)]}) as bench:
        await eventually(lambda: len(bench.tracker.hellos[-1].devices) == 1)
        (first_name,) = [device.name for device in bench.tracker.hellos[-1].devices]
        await eventually(lambda: is_healthy(bench, first_name), _SET_UP_SEC)
        holder = bench.holding(epoch=1, device=first_name)
        before = await measure(holder, matmul)
        second = await host.phone("second")
        await eventually(lambda: len(bench.tracker.hellos[-1].devices) == 2)
        (second_name,) = {device.name for device in bench.tracker.hellos[-1].devices} - {first_name}
        await eventually(lambda: is_healthy(bench, second_name), _SET_UP_SEC)
        on_second = await measure(bench.holding(epoch=2, device=second_name), matmul)
        on_first = await measure(holder, matmul)
        await host.unplug(first)
        await eventually(lambda: "not connected" in reason_of(bench, first_name))
        await host.plug_in(first)
        await eventually(lambda: is_healthy(bench, first_name), _SET_UP_SEC)
        again = await measure(holder, matmul)

    assert len({hello.agent_id for hello in bench.tracker.hellos}) == 1
    assert ["UNSPECIFIED"] * 4 == [kind_of(result) for result in (before, on_second, on_first, again)]
    assert on_first.provenance.worker_pid == before.provenance.worker_pid, "the lease went on"
    assert [] == first.processes() + second.processes()


async def test_a_phone_that_cannot_be_opened_when_it_comes_is_served_later(
    host: AdbHost, rpc_dir: Path, tmp_path: Path, matmul: bytes
) -> None:
    """It is listed with the reason and taken in without a restart: here adb is replaced just while it is plugged in."""
    adb, away = tmp_path / "adb", tmp_path / "adb.away"
    adb.write_text(GOES_WITH_SECOND_PHONE.format(adb=shutil.which("adb"), away=away))
    adb.chmod(0o755)
    await host.phone("first")
    config = {"devices": [entry(host, None, rpc_dir, adb=str(adb))]}
    async with serve_bench(tmp_path / "state", config, timing=Timing(search_pause_sec=0.05)) as bench:
        await eventually(lambda: len(bench.tracker.hellos[-1].devices) == 1)
        (first_name,) = [device.name for device in bench.tracker.hellos[-1].devices]
        await eventually(lambda: is_healthy(bench, first_name), _SET_UP_SEC)
        await host.phone("second")
        await eventually(lambda: len(bench.tracker.hellos[-1].devices) == 2)
        (second_name,) = {device.name for device in bench.tracker.hellos[-1].devices} - {first_name}
        await eventually(lambda: "there is no program" in reason_of(bench, second_name))
        adb.with_name("adb.back").write_text(f'#!/bin/sh\nexec {shutil.which("adb")} "$@"\n')
        adb.with_name("adb.back").chmod(0o755)
        adb.with_name("adb.back").rename(adb)
        await eventually(lambda: is_healthy(bench, second_name), _SET_UP_SEC)
        result = await measure(bench.holding(epoch=1, device=second_name), matmul)

    assert kind_of(result) == "UNSPECIFIED", result.error_message
    assert away.exists()


async def test_unplugging_during_a_measurement_is_the_phones_fault(
    host: AdbHost, rpc_dir: Path, tmp_path: Path, matmul: bytes
) -> None:
    """The result blames the phone, the agent survives, and the phone measures again once it returns."""
    phone = await host.phone()
    async with serve_phone(tmp_path, entry(host, phone, rpc_dir)) as bench:
        holder = bench.holding(epoch=1, device=DEVICE)
        await measure(holder, matmul)
        long = measurement_pb2.Evaluator(number=1, repeat=20, cooldown_interval_ms=1000)
        running = asyncio.create_task(measure(holder, matmul, long))
        await asyncio.sleep(0.5)
        await host.unplug(phone)
        lost = await running
        await eventually(lambda: "not connected" in reason_of(bench), timeout_sec=40)
        away = await measure(holder, matmul)
        await host.plug_in(phone)
        await eventually(lambda: is_healthy(bench), _SET_UP_SEC)
        back = await measure(holder, matmul)

    assert "DEVICE_FAULTED" == kind_of(lost), lost.error_message
    assert "DEVICE_FAULTED" == kind_of(away)
    assert "UNSPECIFIED" == kind_of(back), back.error_message


async def test_a_phone_that_reboots_comes_back(host: AdbHost, rpc_dir: Path, tmp_path: Path, matmul: bytes) -> None:
    """While it boots it takes no lease; files that it kept are not pushed again."""
    phone = await host.phone()
    async with serve_phone(tmp_path, entry(host, phone, rpc_dir)) as bench:
        holder = bench.holding(epoch=1, device=DEVICE)
        await measure(holder, matmul)
        pushed_at = [path.stat().st_mtime_ns for path in phone.root.rglob("tvm_rpc")]
        phone.properties["sys.boot_completed"] = "0"
        await phone.reboot()
        await host.reconnect(phone)
        await eventually(lambda: "booting" in reason_of(bench), timeout_sec=40)
        phone.properties["sys.boot_completed"] = "1"
        phone.furnish()
        await eventually(lambda: is_healthy(bench), _SET_UP_SEC)
        back = await measure(holder, matmul)

    assert "UNSPECIFIED" == kind_of(back), back.error_message
    assert pushed_at == [path.stat().st_mtime_ns for path in phone.root.rglob("tvm_rpc")]


async def test_a_dead_adb_server_is_started_again(host: AdbHost, rpc_dir: Path, tmp_path: Path, matmul: bytes) -> None:
    """The phones return by themselves, whatever killed the server."""
    phone = await host.phone()
    async with serve_phone(tmp_path, entry(host, phone, rpc_dir)) as bench:
        holder = bench.holding(epoch=1, device=DEVICE)
        await measure(holder, matmul)
        await host.kill_server()
        await eventually(lambda: not is_healthy(bench), timeout_sec=40)
        # Over USB a new server sees the phone by itself; over TCP it must be connected again.
        await host.plug_in(phone)
        await eventually(lambda: is_healthy(bench), _SET_UP_SEC)
        back = await measure(holder, matmul)

    assert "UNSPECIFIED" == kind_of(back), back.error_message


async def test_unusable_phones_are_listed_with_the_remedy(host: AdbHost, rpc_dir: Path, tmp_path: Path) -> None:
    """Unauthorized, offline and full phones, and those without tvm_rpc or with one for another machine, are listed with
    the reason.
    """
    phones = {
        "locked": await host.phone("locked", is_authorized=False),
        "mute": await host.phone("mute", is_silent=True),
        "full": await host.phone("full", is_full=True),
        "bare": await host.phone("bare"),
        "alike": await host.phone("alike"),
    }
    phones["alike"].write_file("sys/devices/system/cpu/cpu1/cpufreq/cpuinfo_max_freq", "1000000\n")
    devices = [
        {**entry(host, phone, None if name == "bare" else rpc_dir), "name": name} for name, phone in phones.items()
    ]
    devices[-1]["cores"] = "big"
    expected = {
        "locked": "accept the RSA key dialog",
        "mute": "offline",
        "full": "/data of the phone is full",
        "bare": "no tvm_rpc for this phone",
        "alike": "all cores of the phone are alike",
    }
    async with serve_bench(tmp_path / "state", {"devices": devices}) as bench:
        for name, text in expected.items():
            await eventually(lambda name=name, text=text: text in reason_of(bench, f"devices/{name}"))  # type: ignore[misc]
        phones["full"].make_room()
        await eventually(lambda: is_healthy(bench, "devices/full"), _SET_UP_SEC)

        assert not any(is_healthy(bench, f"devices/{name}") for name in expected if name != "full")


async def test_a_server_for_another_machine_is_refused(host: AdbHost, tmp_path: Path, rpc_dir: Path) -> None:
    """It is refused before any push; the error names its architecture."""
    phone = await host.phone()
    wrong = shutil.copytree(rpc_dir, tmp_path / "wrong")
    program = wrong / "tvm_rpc"
    content = program.read_bytes()
    program.write_bytes(content[:18] + (183).to_bytes(2, "little") + content[20:])
    async with serve_bench(tmp_path / "state", {"devices": [entry(host, phone, wrong)]}) as bench:
        await eventually(lambda: "tvm_rpc is built for aarch64, and the phone is x86_64" in reason_of(bench))

    assert [] == list((phone.root / "data/local/tmp").iterdir())


async def test_a_server_that_does_not_start_is_quoted(
    host: AdbHost, rpc_dir: Path, tmp_path: Path, matmul: bytes
) -> None:
    """The candidate is not blamed, and the device's error quotes the server's output."""
    phone = await host.phone()
    broken = shutil.copytree(rpc_dir, tmp_path / "broken")
    library = broken / "libtvm_runtime.so"
    library.write_bytes(library.read_bytes()[:512])
    async with serve_phone(tmp_path, entry(host, phone, broken)) as bench:
        result = await measure(bench.holding(epoch=1, device=DEVICE), matmul)

    assert "DEVICE_FAULTED" == kind_of(result)
    assert "tvm_rpc ended while it started; it wrote:" in result.error_message
    assert "libtvm_runtime.so" in result.error_message


async def test_a_hanging_candidate_is_killed_on_the_phone(
    host: AdbHost, rpc_dir: Path, tmp_path: Path, matmul: bytes
) -> None:
    """The next candidate gets a fresh server instead of the hung one."""
    phone = await host.phone()
    async with serve_phone(tmp_path, entry(host, phone, rpc_dir)) as bench:
        holder = bench.holding(epoch=1, device=DEVICE)
        slow = measurement_pb2.Evaluator(number=1, repeat=100, cooldown_interval_ms=1000)
        digest = await holder.put(matmul)
        requests = [
            request_for(digest, args=MATMUL, evaluator=slow, timeout_sec=1.0),
            request_for(digest, args=MATMUL, timeout_sec=_TRIAL_SEC),
        ]

        hung, after = await holder.measure(requests)

    assert "TIMEOUT" == kind_of(hung)
    assert "UNSPECIFIED" == kind_of(after), after.error_message


async def test_opencl_kernels_run_on_a_phone(host: AdbHost, rpc_dir: Path, tmp_path: Path) -> None:
    """Numbers agree with numpy; the runtime that brings OpenCL is loaded before the server."""
    folder = shutil.copytree(rpc_dir, tmp_path / "tvm", symlinks=True)
    add_opencl(folder)
    built = await asyncio.to_thread(build_opencl_matmul, tmp_path)
    phone = await host.phone()
    settings = entry(host, phone, folder, device_type="opencl", target=OPENCL)
    async with serve_phone(tmp_path, settings) as bench:
        holder = bench.holding(epoch=1, device=DEVICE)
        digest = await holder.put(built)
        left, right = (np.random.default_rng(seed).random((48, 48), np.float32) for seed in (1, 2))
        call = session_service_pb2.CallRequest(
            artifact_digest=digest, args=[tensor(left), tensor(right), spec("output", 48, 48)]
        )
        called = await holder.call(call)
        args = [spec("fill", 48, 48), spec("fill", 48, 48), spec("output", 48, 48)]
        (timed,) = await holder.measure([request_for(digest, args=args, timeout_sec=_TRIAL_SEC)])

    assert not called.error, called.error_message
    product = np.frombuffer(called.outputs[0].content, np.float32).reshape(48, 48)
    np.testing.assert_allclose(product, left @ right, rtol=1e-4)
    assert "UNSPECIFIED" == kind_of(timed), timed.error_message
    assert 1e-6 < timed.provenance.after.reference_sec < 1, "of the phone's processor: it shares its heat"


def build_opencl_matmul(folder: Path) -> bytes:
    """Build a matrix product for a phone's GPU as a user does: the host part needs no NDK."""
    words = ["build", "matmul-48", "--untuned", "--target", json.dumps(OPENCL), "-o", str(folder / "matmul.so")]
    fleet = Path(sys.executable).with_name("fleet")
    subprocess.run([fleet, *words], check=True, timeout=100, capture_output=True)
    return (folder / "matmul.so").read_bytes()
