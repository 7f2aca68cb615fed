"""The contract of all drivers, for any hardware. A new driver joins by one line in `DRIVERS`."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from device_agents.config import known_keys, make_drivers, parse_config
from device_agents.driver import Driver, StraySweeper
from device_agents.drivers.tvm_registered.driver import TvmRegisteredDriver
from device_agents.registry import known_drivers
from device_agents.workers.limits import WorkerLimits
from device_agents.workers.pool import WorkerPool
from fleet.base.digests import digest_of
from fleet.domain.selectors import device_labels, parse_selector
from fleet.errors import ConfigError, DeviceClosed, DeviceError
from fleet.testing import eventually
from fleet.v1 import measurement_pb2, worker_pb2
from tests.android.phones import make_rpc_dir, serve_adb
from tests.android.rpc_servers import serve_rpc
from tests.contract import fake_nvml
from tests.contract.amd_cards import put_card
from tests.contract.fake_nvml import playing
from tests.emulated.pi_files import PI_4, put_files
from tests.emulated.zynq_root import make_zynq_root

DRIVERS = ["android", "cpu", "cuda", "opencl", "raspberry_pi", "rocm", "simulated", "tvm_registered", "tvm_rpc", "zynq"]
SLOW = ("android", "opencl", "tvm_registered", "tvm_rpc")
"""They need Debian packages, and native programs that are built for them."""
_GIB = 1024**3


class NoStrays:
    """Counts its sweeps."""

    def __init__(self) -> None:
        self.sweeps = 0

    async def sweep(self) -> None:
        self.sweeps += 1


def make(name: str, **settings: Any) -> Driver:
    return make_drivers(parse_config({"devices": [{"driver": name, **settings}]}))[0]


async def open_until_healthy(driver: Driver, sweeper: StraySweeper) -> None:
    """Open a device and wait until it can be used: a phone is set up in the background where that takes longer."""
    await driver.open(sweeper)

    async def is_healthy() -> bool:
        return (await driver.probe()).is_healthy

    await eventually(is_healthy, 60)


NEEDED = {
    "android": "android_phone",
    "cuda": "nvidia_gpu",
    "raspberry_pi": "raspberry_pi_tree",
    "rocm": "amd_gpu",
    "tvm_rpc": "tvm_rpc_server",
    "zynq": "zynq_tree",
}
"""Fixtures that run a driver's requirements, and return its settings."""


@pytest.fixture
async def android_phone(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("android")
    async with serve_adb(folder, monkeypatch) as host:
        yield host.settings(await host.phone(), make_rpc_dir(folder / "tvm"))


@pytest.fixture(scope="module")
def tvm_rpc_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    with serve_rpc("cpp", tmp_path_factory.mktemp("tvm_rpc")) as server:
        yield {"address": server.address, "key": "board", "target": {"kind": "llvm"}}


@pytest.fixture
async def registered_board(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Driver]:
    """Return the device of a server that registered; no configuration names it."""
    values = {"listen": "127.0.0.1:0", "keys": {"board": {"target": {"kind": "llvm"}}}}
    finder = TvmRegisteredDriver.finder(values, where="entry", host_name="here")
    assert await finder.look() == []
    with serve_rpc("cpp", tmp_path_factory.mktemp("tvm_registered"), tracker=finder.address):
        await asyncio.wait_for(finder.wait(), 60)
        yield (await finder.look())[0]
    await finder.close()


@pytest.fixture(scope="module")
def nvidia_gpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("nvml")
    with playing(fake_nvml.build(folder)) as fake:
        stub = fake_nvml.compile_library("", folder / "libstub.so")
        yield {"nvml_library": str(fake.library), "tvm_library": str(stub)}


@pytest.fixture(scope="module")
def amd_gpu(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("rocm")
    stub = fake_nvml.compile_library("", folder / "libstub.so")
    return {"sys_root": str(put_card(folder / "card", "mi300x")), "tvm_library": str(stub)}


@pytest.fixture
def raspberry_pi_tree(tmp_path: Path) -> dict[str, Any]:
    return {"sys_root": str(put_files(tmp_path / "board", PI_4))}


@pytest.fixture
def zynq_tree(tmp_path: Path) -> dict[str, Any]:
    return {"sys_root": str(make_zynq_root(tmp_path / "zynq")), "state_dir": str(tmp_path / "fabric")}


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in DRIVERS])
def driver(request: pytest.FixtureRequest) -> Driver:
    if request.param == "tvm_registered":
        registered: Driver = request.getfixturevalue("registered_board")
        return registered
    needed = NEEDED.get(request.param)
    return make(request.param, **(request.getfixturevalue(needed) if needed else {}))


@pytest.fixture
async def open_driver(driver: Driver) -> AsyncIterator[Driver]:
    await open_until_healthy(driver, NoStrays())
    yield driver
    await driver.close()


def test_every_installed_driver_of_this_package_is_held_to_the_contract() -> None:
    """A driver that is registered but not listed here would go unchecked."""
    assert sorted(DRIVERS) == known_drivers()


async def test_opening_twice_fails(open_driver: Driver) -> None:
    """A device has one owner."""
    with pytest.raises(DeviceError, match="open already"):
        await open_driver.open(NoStrays())


async def test_closing_is_idempotent_and_final(open_driver: Driver) -> None:
    """Every later call raises DeviceClosed."""
    await open_driver.close()
    await open_driver.close()

    for call in (open_driver.inventory, open_driver.worker_spec):
        with pytest.raises(DeviceClosed):
            call()
    for call in (open_driver.probe, open_driver.telemetry, open_driver.reset):
        with pytest.raises(DeviceClosed):
            await call()
    with pytest.raises(DeviceClosed):
        await open_driver.open(NoStrays())


@pytest.fixture(
    params=["raspberry_pi", "zynq", *(pytest.param(name, marks=pytest.mark.slow) for name in ("android", "tvm_rpc"))]
)
def emulated_driver(request: pytest.FixtureRequest) -> Driver:
    # Requested here and not in the test: asynchronous fixtures cannot be requested while a test's loop runs.
    return make(request.param, **{**request.getfixturevalue(NEEDED[request.param]), "emulated": True})


async def test_an_emulated_device_never_passes_for_a_board(emulated_driver: Driver) -> None:
    """Records are looked up by device model, so the model is marked, too."""
    driver = emulated_driver
    await open_until_healthy(driver, NoStrays())

    inventory = driver.inventory()

    assert inventory.is_simulated
    assert inventory.device_model.startswith("emulated ")
    assert inventory.labels["emulated"] == "true"
    await driver.close()


async def test_no_method_works_before_open(driver: Driver) -> None:
    """A constructor does no I/O, so there is no data to return."""
    with pytest.raises(DeviceClosed):
        driver.inventory()
    with pytest.raises(DeviceClosed):
        await driver.probe()


async def test_the_inventory_is_complete_and_stays(open_driver: Driver) -> None:
    """Selectors, builders and records have the fields that they need."""
    inventory = open_driver.inventory()

    assert inventory == open_driver.inventory()
    assert inventory.kind == open_driver.kind
    assert inventory.core_count >= 1
    assert inventory.memory_bytes > 0
    assert inventory.device_model
    assert inventory.host_fingerprint
    assert json.loads(inventory.target_json)["kind"]
    labels = device_labels(open_driver.name, inventory.kind, dict(inventory.labels))
    for key, value in labels.items():
        assert parse_selector(f"{key}={value}").matches(labels)


@pytest.mark.measures
async def test_telemetry_is_cheap(open_driver: Driver) -> None:
    """It is read around every measurement: its best time is far below the 2 ms that a trial may cost."""
    await open_driver.telemetry()
    times = []
    for _ in range(20):
        started = time.perf_counter()
        reading = await open_driver.telemetry()
        times.append(time.perf_counter() - started)

    assert reading.read_at_sec > 0
    assert min(times) < 1e-3


async def test_a_healthy_device_is_reported_as_healthy(open_driver: Driver) -> None:
    """Probing returns, it does not raise."""
    assert (await open_driver.probe()).is_healthy


async def test_reset_kills_leftover_processes(driver: Driver) -> None:
    """No foreign process is on the device afterwards."""
    sweeper = NoStrays()
    await driver.open(sweeper)

    await driver.reset()

    assert sweeper.sweeps == 1
    await driver.close()


@pytest.mark.parametrize("name", DRIVERS)
def test_unknown_settings_name_the_nearest(name: str) -> None:
    """A typo is an error, not a default."""
    with pytest.raises(ConfigError, match="did you mean 'name'"):
        make(name, naem="x")


@pytest.mark.parametrize("name", DRIVERS)
def test_every_configuration_key_is_documented(name: str) -> None:
    """The documentation consists of these sentences, so each accepted key has one."""
    keys = known_keys()[name]

    assert "name" in [key.name for key in keys]
    assert [key.name for key in keys if not key.doc.endswith(".") or not key.expects] == []


@pytest.mark.slow
async def test_its_runtime_answers_in_a_real_worker(driver: Driver, tmp_path: Path) -> None:
    """A worker made from its spec answers requests; an artifact that cannot be loaded is LOAD_FAILED, never a crash."""
    pool = WorkerPool(tmp_path / "workers", [driver.preload], WorkerLimits(memory_bytes=_GIB, disk_bytes=_GIB))
    await open_until_healthy(driver, pool)
    await pool.open()
    try:
        await driver.prepare()
        worker = await pool.start_worker(driver.worker_spec(), lambda _: None)
        artifact = tmp_path / "artifact.so"
        artifact.write_bytes(b"load_failed: no library")
        request = worker_pb2.WorkerRequest(
            measure=measurement_pb2.MeasureRequest(candidate_id="c", artifact_digest=digest_of(artifact)),
            artifact_path=str(artifact),
        )

        response = await worker.exchange(request.SerializeToString(), 60.0)

        assert response.measurement.candidate_id == "c"
        assert response.measurement.error == measurement_pb2.ERROR_KIND_LOAD_FAILED
        await worker.kill()
        await driver.reset()
        assert pool.family_pids() == []
    finally:
        await driver.close()
        await pool.close()
