"""Recomputes features missing from older records: a stateless task for a worker of the build pool."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from cross.targets.intrinsics import load_intrinsics
from cross.targets.target import Target
from fleet.building.build_candidate import program_hash
from fleet.cost_model.feature_codec import NO_PROGRAM, pack_program
from fleet.cost_model.features import extract_features
from fleet.domain.program_check import check_program
from fleet.errors import InvalidRequest
from fleet.library import RecordProgram
from fleet.workloads.traces import replay
from fleet.workloads.workload import module_of


def recall_programs(mod_json: str, target: Target, traces: Sequence[str]) -> list[RecordProgram]:
    """Return the stored programs of candidates, NO_PROGRAM for a trace that does not apply or is refused."""
    load_intrinsics(target)
    found = dict.fromkeys(traces, NO_PROGRAM)
    try:
        check_program(mod_json)
    except InvalidRequest:
        return [NO_PROGRAM] * len(traces)
    mod = module_of(mod_json)
    for trace in found:
        with contextlib.suppress(InvalidRequest):
            schedule = replay(mod, trace)
            rows = extract_features(mod_json, target, [schedule])[0]
            found[trace] = pack_program(program_hash(schedule), rows)
    return [found[trace] for trace in traces]
