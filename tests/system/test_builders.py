"""Builders on machines of their own, joined by Dask over TLS: killing one costs time and no results."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Iterator
from contextlib import ExitStack, aclosing
from pathlib import Path

import psutil
import pytest
from pydantic import TypeAdapter
from typer.testing import CliRunner

from cross.targets.target import parse_target
from fleet import aio
from fleet.artifacts.artifact import Artifact
from fleet.building.build_candidate import BuildTask, build_candidate
from fleet.building.cluster.address import ClusterAddress
from fleet.building.cluster.builder import BuiltElsewhere
from fleet.building.cluster.certs import make_certs
from fleet.building.cluster.courier import ClusterCourier
from fleet.building.cluster.delivery import Delivery
from fleet.building.cluster.pool import DaskPool
from fleet.cli.json_schema.of_jobs import Builders
from fleet.cli.main import app
from fleet.client.steady import SteadyDevice
from fleet.domain.leases import make_terms
from fleet.domain.measuring import Measurement, Trial
from fleet.errors import BuildError, BuildersUnavailable, ErrorKind
from fleet.library import Library, Record, RecordKind
from fleet.testing import eventually_sync
from fleet.workloads.programs import matmul
from tests.system import builder_tasks
from tests.system.builder_processes import Cluster, Served, running_cluster
from tests.system.fleet_processes import running_fleet, start_fleet
from tests.system.networks import joined_networks
from tests.unit import cross_pool_tasks as tasks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TARGET = parse_target('{"kind": "llvm", "mcpu": "x86-64-v3"}')
_ENDS_WITHIN_SEC = 240


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster")) as found:
        yield found


@pytest.fixture(scope="module")
def pool(cluster: Cluster) -> Iterator[DaskPool]:
    found = DaskPool(
        ClusterAddress(address=cluster.scheduler.address, certs=cluster.certs), connect_timeout_sec=_ENDS_WITHIN_SEC
    )
    found.open()
    yield found
    found.shutdown(wait=False)


def test_foreign_certificates_and_dead_addresses_fail_at_once(cluster: Cluster, tmp_path: Path) -> None:
    """Other certificates are refused at once, and a dead address is reported without waiting."""
    make_certs(tmp_path / "others")
    address = cluster.scheduler.address
    stranger = DaskPool(ClusterAddress(address=address, certs=tmp_path / "others"))
    lost = DaskPool(ClusterAddress(address="tls://127.0.0.1:1", certs=cluster.certs))

    with pytest.raises(BuildersUnavailable, match="do not belong together"):
        stranger.open()
    with pytest.raises(BuildersUnavailable, match="no Dask scheduler listens"):
        lost.open()


def test_builders_are_listed(cluster: Cluster) -> None:
    """A list of builders shows host, process and installed packages, as a table and as data."""

    def lists() -> list[dict[str, object]]:
        done = CliRunner().invoke(app, ["builder", "list", *cluster.options, "--json"])
        return list(json.loads(done.stdout)["builders"])

    found = eventually_sync(lambda: builders if len(builders := lists()) == 2 else None, _ENDS_WITHIN_SEC)
    table = CliRunner().invoke(app, ["builder", "list", *cluster.options])

    assert {each.process.pid for each in cluster.builders} == {one["pid"] for one in found}
    assert [(1, True), (1, True)] == [(one["slots"], one["is_usable"]) for one in found]
    TypeAdapter(Builders).validate_python({"builders": found})
    assert [str(one["address"]) for one in found if str(one["address"]) not in table.stdout] == []


def test_a_crashing_or_hanging_build_fails_one_task(pool: DaskPool, cluster: Cluster) -> None:
    """Errors arrive as from a pool of this machine, and builders survive."""
    with pytest.raises(BuildError, match="SIGSEGV"):
        pool.submit(tasks.crash).result()
    with pytest.raises(BuildError, match=r"took longer than 0.2 s") as late:
        pool.submit_within(0.2, tasks.hang).result()

    assert late.value.kind is ErrorKind.BUILD_TIMEOUT
    assert pool.submit(tasks.add, 1, 2).result() == 3
    assert [each.process.poll() for each in cluster.builders] == [None, None]


def test_tasks_of_one_key_stay_together(pool: DaskPool) -> None:
    """A warm search continues in the process that holds it."""
    found = {pool.submit_near("one", 30, tasks.process_id).result() for _ in range(3)}

    assert len(found) == 1


def test_a_task_begins_anew_where_its_builder_was_killed(pool: DaskPool, cluster: Cluster, tmp_path: Path) -> None:
    """The task completes elsewhere, once; the returning builder gets tasks again."""
    future = pool.submit_within(_ENDS_WITHIN_SEC, builder_tasks.wait_for, tmp_path)
    first = eventually_sync(lambda: [int(path.name) for path in tmp_path.iterdir()], _ENDS_WITHIN_SEC)[0]
    victim = next(each for each in cluster.builders if _is_below(first, each))

    victim.kill()
    eventually_sync(lambda: len(list(tmp_path.iterdir())) > 1, _ENDS_WITHIN_SEC)
    (tmp_path / "go").touch()
    last = future.result(_ENDS_WITHIN_SEC)
    victim.start()

    assert last != first
    assert not _is_below(last, victim)
    assert pool.submit(tasks.add, 1, 2).result() == 3


def test_a_scheduler_that_comes_back_is_given_the_tasks_again(pool: DaskPool, cluster: Cluster, tmp_path: Path) -> None:
    """A waiting client waits longer; builders join again by themselves."""
    future = pool.submit_within(_ENDS_WITHIN_SEC, builder_tasks.wait_for, tmp_path)
    eventually_sync(lambda: list(tmp_path.iterdir()), _ENDS_WITHIN_SEC)

    cluster.scheduler.kill()
    cluster.scheduler.words = [
        word if word != "0" else cluster.scheduler.address.rpartition(":")[2] for word in cluster.scheduler.words
    ]
    cluster.scheduler.start()
    (tmp_path / "go").touch()

    assert future.result(_ENDS_WITHIN_SEC) > 0


async def test_artifacts_go_from_builder_to_agent_directly(pool: DaskPool, cluster: Cluster, tmp_path: Path) -> None:
    """The file never passes through the optimizer; if its builder is gone, another builds it again."""
    with running_fleet(tmp_path, "devices: [{driver: simulated}]") as fleet:
        async with aio.connect(fleet.address) as client:
            one, two = [await _build(pool, size, tmp_path) for size in (16, 24)]
            async with SteadyDevice(client, make_terms("simulated"), courier=ClusterCourier(pool)) as device:
                first = await _measure(device, one)
                lost = next(each for each in cluster.builders if _listens(each, two.builder))
                lost.kill()
                second = await _measure(device, two)
                lost.start()
    wanted = Delivery(artifacts=(two,), ticket=None, asker_fingerprint="", timeout_sec=30)
    cut_off = await asyncio.wrap_future(pool.submit_delivery(one.builder, wanted))

    assert (first.error, second.error) == (None, None)
    assert hashlib.sha256(cut_off.contents[two.digest]).hexdigest() in two.digest, "it passes through, as a last resort"
    assert not one.path.exists()
    assert not two.path.exists()


async def _build(pool: DaskPool, size: int, out_dir: Path) -> BuiltElsewhere:
    workload = matmul(size)
    task = BuildTask(mod_json=workload.mod_json, target=TARGET, trace_json=None, out_dir=str(out_dir))
    artifact = (await asyncio.wrap_future(pool.submit(build_candidate, task))).artifact
    assert isinstance(artifact, BuiltElsewhere)
    return artifact


async def _measure(device: SteadyDevice, artifact: Artifact) -> Measurement:
    trial = Trial(candidate_id=artifact.digest, artifact_digest=artifact.digest)
    async with aclosing(device.measure([artifact], [trial])) as found:
        return await anext(found)


def test_a_job_goes_on_when_a_builder_is_killed(two_products: Path, tmp_path: Path) -> None:
    """On three machines, all trials arrive, none twice, and built modules go directly from their builder to the
    agent.
    """
    library = tmp_path / "library.sqlite"
    with joined_networks(3) as networks, ExitStack() as stack:
        hub, hosts, arounds = networks[0], [n.address for n in networks], [n.command() for n in networks]
        fleet = stack.enter_context(
            running_fleet(tmp_path, "devices: [{driver: simulated}]", around=hub.command(), host=hub.address)
        )
        cluster = stack.enter_context(running_cluster(tmp_path, hosts=hosts, arounds=arounds))
        words = [
            "--log-level",
            "debug",
            "tune",
            str(two_products),
            "--trials",
            "16",
            "--exhaust",
            "--batch",
            "4",
            "--no-model",
            "--json",
        ]
        more = ["--on", "simulated", "--tracker", fleet.address, "--library", str(library), *cluster.options]
        tuning = stack.enter_context(start_fleet(*words, *more, around=hub.command()))

        eventually_sync(lambda: len(trials(library)) >= 4 or tuning.poll() is not None, _ENDS_WITHIN_SEC)
        cluster.builders[0].kill()
        out, said = tuning.communicate(timeout=_ENDS_WITHIN_SEC)

    assert tuning.returncode == 0, said
    found = [(record.workload, record.trace_digest) for record in trials(library)]
    assert json.loads(out)["trials"] == len(set(found[:16])) == 16
    assert set(found[16:]) < set(found[:16]), "the best few are compared once more at the end"
    brought = [line for line in said.splitlines() if " artifacts brought " in line]
    assert brought
    assert all(line.endswith(" is_put=True") for line in brought), "none came by way of the client"


def trials(path: Path) -> list[Record]:
    if not path.exists():
        return []
    with Library.open(path) as library:
        return library.records(kinds=[RecordKind.CANDIDATE])


def _is_below(pid: int, served: Served) -> bool:
    """Tell whether a builder's process has this one among its descendants, whichever still live."""
    return pid in {child.pid for child in psutil.Process(served.process.pid).children(recursive=True)}


def _listens(served: Served, address: str) -> bool:
    """Tell whether a builder has this address, which changes when it joins again."""
    port = int(address.rpartition(":")[2])
    return port in {found.laddr.port for found in psutil.Process(served.process.pid).net_connections()}
