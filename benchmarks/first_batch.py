"""The gain of a workload's first batch from the schedules of its neighbours.

Each workload of the data set is taken as new: its neighbours are the nearest of all others, as a library that holds the
data would give them. Two first batches of eight, after the static schedule: with the neighbours' schedules, fitted to
the workload, and without. Both are proposed as `fleet tune` does, by the own records alone: the snapshot in the package
has seen these workloads. All candidates are built and timed anew, in turns, on one thread, beside the best of the
hundred recorded ones, which is the same program on any machine of the same target.
"""

from __future__ import annotations

import math
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

if not __package__:  # run as a file: python benchmarks/first_batch.py
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import common
from benchmarks.cost_data.dataset import Group, Program, load
from benchmarks.cost_data.neighbours import neighbours_seeds
from benchmarks.cost_data.timer import Timer
from benchmarks.cost_model import DATA
from benchmarks.warm_start import Lab, built_candidates, in_turns
from cross.pool.build_pool import BuildPool
from cross.targets.target import host_target, parse_target
from fleet.domain.observation import Observation
from fleet.errors import BuildError
from fleet.optimizer.tasks.propose import ProposeTask, propose

_BATCH = 8
_TIMEOUT_SEC = 300.0
_QUICK_WORKLOADS = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    parser = common.make_parser("first_batch", __doc__ or "", rounds=1)
    parser.add_argument("--first", type=int, default=0, help="leave out so many workloads at the beginning")
    parser.add_argument("--workloads", type=int, help="only so many")
    parser.add_argument("--only", default="", metavar="TEXT", help="workloads whose operator has this in its name")
    parser.add_argument(
        "--to-gain", type=float, default=0.0, help="only where the static schedule lost this share, once"
    )
    parser.add_argument("--prefix", default="", help="put before the measuring process, as in benchmarks.collect")
    options = parser.parse_args(argv)
    machine, target = common.machine(), host_target()
    groups = [
        group
        for group in load(DATA).groups
        if options.only in group.program.operator and _to_gain(group) >= options.to_gain
    ]
    most = _QUICK_WORKLOADS if options.quick else options.workloads or len(groups)
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory(prefix="fleet-first-") as folder:
        timer = Timer(options.prefix.split(), Path(folder) / "timing.log")
        with BuildPool(2, target=target) as pool:
            try:
                for group in groups[options.first : options.first + most]:
                    seeds = pool.submit_within(_TIMEOUT_SEC, neighbours_seeds, group.program, DATA).result()
                    lab = Lab(program=group.program, seeds=seeds, pool=pool, timer=timer, folder=Path(folder))
                    row = _compare(lab, group)
                    rows += [row] if row is not None else []
                    common.say(f"{row or f'{group.program.operator}: the same batch'}")
            finally:
                timer.close()
    figures = _figures(rows, looked_at=len(groups[options.first : options.first + most]))
    _print(figures, rows, machine, quick=options.quick)
    common.print_json({**figures, "quick": options.quick, "machine": machine, "all": rows}, wanted=options.json)
    return 0


def _to_gain(group: Group) -> float:
    """Return by which share the first candidate of its own space, the static schedule, was slower than the best."""
    static = group.run_sec[group.sources.index("own")]
    return float(static / group.run_sec.min()) - 1


def _compare(lab: Lab, group: Group) -> dict[str, object] | None:
    """Return the relative slowness of the best of either batch against the best of all candidates, recorded ones
    included; None if both batches are the same.
    """
    static = _proposed(lab.pool, lab.program, is_static=True)
    # Only its trace counts for the next.
    records = [Observation(workload=lab.program.shash, trace_json=trace, run_sec=1e-3) for trace in static]
    alone = _proposed(lab.pool, lab.program, records)
    helped = _proposed(lab.pool, lab.program, records, lab.seeds) if lab.seeds else alone
    if set(helped) == set(alone):
        return None
    traces = list(dict.fromkeys([*static, *alone, *helped, group.traces[int(group.run_sec.argmin())]]))
    made = dict(zip(traces, built_candidates(lab, traces), strict=True))
    artifacts = {trace: one.artifact for trace, one in made.items() if one is not None}
    secs = dict(zip(artifacts, in_turns(lab.timer, list(artifacts.values())), strict=True))
    best_sec = min(secs.values())

    def slower(tried: Sequence[str]) -> float:
        return round(min((secs[trace] for trace in tried if trace in secs), default=math.inf) / best_sec, 3)

    return {
        "operator": lab.program.operator,
        "from_elsewhere": len(set(helped) - set(alone)),
        "static": slower(static),
        "alone": slower([*static, *alone]),
        "helped": slower([*static, *helped]),
    }


def _proposed(
    pool: BuildPool,
    program: Program,
    records: Sequence[Observation] = (),
    seeds: Sequence[Observation] = (),
    *,
    is_static: bool = False,
) -> list[str]:
    task = ProposeTask(
        mod_json=program.mod_json,
        target=parse_target(program.target_json),
        records=tuple(records),
        seeds=tuple(seeds),
        count=_BATCH,
        is_static=is_static,
        is_warm=False,
        seed=1,
    )
    try:
        return [one.trace_json for one in pool.submit_within(_TIMEOUT_SEC, propose, task).result()]
    except BuildError as error:
        common.say(f"{program.operator}: a search failed: {str(error)[:100]}")
        return []


def _figures(rows: Sequence[dict[str, object]], *, looked_at: int) -> dict[str, object]:
    def mean(key: str) -> float:
        values = [float(str(row[key])) for row in rows]
        return round(statistics.geometric_mean(values), 3) if values else math.nan

    alone, helped = mean("alone"), mean("helped")
    return {
        "name": "first_batch",
        "unit": "time of the best of a first batch / the best known",
        "peer": alone,
        "ours": helped,
        "ratio": round(alone / helped, 3),
        "static": mean("static"),
        "workloads": looked_at,
        "changed": len(rows),
    }


def _print(
    figures: dict[str, object], rows: Sequence[dict[str, object]], machine: common.Machine, *, quick: bool
) -> None:
    keys = ("operator", "from_elsewhere", "static", "alone", "helped")
    means = f"static {figures['static']}, alone {figures['peer']}, with neighbours {figures['ours']}"
    notes = [
        f"only {figures['changed']} of {figures['workloads']} workloads have another batch with neighbours",
        f"geometric means over these: {means}",
        *common.doubts(machine, quick=quick),
    ]
    columns = ("", "from neighbours", "static", "first batch alone", "with neighbours")
    common.print_table(
        "time of the best, as a multiple of the best known",
        columns,
        [[str(row[key]) for key in keys] for row in rows],
        notes,
    )


if __name__ == "__main__":
    sys.exit(main())
