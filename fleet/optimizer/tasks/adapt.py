"""Adapts schedules of other programs to a workload: a task for a worker of the build pool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cross.targets.intrinsics import load_intrinsics
from cross.targets.target import Target
from fleet.domain.observation import Observation
from fleet.optimizer.core.candidates import Candidate
from fleet.optimizer.tasks.search_state import state_of
from fleet.optimizer.tasks.transfer import adapted


def adapted_schedules(mod_json: str, target: Target, seeds: Sequence[Observation]) -> list[Candidate]:
    """Return the schedules that fit the workload, in order, without a second one for the same program."""
    load_intrinsics(target)
    found: dict[int | None, Candidate] = {}
    for one in adapted(state_of(mod_json, target), seeds):
        found.setdefault(one.program, replace(one, schedule=None))  # a schedule cannot leave the process
    return list(found.values())
