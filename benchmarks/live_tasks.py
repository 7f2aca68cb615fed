"""Recorded candidates instead of a search and a build: tasks of an optimizer's workers.

A program is told by the shapes of its arguments. Its candidates are those of a recorded workload, with their features,
in an order of the seed; a built candidate is a file that tells a simulated device its recorded time.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.cost_data.dataset import load
from benchmarks.cost_model import DATA, usable
from cross.compile.library import tvm_version
from fleet.artifacts.artifact import Artifact
from fleet.building.build_candidate import BuildTask
from fleet.building.built_candidate import BuiltCandidate
from fleet.cost_model.packaged_model import prior_for
from fleet.cost_model.samples import Context
from fleet.cost_model.snapshot import snapshot_of
from fleet.domain.keys import trace_digest
from fleet.domain.measuring import TensorSpec
from fleet.domain.observation import Features
from fleet.optimizer.core.candidates import Candidate
from fleet.optimizer.tasks.predict_candidates import expected_of
from fleet.optimizer.tasks.propose import ProposeTask
from fleet.workloads.workload import argument_specs, module_of

TRACKS_VARIABLE = "BENCHMARK_TRACKS"
"""Environment variable with the path of a JSON file: {"8x16x32": {"group": 3, "order": [4, 0, ...]}, ...}."""

_MOST_AHEAD = 32
_UNTUNED = 2.0
"""Time of the unscheduled program, in times of the slowest candidate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """Recorded candidates of one program, in the order in which a search finds them."""

    flop: float
    traces: tuple[str, ...]
    digests: tuple[str, ...]
    run_secs: tuple[float, ...]
    features: tuple[Features, ...]


def key_of(args: Sequence[TensorSpec]) -> str:
    """Return the key of a matrix product: "8x16x32"."""
    (rows, inner), (_, columns) = args[0].shape, args[1].shape
    return f"{rows}x{inner}x{columns}"


def track_of(key: str) -> Track:
    """Return the candidates of a program."""
    return tracks_in(Path(os.environ[TRACKS_VARIABLE]))[key]


def propose(task: ProposeTask, state: object = None) -> list[Candidate]:
    """Return the next recorded candidates, the best predicted first, and those for later."""
    track, near = _near(task)
    expected = expected_of(
        [track.features[index] for index in near],
        prior_for(task.target) if task.shared is None else snapshot_of(task.shared),
        Context(
            flop=track.flop,
            device_model=task.device_model,
            instruction_set=task.target.instruction_set,
            known=task.records,
        ),
    )
    found = [_candidate(track, index, log_secs) for index, log_secs in zip(near, expected, strict=True)]
    if not any(np.isnan(one.predicted) for one in found):
        found.sort(key=lambda one: -one.predicted)
    return found[: task.count + task.ahead]


def propose_as_found(task: ProposeTask, state: object = None) -> list[Candidate]:
    """Return the next recorded candidates in the order in which a search finds them, without predictions."""
    track, near = _near(task)
    return [_candidate(track, index, None) for index in near[: task.count + task.ahead]]


def _near(task: ProposeTask) -> tuple[Track, list[int]]:
    """Return the next unknown candidates of a program: more with each batch, and none for a static schedule."""
    track = track_of(key_of(_args_of(task.mod_json)))
    known = task.known | {trace_digest(record.trace_json) for record in task.records}
    unknown = [index for index, digest in enumerate(track.digests) if digest not in known and not task.is_static]
    return track, unknown[: min(_MOST_AHEAD, task.count + len(task.records))]


def _candidate(track: Track, index: int, log_secs: NDArray[np.float32] | None) -> Candidate:
    return Candidate(
        trace_json=track.traces[index],
        digest=track.digests[index],
        features=track.features[index],
        predicted=float("nan") if log_secs is None else -float(log_secs.mean()),
        log_secs=log_secs,
    )


def build_candidate(task: BuildTask) -> BuiltCandidate:
    """Write a file that tells a simulated device its time."""
    args = _args_of(task.mod_json)
    track = track_of(key_of(args))
    features = None
    if task.trace_json is None:
        run_sec, name = _UNTUNED * max(track.run_secs), "untuned"
    else:
        index = track.digests.index(trace_digest(task.trace_json))
        run_sec, name, features = track.run_secs[index], track.digests[index], track.features[index]
    content = f"latency_us:{run_sec * 1e6:.4f} {key_of(args)} {name}".encode()
    path = Path(task.out_dir) / f"{hashlib.sha256(content).hexdigest()}.so"
    path.write_bytes(content)
    artifact = Artifact.of_file(path, args=args, target_json=task.target.json, tvm_version=tvm_version())
    return BuiltCandidate(artifact=artifact, features=features if task.wants_features else None)


def digests_of(place: int, order: Sequence[int]) -> list[str]:
    """Return the digests of a recorded workload's candidates in an order."""
    group = usable(load(DATA).groups[place])
    return [trace_digest(group.traces[index]) for index in order]


@functools.lru_cache(maxsize=64)
def _args_of(mod_json: str) -> tuple[TensorSpec, ...]:
    return argument_specs(module_of(mod_json))


@functools.lru_cache(maxsize=1)
def tracks_in(path: Path) -> dict[str, Track]:
    """Return the candidates of all programs in a file."""
    groups = load(DATA).groups
    found = {}
    for key, chosen in json.loads(path.read_text()).items():
        group = usable(groups[chosen["group"]])
        by_digest = {trace_digest(group.traces[index]): index for index in chosen["order"]}  # some were measured twice
        order = list(by_digest.values())
        found[key] = Track(
            flop=group.program.flop,
            traces=tuple(group.traces[index] for index in order),
            digests=tuple(by_digest),
            run_secs=tuple(float(group.run_sec[index]) for index in order),
            features=tuple(group.features[index] for index in order),
        )
    return found
