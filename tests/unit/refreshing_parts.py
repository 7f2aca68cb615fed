"""Workloads and simulated block times for tests of refreshes."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path

from fleet.artifacts.artifact import Artifact
from fleet.building.built_candidate import BuiltCandidate
from fleet.domain.devices import Inventory
from fleet.domain.making import Making
from fleet.domain.scope import RecordScope
from fleet.library import Record, StoredWorkload
from fleet.optimizer.comparing.rounds import Rounds
from fleet.optimizer.refreshing.measured import Measured
from fleet.optimizer.refreshing.plan import Group, Program, Rebuilt, program_of
from fleet.optimizer.refreshing.side_by_side import FORMER, OLD, STATIC, SideBySide

SCOPE = RecordScope(target_json="llvm", device_model="m", tvm_version="2")
NAMES = (FORMER, "second", "third", STATIC, OLD)


def record(digest: str = "", *, sec: float = 1e-3, version: str = "2", workload: str = "1", **facts: object) -> Record:
    scope = RecordScope(target_json="llvm", device_model="m", tvm_version=version)
    return Record(workload=workload, scope=scope, run_secs=(sec,), trace_digest=digest, **facts)  # type: ignore[arg-type]


def rebuilt(old: str, new: str | None, found: Record | None = None) -> Rebuilt:
    """Return a schedule with its object digests; None: it does not build."""
    build = None
    if new is not None:
        artifact = Artifact(path=Path(new), digest=f"linked {new}", object_digest=new)
        build = BuiltCandidate(artifact=artifact, features=None)
    return Rebuilt(record=found or record(old), making=Making(object_digest=old), build=build)


def group(*schedules: Rebuilt, name: str = "matmul", calls: float = 1.0) -> Group:
    workload = StoredWorkload(shash=schedules[0].record.workload, name=name, mod_json="{}")
    return Group(workload=workload, rebuilt=schedules, calls=calls, version="2")


def simulated(factors: Mapping[str, float], seed: int, *, noise: float = 0.01, then_sec: float = 1e-3) -> Measured:
    """Return a workload after rounds of its programs; a block in 25 is disturbed and takes up to 30 % longer."""
    rng = random.Random(seed)
    names = tuple(name for name in NAMES if name in factors)
    rounds = Rounds(
        names=names, pairs=tuple((FORMER, name) for name in names[1:]), budget_sec=float("inf"), rng=random.Random(seed)
    )
    while not rounds.is_over(0.0):
        rounds.add({name: _block(rng, factors[name], noise) for name in rounds.order()})
    found = group(*(rebuilt("old", name, record(name, sec=then_sec)) for name in names if name != OLD))
    programs = {one.record.trace_digest: one for one in _programs(found)}
    turns = SideBySide(rounds=rounds, last={}, device_name="d", inventory=Inventory(), device_sec={})
    return Measured(group=found, turns=turns, programs=programs, old_name=OLD if OLD in factors else "")


def _programs(found: Group) -> list[Program]:
    return [program_of(one.record, one.build, one.making) for one in found.rebuilt if one.build is not None]


def _block(rng: random.Random, factor: float, noise: float) -> float:
    disturbance = rng.uniform(0, 0.3) if rng.random() < 0.04 else 0.0
    return 1e-3 * factor * max(0.5, rng.gauss(1, noise)) * (1 + disturbance)
