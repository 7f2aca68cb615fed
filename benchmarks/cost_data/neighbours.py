"""The best schedules of a workload's neighbours in the data set, as a library that holds the data would give them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.cost_data.dataset import Group, Program, load
from fleet.domain.observation import Observation
from fleet.domain.origin import Origin
from fleet.domain.workload import Workload
from fleet.library import StoredWorkload
from fleet.optimizer.seeds import nearest
from fleet.workloads.workload import argument_specs, module_of

_OF_EACH, _CLOSE = 2, 1.1
"""As `fleet.optimizer.seeds` has them."""


def neighbours_seeds(program: Program, path: Path) -> tuple[Observation, ...]:
    """Return the seeds of a workload, of its nearest neighbour first. Runs where TVM may be loaded."""
    groups = {group.program.shash: group for group in load(path).groups}
    args = argument_specs(module_of(program.mod_json))
    asked = Workload(
        name=program.name, weight=1, mod_json=program.mod_json, shash=program.shash, flop=program.flop, args=args
    )
    found = nearest(asked, [_stored(group.program) for group in groups.values()])
    best = {one.shash: _best(groups[one.shash]) for one in found}
    return tuple(
        Observation(
            workload=one.shash,
            mod_json=one.mod_json,
            trace_json=(trace := groups[one.shash].traces[index]),
            run_sec=float(groups[one.shash].run_sec[index]),
            origin=Origin.of_trace(trace),
        )
        for one in found
        for index in best[one.shash]
    )


def _best(group: Group) -> list[int]:
    first = np.argsort(group.run_sec)[:_OF_EACH]
    return [int(index) for index in first if group.run_sec[index] <= _CLOSE * group.run_sec.min()]


def _stored(program: Program) -> StoredWorkload:
    args = argument_specs(module_of(program.mod_json))
    return StoredWorkload(shash=program.shash, name=program.name, mod_json=program.mod_json, args=args)
