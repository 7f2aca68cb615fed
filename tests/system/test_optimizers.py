"""Optimizers that share a library and a fleet: jobs survive kill -9, and no candidate is measured twice."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from fleet import connect
from fleet.client.connection import account_credentials
from fleet.cost_model.feature_codec import FEATURE_VERSION, TARGET_KINDS
from fleet.cost_model.packaged_model import PATH
from fleet.domain.scope import ANY_SCOPE
from fleet.library import Job, JobState, Library, NewSnapshot, Record, RecordKind, StoredSnapshot
from fleet.optimizer.serving.cost_model_service import ServingAddress, serving_snapshots
from fleet.testing import eventually, eventually_sync
from fleet.wire.peers import Guard
from tests.system.fleet_processes import Fleet, run_fleet, running_fleet, start_fleet

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

_ENDS_WITHIN_SEC = 150


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with running_fleet(tmp_path_factory.mktemp("fleet")) as found:
        yield found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A library, empty."""
    Library.open(tmp_path / "library.sqlite").close()
    return tmp_path / "library.sqlite"


@pytest.fixture
def start_optimizer(fleet: Fleet, path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts an optimizer that runs one job at a time; `around` is a prefix that runs it elsewhere, `more` its
    options.
    """
    started: list[subprocess.Popen[str]] = []

    def start(*around: str, more: Sequence[str] = ()) -> subprocess.Popen[str]:
        words = ("--tracker", fleet.address, "--library", str(path), "--jobs", "1", "--workers", "1", *more)
        started.append(start_fleet("optimizer", "serve", *words, around=around))
        return started[-1]

    yield start
    for process in started:
        process.terminate()
        process.communicate(timeout=60)


def submit(model: Path, path: Path, *more: str) -> str:
    words = ("--trials", "8", "--batch", "4", "--no-model", "--library", str(path), *more)
    done = run_fleet("jobs", "submit", str(model), *words)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def trials(path: Path, name: str) -> list[Record]:
    with Library.open(path) as library:
        return library.records(job_name=name, kinds=[RecordKind.CANDIDATE])


def digests(records: Sequence[Record]) -> set[str]:
    """Return the distinct candidates: a disturbed one has several records."""
    return {record.trace_digest for record in records}


def job(path: Path, name: str) -> Job:
    with Library.open(path) as library:
        return library.queue.get(name)


def has_ended(path: Path, name: str) -> bool:
    return job(path, name).state not in (JobState.QUEUED, JobState.RUNNING)


def spent_sec(records: Sequence[Record], *, is_shared: bool) -> float:
    """Return the device time of the records that a second job shares, or of the others [s]."""
    chosen = (each.provenance for each in records if ("shared_with" in each.provenance) is is_shared)
    return sum(float(str(each["device_sec"])) for each in chosen)


def test_two_optimizers_share_a_fleet_and_one_is_killed(
    two_products: Path,
    fleet: Fleet,
    path: Path,
    start_optimizer: Callable[[], subprocess.Popen[str]],
) -> None:
    """Its job continues in another process from its records. Two jobs on the same workloads measure nothing twice, and
    each is charged half of the trials that they share.
    """
    names = [submit(two_products, path, "--seed", seed) for seed in "12"]
    processes = {process.pid: process for process in (start_optimizer(), start_optimizer())}
    eventually_sync(lambda: len(trials(path, names[0])) >= 2, _ENDS_WITHIN_SEC)

    victim = processes[job(path, names[0]).pid]
    victim.kill()
    victim.wait(60)
    kept = trials(path, names[0])
    start_optimizer()
    for name in names:
        eventually_sync(lambda name=name: has_ended(path, name), _ENDS_WITHIN_SEC)  # type: ignore[misc]

    found = [job(path, name) for name in names]
    records = [trials(path, name) for name in names]
    assert [item.state for item in found] == [JobState.FINISHED] * 2, [item.message for item in found]
    assert all(item.trials_done <= item.trials_total == 8 for item in found)
    assert not digests(kept) & digests(records[0][len(kept) :])
    first, second = ({(record.workload, record.trace_digest) for record in some} for some in records)
    assert first
    assert not first & second
    with Library.open(path) as library:
        own = [library.records(job_name=name, kinds=list(RecordKind)) for name in names]
        charged = [library.claims.charges(name, ANY_SCOPE).device_sec for name in names]
    shared_sec = sum(spent_sec(some, is_shared=True) for some in own)
    assert shared_sec > 0
    assert charged == [pytest.approx(spent_sec(some, is_shared=False) + shared_sec / 2) for some in own]
    eventually_sync(lambda: not fleet.snapshot()["leases"])


def test_jobs_of_two_optimizers_use_each_others_trials(
    two_products: Path, path: Path, start_optimizer: Callable[[], subprocess.Popen[str]]
) -> None:
    """Both begin with an empty library; trials of the other count as earlier ones in the report."""
    names = [submit(two_products, path, "--trials", "24", "--exhaust", "--seed", seed) for seed in "12"]
    for _ in names:
        start_optimizer()
    for name in names:
        eventually_sync(lambda name=name: has_ended(path, name), _ENDS_WITHIN_SEC)  # type: ignore[misc]

    jobs = [job(path, name) for name in names]
    assert [each.state for each in jobs] == [JobState.FINISHED] * 2, [each.message for each in jobs]
    earlier = [sum(item["trials_before"] for item in (each.report or {})["reports"][0]["workloads"]) for each in jobs]
    assert max(earlier) > 0, earlier


def test_a_job_is_cancelled_while_another_measures_their_workloads(
    two_products: Path, path: Path, start_optimizer: Callable[[], subprocess.Popen[str]]
) -> None:
    """The other one uses all of its trials, and both together are charged each second once."""
    names = [submit(two_products, path, "--trials", count, "--exhaust", "--seed", count) for count in ("1000", "32")]
    for _ in names:
        start_optimizer()
    eventually_sync(
        lambda: any(each.provenance.get("shared_with") for name in names for each in trials(path, name)),
        _ENDS_WITHIN_SEC,
    )

    stop(path, names[0])
    eventually_sync(lambda: has_ended(path, names[1]), _ENDS_WITHIN_SEC)

    assert job(path, names[1]).state is JobState.FINISHED, job(path, names[1]).message
    first, second = (digests(trials(path, name)) for name in names)
    assert (len(second), first & second) == (32, set())
    with Library.open(path) as library:
        every = library.records(kinds=list(RecordKind))
        charged = [library.claims.charges(name, ANY_SCOPE).device_sec for name in names]
    assert "shared_with" not in every[-1].provenance
    assert sum(charged) == pytest.approx(sum(float(str(record.provenance["device_sec"])) for record in every))


def test_jobs_of_one_optimizer_share_its_builder(
    two_products: Path, path: Path, start_optimizer: Callable[..., subprocess.Popen[str]]
) -> None:
    """Two jobs at once with a single build process: each gets its turns, and both end."""
    names = [submit(two_products, path, "--seed", seed) for seed in "12"]
    start_optimizer(more=("--jobs", "2"))
    eventually_sync(lambda: all(job(path, name).state is JobState.RUNNING for name in names), _ENDS_WITHIN_SEC)

    for name in names:
        eventually_sync(lambda name=name: has_ended(path, name), _ENDS_WITHIN_SEC)  # type: ignore[misc]

    assert [job(path, name).state for name in names] == [JobState.FINISHED] * 2


def test_a_waiting_job_bids_for_its_device(
    two_products: Path, fleet: Fleet, path: Path, start_optimizer: Callable[[], subprocess.Popen[str]]
) -> None:
    """Its request has the worth of its next batch, so that the tracker can order it among others of its account."""
    name = submit(two_products, path, "--trials", "64", "--exhaust")
    start_optimizer()
    eventually_sync(lambda: len(trials(path, name)) >= 4, _ENDS_WITHIN_SEC)

    with connect(fleet.address) as client, client.acquire("cpu"):
        eventually_sync(lambda: [one.terms.bid > 0 for one in client.snapshot().requests] == [True], 60)

    stop(path, name)


def stop(path: Path, name: str) -> JobState:
    """Cancel a job, unless it has ended by then; return its final state."""
    cancelled = run_fleet("jobs", "cancel", name, "--library", str(path))
    assert cancelled.returncode == 0 or has_ended(path, name), cancelled.stderr
    eventually_sync(lambda: has_ended(path, name), _ENDS_WITHIN_SEC)
    return job(path, name).state


def test_a_job_is_cancelled_resumed_and_reverted(
    two_products: Path, path: Path, start_optimizer: Callable[[], subprocess.Popen[str]]
) -> None:
    """A cancelled job resumes from its records, a watcher sees its end, and a reverted job's records are ignored."""
    start_optimizer()
    name = submit(two_products, path, "--trials", "1000")
    eventually_sync(lambda: len(trials(path, name)) >= 2, _ENDS_WITHIN_SEC)

    state = stop(path, name)
    kept = trials(path, name)
    run_fleet("jobs", "resume", name, "--library", str(path))
    eventually_sync(lambda: len(trials(path, name)) > len(kept) or has_ended(path, name), _ENDS_WITHIN_SEC)
    last = stop(path, name)
    watched = run_fleet("jobs", "watch", name, "--library", str(path))
    found = trials(path, name)
    reverted = run_fleet("jobs", "revert", name, "--library", str(path), "--json")

    assert {state, last} <= {JobState.CANCELLED, JobState.FINISHED}
    assert not digests(kept) & digests(found[len(kept) :])
    assert (watched.returncode == 0) is (last is JobState.FINISHED), watched.stderr
    assert last.value.lower() in watched.stderr
    assert json.loads(reverted.stdout)["reverted_at"] is not None
    assert trials(path, name) == []
    assert job(path, name).trials_done >= len(digests(kept)) > 0


def test_an_optimizer_removes_the_artifacts_of_an_ended_job(
    two_products: Path,
    path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    start_optimizer: Callable[..., subprocess.Popen[str]],
) -> None:
    """It serves for weeks, and its candidates and whole models would fill the disk."""
    temporary = tmp_path_factory.mktemp("t")  # short: sockets are made in it
    name = submit(two_products, path, "--trials", "2", "--batch", "2", "--strategy", "random")
    optimizer = start_optimizer("env", f"TMPDIR={temporary}")

    eventually_sync(lambda: has_ended(path, name), _ENDS_WITHIN_SEC)

    assert job(path, name).state is JobState.FINISHED, job(path, name).message
    assert trials(path, name)
    assert list(temporary.glob("fleet-artifacts-*"))
    assert not [file for _, _, files in os.walk(temporary) for file in files if file.endswith(".so")]
    assert optimizer.poll() is None


async def test_an_optimizer_uses_the_snapshot_of_another_library(
    two_products: Path, fleet: Fleet, path: Path, tmp_path: Path, start_optimizer: Callable[..., subprocess.Popen[str]]
) -> None:
    """It cannot reach that library: an optimizer that can hands the snapshot on, and its own library has none."""
    mine = await account_credentials(fleet.address)
    with Library.open(tmp_path / "elsewhere.sqlite") as elsewhere:
        published = publish(elsewhere)
        async with serving_snapshots(elsewhere.memory, ServingAddress(), mine, Guard()) as address:
            start_optimizer(more=("--snapshots", address))
            name = await asyncio.to_thread(submit, two_products, path, "--trials", "2", "--batch", "2")
            await eventually(lambda: has_ended(path, name), _ENDS_WITHIN_SEC)

    ended = job(path, name)
    assert ended.state is JobState.FINISHED, ended.message
    assert [kind["snapshot"] for kind in ended.progress["kinds"]] == [published.digest]
    with Library.open(path) as library:
        assert library.memory.snapshots() == []


def publish(library: Library) -> StoredSnapshot:
    """Put the snapshot of the package into use, as if it had been trained there."""
    term = library.memory.stand("test", lease_sec=60)
    assert term is not None
    return term.publish(
        NewSnapshot(
            content=PATH.read_bytes(),
            feature_version=FEATURE_VERSION,
            record_count=64,
            workloads={},
            last_record_id=0,
            metrics={TARGET_KINDS: ["llvm"]},
        )
    )


def test_a_tune_is_watched_where_an_optimizer_runs(
    two_products: Path, fleet: Fleet, path: Path, start_optimizer: Callable[[], subprocess.Popen[str]]
) -> None:
    """The optimizer does the work; report and errors are the same as without one, even if one of two boards is missing.

    All commands report the same best time of each workload.
    """
    start_optimizer()
    eventually_sync(lambda: optimizers(path) > 0, 120)
    port = fleet.address.rpartition(":")[2]  # the optimizer knows the tracker by another address
    words = ("--trials", "2", "--batch", "2", "--no-model", "--library", str(path), "--tracker", f"localhost:{port}")

    tuned = run_fleet("tune", str(two_products), *words, "--strategy", "random", "--json")

    nowhere = run_fleet("tune", str(two_products), *words, "--on", "cpu", "--on", "kind=nothing")

    assert tuned.returncode == 0, tuned.stderr
    assert nowhere.returncode == 1
    assert "no device matches 'kind=nothing'" in nowhere.stderr
    report = json.loads(tuned.stdout)
    assert report["trials"] == 2
    assert job(path, report["job"]).is_queued
    assert report["workloads"][0]["static_sec"] > 0
    shown = json.loads(run_fleet("jobs", "show", report["job"], "--library", str(path), "--json").stdout)
    best = json.loads(run_fleet("library", "best", "--library", str(path), "--json").stdout)["best"]
    told = pytest.approx(times(report["workloads"]))
    assert times(shown["workloads"]) == told
    assert times(shown["progress"]["kinds"][0]["workloads"]) == told
    assert times([{**item, "name": item["workload"]} for item in best]) == told
    total_sec = sum(item["weight"] * min(item["best_sec"], item["untuned_sec"]) for item in report["workloads"])
    eventually_sync(lambda: of_job(report["job"], fleet.snapshot())["state"] == "finished")
    status = json.loads(run_fleet("status", "--tracker", fleet.address, "--json").stdout)
    assert of_job(report["job"], status)["best_sec"] == pytest.approx(total_sec)


def times(workloads: Sequence[Mapping[str, float]]) -> dict[tuple[object, str], float]:
    """Return the best time of each workload, and that without a schedule, by name."""
    return {(item["name"], key): item[key] for item in workloads for key in ("best_sec", "untuned_sec")}


def of_job(name: str, snapshot: Mapping[str, object]) -> dict[str, object]:
    jobs: list[dict[str, object]] = snapshot["jobs"]  # type: ignore[assignment]
    return next(job for job in jobs if job["name"] == name)


def optimizers(path: Path) -> int:
    with Library.open(path) as library:
        return len(library.queue.optimizers())
