"""Jobs that measure on several boards and several kinds of boards at once, while agents and optimizers are killed."""

from __future__ import annotations

import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fleet.domain.snapshot import Snapshot
from fleet.library import Job, JobState, Library, Record, RecordKind
from fleet.testing import eventually_sync
from tests.system.fleet_processes import Server, connect, run_fleet, start_fleet

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

_ENDS_WITHIN_SEC = 200
_BOARDS = {
    "a": "{driver: cpu, name: a, threads: 1}",
    "b": "{driver: cpu, name: b, threads: 1}",
    "s": "{driver: simulated, name: s}",
}


@dataclass
class Boards:
    """A tracker, and an agent for each of two processors and a simulated board."""

    tracker: Server
    agents: dict[str, Server] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    """Violations of the lease rules that were seen."""

    _epochs: dict[str, int] = field(default_factory=dict)

    def look(self, snapshot: Snapshot) -> None:
        """Note leases that should not be: two on a device, or an epoch that does not grow."""
        for name, count in Counter(lease.device_name for lease in snapshot.leases).items():
            self.faults += [f"{count} leases on {name}"] if count > 1 else []
        for lease in snapshot.leases:
            before = self._epochs.get(lease.device_name, 0)
            if lease.epoch < before:
                self.faults.append(f"epoch {lease.epoch} of {lease.device_name} after {before}")
            self._epochs[lease.device_name] = lease.epoch


@pytest.fixture
def boards(tmp_path: Path) -> Iterator[Boards]:
    words = ["-m", "fleet.tracker", "--no-discovery", "--state-dir", str(tmp_path / "tracker")]
    found = Boards(Server(words, "tracker", tmp_path / "tracker.log").start())
    for name, entry in _BOARDS.items():
        (tmp_path / f"{name}.yaml").write_text(f"devices: [{entry}]\n")
        words = ["-m", "device_agents", "--tracker", found.tracker.address, "--state-dir", str(tmp_path / name)]
        words += ["--config", str(tmp_path / f"{name}.yaml")]
        found.agents[name] = Server(words, "agent", tmp_path / f"{name}.log").start()
    yield found
    for server in (*found.agents.values(), found.tracker):
        server.stop()


@pytest.fixture
def watched(boards: Boards) -> Iterator[Boards]:
    """Boards whose leases are checked all the time."""
    is_over = threading.Event()

    def watch() -> None:
        with connect(boards.tracker.address) as client:
            for snapshot in client.watch(min_interval_sec=0.1):
                boards.look(snapshot)
                if is_over.is_set():
                    return

    thread = threading.Thread(target=watch)
    thread.start()
    yield boards
    is_over.set()
    with connect(boards.tracker.address) as client, client.acquire("kind=simulated"):
        thread.join(30)  # a lease changes the fleet, so that there is a last snapshot


@pytest.fixture
def library(tmp_path: Path) -> Iterator[Library]:
    with Library.open(tmp_path / "library.sqlite") as found:
        yield found


@pytest.fixture
def start_optimizer(boards: Boards, library: Library) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def start() -> subprocess.Popen[str]:
        words = ("--tracker", boards.tracker.address, "--library", library.url, "--jobs", "1", "--workers", "1")
        started.append(start_fleet("optimizer", "serve", *words))
        return started[-1]

    yield start
    for process in started:
        process.terminate()
        process.communicate(timeout=60)


def submit(model: Path, library: Library, seed: str) -> str:
    kinds = ("--on", "kind=cpu", "--on", "kind=simulated", "--devices", "2")
    words = ("--trials", "12", "--batch", "3", "--no-model", "--library", library.url, "--seed", seed)
    done = run_fleet("jobs", "submit", str(model), *kinds, *words)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def trials(library: Library, name: str) -> list[Record]:
    return library.records(job_name=name, kinds=[RecordKind.CANDIDATE])


def candidates(records: list[Record]) -> set[tuple[str, str, str]]:
    return {(record.scope.device_model, record.workload, record.trace_digest) for record in records}


def test_jobs_on_two_kinds_of_boards_outlive_an_agent_and_an_optimizer(
    two_products: Path,
    watched: Boards,
    library: Library,
    start_optimizer: Callable[[], subprocess.Popen[str]],
) -> None:
    """Both kills cost only trials in flight: every trial is another candidate, no two jobs share one, no board has two
    leases, and its epochs grow.
    """
    names = [submit(two_products, library, seed) for seed in "12"]
    optimizers = {process.pid: process for process in (start_optimizer(), start_optimizer())}

    eventually_sync(lambda: measured_on("devices/b", library, names), _ENDS_WITHIN_SEC)
    watched.agents["b"].kill()
    eventually_sync(lambda: len(trials(library, names[0])) >= 2, _ENDS_WITHIN_SEC)
    victim = optimizers[library.queue.get(names[0]).pid]
    victim.kill()
    victim.wait(60)
    watched.agents["b"].start()
    start_optimizer()
    ended = [eventually_sync(lambda name=name: has_ended(library, name), _ENDS_WITHIN_SEC) for name in names]  # type: ignore[misc]

    assert [job.state for job in ended] == [JobState.FINISHED] * 2, [job.message for job in ended]
    first, second = (candidates(trials(library, name)) for name in names)
    assert len(first) == len(second) == 12
    assert not first & second
    assert watched.faults == []
    with connect(watched.tracker.address) as client:
        eventually_sync(lambda: not client.snapshot().leases)


def measured_on(device: str, library: Library, names: list[str]) -> bool:
    return any(record.device_name == device for name in names for record in library.records(job_name=name))


def has_ended(library: Library, name: str) -> Job | None:
    job = library.queue.get(name)
    return None if job.state in (JobState.QUEUED, JobState.RUNNING) else job


def test_kinds_of_boards_share_the_trials_of_a_job(two_products: Path, library: Library, tmp_path: Path) -> None:
    """All trials are used, and each kind has at least a quarter of an equal share, though one is many times slower."""
    kinds = [
        "{driver: simulated, name: quick, board: rpi4-64}",
        "{driver: simulated, name: slow, board: rpi3-64, load_ms: 900}",
    ]
    (tmp_path / "agent.yaml").write_text(f"devices: [{', '.join(kinds)}]\n")
    tracker = Server(
        ["-m", "fleet.tracker", "--no-discovery", "--state-dir", str(tmp_path / "t")], "tracker", tmp_path / "t.log"
    ).start()
    words = ["-m", "device_agents", "--tracker", tracker.address, "--state-dir", str(tmp_path / "a")]
    agent = Server([*words, "--config", str(tmp_path / "agent.yaml")], "agent", tmp_path / "a.log").start()
    on = ("--on", "board=rpi4-64", "--on", "board=rpi3-64", "--trials", "64", "--batch", "4", "--exhaust", "--no-model")
    done = run_fleet("jobs", "submit", str(two_products), *on, "--library", library.url)
    serving = ("--tracker", tracker.address, "--library", library.url, "--jobs", "1", "--workers", "2")
    optimizer = start_fleet("optimizer", "serve", *serving)
    try:
        job = eventually_sync(lambda: has_ended(library, done.stdout.strip()), 240)
    finally:
        optimizer.terminate()
        optimizer.communicate(timeout=60)
        for server in (agent, tracker):
            server.stop()

    counts = Counter(device for _, device in {(r.trace_digest, r.device_name) for r in trials(library, job.name)})
    assert job.state is JobState.FINISHED, job.message
    assert counts.total() == 64, counts
    assert min(counts.values()) >= 8, counts
