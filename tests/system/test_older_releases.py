"""Tracker, agents and clients of a kept release work together with those of today, in every combination.

The releases are archives in `tests/golden/releases`, made by `scripts/keep_release.py` from commits of this repository.
They run with today's dependencies: only the protocol between them is compared.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import sqlite3
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fleet.cost_model.feature_codec import FEATURE_VERSION
from fleet.domain.leases import LeaseClass
from fleet.domain.model_snapshots import ModelSnapshot
from fleet.identity.roles import Role
from fleet.identity.store import CredentialStore
from fleet.optimizer.serving.cost_model_service import CostModelServicer
from fleet.testing import eventually_sync
from fleet.testing.identity import know_tracker, security
from fleet.tracker.journal.migrations import SCHEMA_VERSION
from fleet.wire import rpc
from fleet.wire.model_snapshots import serve_cost_model
from tests.programs import environment
from tests.system.fleet_processes import Fleet, Server, connect

pytestmark = pytest.mark.slow

_SNAPSHOT = ModelSnapshot(
    digest=f"sha256:{hashlib.sha256(b'good').hexdigest()}",
    content=b"good",
    feature_version=FEATURE_VERSION,
    target_kinds=("llvm",),
    record_count=1,
    made_at_sec=1.0,
)

RELEASES = sorted((Path(__file__).parent.parent / "golden/releases").glob("*.tar.xz"))

_FIRST_ON_THE_PATH = "import sys\nsys.path.insert(0, {folder!r})\n"
"""As sitecustomize: where a package is installed to be edited, its own folder may come before PYTHONPATH."""

_OLDER = """
import runpy, device_agents, fleet
assert device_agents.__file__.startswith({folder!r}) and fleet.__file__.startswith({folder!r}), fleet.__file__
runpy.run_module({module!r}, run_name="__main__", alter_sys=True)
"""

_CLIENT = """
import asyncio, json, sys
import fleet, fleet.aio
from pathlib import Path
from fleet.artifacts.artifact import Artifact, digest_of
from fleet.domain.measuring import Evaluator, TensorSpec, Trial

async def main(address, selector, path):
    args = (TensorSpec((4,), "float32"),)
    artifact = Artifact(path=path, digest=digest_of(path), args=args)
    trial = Trial(candidate_id="c", artifact_digest=artifact.digest, args=args, evaluator=Evaluator(number=1, repeat=2))
    async with fleet.aio.connect(address) as client:
        async with client.acquire(selector, purpose="upgrade") as device:
            await device.ensure([artifact])
            found = [measurement async for measurement in device.measure([trial])]
            held = [lease.name for lease in (await client.snapshot()).leases]
            own = device.lease.name
        while own in [lease.name for lease in (await client.snapshot()).leases]:
            await asyncio.sleep(0.05)
    print(json.dumps({
        "code": fleet.__file__, "device": device.name, "errors": [str(m.error) for m in found if m.error],
        "times": [sec for m in found for sec in m.run_secs], "was_held": own in held,
    }))

asyncio.run(main(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
"""

_READER = """
import asyncio, sys
from contextlib import aclosing
import fleet
from fleet.client.snapshot_calls import watch_snapshots

async def main(address, feature_version):
    async with aclosing(watch_snapshots(address, feature_version)) as snapshots:
        print(fleet.__file__, (await anext(snapshots)).digest)

asyncio.run(main(sys.argv[1], sys.argv[2]))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """A tracker, of a release or of today, with an agent of each."""

    fleet: Fleet
    code: Path
    """Of the release."""
    artifact: Path

    @property
    def is_tracker_older(self) -> bool:
        """True if the tracker is of the release."""
        return bool(self.fleet.tracker.around)

    def client(self, selector: str, *, is_older: bool, artifact: Path | None = None) -> dict[str, Any]:
        """Lease a device, measure on it and release it, in a process of its own."""
        command = [sys.executable, "-c", _CLIENT, self.fleet.address, selector, str(artifact or self.artifact)]
        added = {"PYTHONPATH": str(self.code)} if is_older else {}
        folder = self.artifact.parent  # not the repository, which would be first on the path
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            cwd=folder,
            env={**environment(), **added},
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        assert found.pop("code").startswith(str(self.code)) == is_older
        return found


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((path, tracker), id=f"{path.name.removesuffix('.tar.xz')}-{tracker}_tracker")
        for path in RELEASES
        for tracker in ("newer", "older")
    ],
)
def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    release, tracker = request.param
    folder = tmp_path_factory.mktemp("release")
    code = _unpacked(release, folder)
    (folder / "artifact").write_bytes(b"latency_us:120")
    servers = [_server(folder, "fleet.tracker", tracker, "--no-discovery")]
    try:
        servers[0].start()
        for name in ("older", "newer"):
            config = folder / f"{name}.yaml"
            config.write_text(f"devices:\n- {{driver: simulated, name: {name}, time_scale: 0}}\n")
            words = ("--tracker", servers[0].address, "--config", str(config))
            servers.append(_server(folder, "device_agents", name, *words))
            servers[-1].start()
        fleet = Fleet(servers[0], servers[1])
        eventually_sync(lambda: _available(fleet) == {"devices/older", "devices/newer"}, 30.0)
        yield Bench(fleet=fleet, code=code, artifact=folder / "artifact")
    finally:
        for server in reversed(servers):
            if hasattr(server, "process"):
                server.stop()


def _unpacked(release: Path, folder: Path) -> Path:
    """Return the folder with a release's code."""
    code = folder / "code"
    with tarfile.open(release) as archive:
        archive.extractall(code)  # noqa: S202 ours; Debian 12 has a Python without `filter`
    (code / "sitecustomize.py").write_text(_FIRST_ON_THE_PATH.format(folder=str(code)))
    return code


def _server(folder: Path, module: str, age: str, *words: str) -> Server:
    """Return a tracker or an agent, with the code of the release if it is "older"."""
    code, name = str(folder / "code"), f"{module}-{age}"
    run = ("-c", _OLDER.format(folder=code, module=module)) if age == "older" else ("-m", module)
    around = ("env", "--chdir", str(folder), f"PYTHONPATH={code}") if age == "older" else ()
    ready = "tracker" if module == "fleet.tracker" else "agent"
    return Server([*run, *words, "--state-dir", str(folder / name)], ready, folder / f"{name}.log", around)


def _available(fleet: Fleet) -> set[str]:
    devices: Any = fleet.snapshot()["devices"]
    return {device["name"] for device in devices if device["state"] == "available"}


@pytest.mark.parametrize(
    "bench", [pytest.param((path, "newer"), id=path.name.removesuffix(".tar.xz")) for path in RELEASES], indirect=True
)
def test_a_release_takes_part_in_classes_and_sets(bench: Bench) -> None:
    """An older client is of the class normal: a batch lease on an older agent's device gives way to it. The device of
    an older agent is granted in a set.
    """
    with connect(bench.fleet.address) as client, ThreadPoolExecutor(1) as threads:
        batch = client.acquire_device("name=older", lease_class=LeaseClass.BATCH)
        asking = threads.submit(bench.client, "name=older", is_older=True)
        eventually_sync(lambda: batch.yield_wanted is not None or asking.done(), 60.0)
        assert [request.terms.lease_class for request in client.snapshot().requests] == [LeaseClass.NORMAL]
        batch.release()
        found = asking.result()
        with client.acquire_all(["name=older", "name=newer"]) as devices:
            assert [device.name for device in devices] == ["devices/older", "devices/newer"]

    assert found.pop("times") == pytest.approx([120e-6] * 2, rel=0.2)
    assert found == {"device": "devices/older", "errors": [], "was_held": True}


def test_there_is_a_release_to_compare_with() -> None:
    """Without one the others would pass by not running."""
    assert RELEASES


@pytest.mark.parametrize(
    ("agent", "is_older"),
    [("older", False), ("newer", True), ("older", True), ("newer", False)],
    ids=["older_agent", "older_client", "both_older", "both_newer"],
)
def test_a_release_and_today_work_together(bench: Bench, agent: str, is_older: bool) -> None:
    """A client leases a device, uploads and times a candidate, and releases the device."""
    found = bench.client(f"name={agent}", is_older=is_older)

    assert found.pop("times") == pytest.approx([120e-6] * 2, rel=0.2)
    assert found == {"device": f"devices/{agent}", "errors": [], "was_held": True}


def test_agents_and_clients_of_a_release_work_beside_poison(bench: Bench) -> None:
    """An older agent runs everything, an older client sees an error that it knows, an older tracker ignores reports."""
    folder = bench.artifact.parent
    bad, config = folder / "bad", folder / "faulty.yaml"
    bad.write_bytes(b"crash")
    settings = "time_scale: 0, disconnect_after: 1, reconnect_sec: 3600"
    config.write_text(f"devices:\n- {{driver: simulated, name: faulty, {settings}}}\n")
    words = ("--tracker", bench.fleet.address, "--config", str(config))
    faulty = _server(folder, "device_agents", "faulty", *words)
    faulty.start()
    try:
        eventually_sync(lambda: "devices/faulty" in _available(bench.fleet), 30.0)
        assert bench.client("name=faulty", is_older=False, artifact=bad)["errors"] == ["CRASHED"]
        eventually_sync(lambda: "devices/faulty" not in _available(bench.fleet), 30.0)
    finally:
        faulty.stop()

    def error(device: str, *, is_older: bool) -> str:
        (found,) = bench.client(f"name={device}", is_older=is_older, artifact=bad)["errors"]
        return str(found)

    expected = "CRASHED" if bench.is_tracker_older else "POISONED"
    eventually_sync(lambda: error("newer", is_older=False) == expected, 30.0)
    assert error("newer", is_older=True) == ("CRASHED" if bench.is_tracker_older else "RUN_FAILED")
    assert error("older", is_older=False) == "CRASHED"


def test_agents_come_back_after_their_trackers_death(bench: Bench) -> None:
    """The tracker is killed and started again; the agents attach by themselves, and an older client is served."""
    bench.fleet.tracker.kill()
    bench.fleet.tracker.start()
    eventually_sync(lambda: _available(bench.fleet) == {"devices/older", "devices/newer"}, 30.0)

    assert bench.client("name=older", is_older=True)["errors"] == []


def test_an_upgraded_tracker_keeps_leases_and_the_queue(bench: Bench) -> None:
    """The tracker is killed and today's is started on its state: a lease lives on, and the request behind it is served.

    The last test with `bench`: the tracker is today's from here on.
    """
    tracker = bench.fleet.tracker
    with connect(tracker.address) as holder, connect(tracker.address) as waiter, ThreadPoolExecutor(1) as thread:
        with holder.acquire("name=older", ttl_sec=60.0) as device:
            waiting = thread.submit(waiter.acquire_device, "name=older")
            eventually_sync(lambda: bench.fleet.snapshot()["requests"])
            before: Any = bench.fleet.snapshot()
            tracker.kill()
            state_dir = tracker.command[tracker.command.index("--state-dir") + 1]
            tracker.command, tracker.around = ["-m", "fleet.tracker", "--no-discovery", "--state-dir", state_dir], ()
            tracker.start()
            after: Any = bench.fleet.snapshot()
        served = waiting.result(timeout=60)
        served.release()

    assert [lease["epoch"] for lease in after["leases"]] == [lease["epoch"] for lease in before["leases"]]
    assert after["leases"][0]["name"] == device.lease.name
    assert served.lease.epoch > device.lease.epoch
    with contextlib.closing(sqlite3.connect(Path(state_dir) / "journal.sqlite")) as journal:
        assert journal.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)


@pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.name)
async def test_an_older_client_reads_the_cost_model(release: Path, tmp_path: Path) -> None:
    """It calls today's optimizer by the former name of the service."""
    servicer, server, code = CostModelServicer(), rpc.make_server(), _unpacked(release, tmp_path)
    servicer.publish(_SNAPSHOT)
    serve_cost_model(server, servicer)
    address = f"127.0.0.1:{rpc.bind(server, '127.0.0.1', 0, security(Role.USER), what='the test')}"
    know_tracker(address)
    await server.start()
    try:
        reader = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", _READER, address, FEATURE_VERSION),
            stdout=subprocess.PIPE,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(code)},
        )
        found, _ = await asyncio.wait_for(reader.communicate(), 60.0)
    finally:
        CredentialStore().forget(address)
        await server.stop(None)
    path, digest = found.decode().split()
    assert path.startswith(str(code))
    assert digest == _SNAPSHOT.digest
