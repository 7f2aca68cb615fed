"""Two optimizer processes tune the same workloads on two devices, and each learns from the records of the other.

Candidates and times are recorded ones of real programs, which simulated devices repeat.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import live_tasks
from benchmarks.cost_data.dataset import load
from benchmarks.cost_model import DATA, samples_of, usable
from benchmarks.live_lab import publish, snapshot_without, write_model
from benchmarks.processes import Process, python
from fleet.cost_model.ranking import ranked_right
from fleet.cost_model.samples import Context
from fleet.cost_model.snapshot import Snapshot
from fleet.domain.observation import Observation
from fleet.library import JobState, Library, RecordKind
from fleet.testing import eventually_sync
from tests.system.fleet_processes import Fleet, run_fleet, running_fleet

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

_WITHIN_SEC = 240
"""Far longer than any step takes on a busy machine."""

_LEFT_OUT = range(0, 57, 2)
"""Places of recorded workloads that the shared model has not seen."""

_GROUPS = {"8x16x32": 0, "8x32x32": 26}
"""Two of these, a vector's product and a mean over rows, by the shapes of the model's products."""

_MEASURED = 60
"""Candidates of each that the jobs may measure; the others are held out."""

_FEW, _MANY = 8, 16
"""Records of each workload that the second job has of its own, and that it counts of the first one at least."""


def candidates() -> Mapping[str, Sequence[Observation]]:
    """Return the recorded candidates by key, in the order in which searches find them."""
    groups = [usable(group) for group in load(DATA).groups]
    return {
        key: [samples_of(groups[place])[index] for index in order(len(groups[place]))] for key, place in _GROUPS.items()
    }


def order(count: int) -> list[int]:
    found: list[int] = np.random.default_rng(0).permutation(count).tolist()
    return found


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    """A fleet with two simulated devices, slow enough that both jobs still run when they are looked at."""
    (tmp_path / "fleet").mkdir()
    with running_fleet(
        tmp_path / "fleet", "devices:\n  - {driver: simulated, name: sim, count: 2, load_ms: 300}\n"
    ) as found:
        yield found


def submit(model: Path, library: Path, device: str, seed: int) -> str:
    words = ("--on", f"name={device}", "--trials", str(2 * _MEASURED), "--exhaust", "--no-model", "--batch", "4")
    done = run_fleet("jobs", "submit", str(model), *words, "--seed", str(seed), "--library", str(library))
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def digests(library: Library, job_name: str) -> Mapping[str, list[str]]:
    """Return the measured candidates of a job by key, in their order."""
    keys = {stored.shash: live_tasks.key_of(stored.args) for stored in library.find_workloads()}
    found: dict[str, list[str]] = {key: [] for key in _GROUPS}
    for record in library.records(job_name=job_name, kinds=[RecordKind.CANDIDATE]):
        if record.trace_digest not in found[keys[record.workload]]:
            found[keys[record.workload]].append(record.trace_digest)
    return found


def fewest(found: Mapping[str, Sequence[object]]) -> int:
    return min(map(len, found.values()))


def known_of_others(library: Library, job_name: str) -> int:
    """Return how many trials of others a running job counts for the workload with the fewest, by its own report."""
    progress: dict[str, Any] = dict(library.queue.get(job_name).progress or {})
    found = [item["trials_before"] for kind in progress.get("kinds", []) for item in kind["workloads"]]
    return min(found, default=0)


def accuracy(content: bytes, known: Sequence[Observation], held_out: Sequence[Observation]) -> float:
    """Return the share of held-out pairs that the shared model ranks right with these records."""
    predicted = Snapshot.of(content).predict([one.features for one in held_out], Context(known=known)).log_sec
    return ranked_right(predicted, np.array([one.run_sec for one in held_out]))


def test_a_service_learns_from_another_while_both_run(tmp_path: Path, fleet: Fleet) -> None:
    """The second job counts the first one's trials as they come, and ranks held-out candidates better with them."""
    content, path, model = snapshot_without(_LEFT_OUT), tmp_path / "library.sqlite", tmp_path / "products.onnx"
    recorded = candidates()
    tracks = {key: {"group": place, "order": order(len(recorded[key]))[:_MEASURED]} for key, place in _GROUPS.items()}
    (tmp_path / "tracks.json").write_text(json.dumps(tracks))
    write_model(model, dict.fromkeys(_GROUPS, 1.0))
    words = ("--tracker", fleet.address, "--library", path, "--jobs", 1, "--workers", 1)
    command, environment = (
        python("benchmarks.peers.recorded_optimizer", *words),
        {live_tasks.TRACKS_VARIABLE: str(tmp_path / "tracks.json")},
    )
    with Library.open(path) as library, contextlib.ExitStack() as stack:
        publish(library, content)
        for number in range(2):
            stack.enter_context(Process(command, tmp_path / f"optimizer{number}.log", environment=environment))
        first = submit(model, path, "sim-0", 1)
        eventually_sync(lambda: fewest(digests(library, first)) >= 4, _WITHIN_SEC)
        second = submit(model, path, "sim-1", 2)
        eventually_sync(lambda: fewest(digests(library, second)) >= _FEW, _WITHIN_SEC)
        eventually_sync(lambda: known_of_others(library, second) >= _MANY, _WITHIN_SEC)
        jobs = [library.queue.get(name) for name in (first, second)]
        own, others = digests(library, second), digests(library, first)

    assert [job.state for job in jobs] == [JobState.RUNNING] * 2
    assert jobs[0].pid != jobs[1].pid
    assert not any(set(own[key]) & set(others[key]) for key in _GROUPS)
    alone, together = [], []
    for key, some in recorded.items():
        by_digest = dict(zip(live_tasks.digests_of(_GROUPS[key], order(len(some))), some, strict=True))
        few, all_known = own[key][:_FEW], [*own[key], *others[key]]
        held_out = some[_MEASURED:]
        alone.append(accuracy(content, [by_digest[digest] for digest in few], held_out))
        together.append(accuracy(content, [by_digest[digest] for digest in all_known], held_out))
    assert np.mean(together) > np.mean(alone) + 0.02, (alone, together)
