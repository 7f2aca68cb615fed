"""Cost of a search: processor time of `propose` for each candidate, in rounds of eight.

Each workload is searched in a worker of the build pool, as by a job, with a batch ahead. Nothing is measured: times are
made up from the candidates' digests, so that every run on a machine proposes the same, which a digest of all proposals
shows. The builds' work for a first batch (its features) is not counted.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path

if not __package__:  # run as a file: python benchmarks/search_cost.py
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import common
from cross.pool.build_pool import BuildPool
from cross.targets.target import Target, host_target
from fleet.building import MODULES
from fleet.building.metered import metered
from fleet.cost_model.feature_codec import unpack_rows
from fleet.domain.observation import Observation
from fleet.domain.workload import Workload
from fleet.models.model import bundled_model, load_model
from fleet.optimizer.tasks.propose import ProposeTask, propose
from fleet.optimizer.tasks.recall import recall_programs
from fleet.workloads.extract import extract
from fleet.workloads.programs import matmul

_BATCH = 8
_CANDIDATES, _QUICK_CANDIDATES = 64, 16
_TIMEOUT_SEC = 600.0
_MODEL = "squeezenet"
_OPERATORS = ("conv2d 3x3 winograd", "conv2d 1x1", "max_pool2d")
"""The first workload of each in that model, besides a matrix product."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    options = common.make_parser("search_cost", __doc__ or "", rounds=1).parse_args(argv)
    machine, target = common.machine(), host_target()
    wanted = _QUICK_CANDIDATES if options.quick else _CANDIDATES
    found: dict[str, tuple[float, str]] = {}
    for workload in _workloads(target, is_quick=options.quick):
        found[workload.operator] = min(_search(workload, target, wanted) for _ in range(options.rounds or 1))
        common.say(f"{workload.operator}: {found[workload.operator][0]:.1f} ms for each candidate")
    mean_ms = sum(ms for ms, _ in found.values()) / len(found)
    figures = {
        "name": "search_cost",
        "unit": "ms of processor time for each proposed candidate, mean of the workloads",
        "budget": None,
        "peer": None,
        "ours": round(mean_ms, 1),
        "ratio": None,
        "ms_by_workload": {operator: round(ms, 1) for operator, (ms, _) in found.items()},
        "proposals": {operator: digest for operator, (_, digest) in found.items()},
        "candidates": wanted,
        "quick": options.quick,
        "machine": machine,
    }
    rows = [(operator, f"{ms:.1f}", digest) for operator, (ms, digest) in found.items()]
    columns = ("", "ms for each candidate", "digest of all proposals")
    notes = common.doubts(machine, quick=options.quick)
    common.print_table(f"{wanted} proposals in batches of {_BATCH}", columns, rows, notes)
    common.print_json(figures, wanted=options.json)
    return 0


def _workloads(target: Target, *, is_quick: bool) -> list[Workload]:
    with BuildPool(1, target=target, modules=MODULES) as pool:
        product = pool.submit(matmul, 256).result()
        if is_quick:
            return [product]
        in_model = pool.submit_within(_TIMEOUT_SEC, extract, load_model(bundled_model(_MODEL)), target).result()
    chosen = [next(one for one in in_model if one.operator.startswith(operator)) for operator in _OPERATORS]
    return [product, *chosen]


def _search(workload: Workload, target: Target, wanted: int) -> tuple[float, str]:
    """Return the time per candidate [ms], in a worker that has not met the workload, and a digest of them all."""
    records: list[Observation] = []
    digests: list[str] = []
    spent_sec = 0.0
    with BuildPool(1, target=target, modules=MODULES) as pool:
        while len(digests) < wanted:
            task = ProposeTask(
                mod_json=workload.mod_json,
                target=target,
                records=tuple(records),
                is_guided=True,
                count=_BATCH,
                ahead=_BATCH,
                flop=workload.flop,
                seed=len(digests),
            )
            answer = pool.submit_within(_TIMEOUT_SEC, metered, propose, task).result()
            spent_sec += answer.builder_sec
            batch = answer.value[:_BATCH]
            if not batch:
                break
            secs = [_made_up_sec(proposal.digest) for proposal in batch]
            digests += [proposal.digest for proposal in batch]
            traces = [proposal.trace_json for proposal in batch]
            programs = pool.submit(recall_programs, workload.mod_json, target, traces).result()
            records += [
                Observation(
                    workload=workload.shash,
                    trace_json=proposal.trace_json,
                    origin=proposal.origin,
                    run_sec=sec,
                    features=unpack_rows(program.stores),
                )
                for proposal, program, sec in zip(batch, programs, secs, strict=True)
            ]
    together = hashlib.sha256(json.dumps(digests).encode()).hexdigest()[:12]
    return spent_sec / max(1, len(digests)) * 1e3, together


def _made_up_sec(digest: str) -> float:
    return 1e-4 * (1 + int(hashlib.sha256(digest.encode()).hexdigest()[:6], 16) / 2**22)


if __name__ == "__main__":
    sys.exit(main())
