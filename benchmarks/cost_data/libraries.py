"""Compares models trained on libraries, on another library's workloads, with the one shipped with the package.

    python -m benchmarks.cost_data.libraries a.sqlite b.sqlite ...

Each library is ranked in turn by models trained on each of the others alone, and on all of them, once with the
package's data as a job would and once without. Workloads in the training data do not count, nor those with fewer than
eight candidates.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks import common
from benchmarks.cost_data.ranking import best_of_top
from fleet.cost_model.feature_codec import FEATURE_VERSION
from fleet.cost_model.packaged_model import PATH, prior_samples
from fleet.cost_model.ranking import ranked_right
from fleet.cost_model.samples import Group, grouped
from fleet.cost_model.snapshot import Snapshot
from fleet.cost_model.training import LEAST_SAMPLES, train_snapshot
from fleet.domain.observation import Observation
from fleet.library import Library
from fleet.optimizer.tasks.train import is_held_out, usable_of

_MOST_SAMPLES = 50_000
_TOP = 8
_MODELS = ("package", "library alone", "both")


def main(argv: Sequence[str] | None = None) -> int:
    """Compare, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cost_data.libraries", description=__doc__)
    parser.add_argument("libraries", type=Path, nargs="+", metavar="LIBRARY")
    paths = parser.parse_args(argv).libraries
    if len({path.stem for path in paths}) < max(2, len(paths)):
        parser.error("give at least two libraries, each of another name: one teaches, the other is asked about")
    samples = {path.stem: _samples(path) for path in paths}
    packaged = [sample for sample in prior_samples() if not is_held_out(sample.workload)]
    package = Snapshot.of(PATH.read_bytes())
    rows: dict[str, list[list[NDArray[np.float64]]]] = {"one library": [], "all others": []}
    for asked in samples:
        others = [name for name in samples if name != asked]
        for kind, chosen in [*(("one library", [name]) for name in others), ("all others", others)]:
            seen = [sample for name in chosen for sample in samples[name]]
            groups = list(_unseen(samples[asked], seen))
            if not groups:
                continue
            models = (package, train_snapshot(seen), train_snapshot([*packaged, *seen]))
            rows[kind].append([_mean_of(model, groups) for model in models])
            common.say(f"{asked} by {', '.join(chosen)}: {len(groups)} workloads")
    for kind, found in rows.items():
        for name, (pairs, top) in zip(_MODELS, np.array(found).mean(axis=0), strict=True):
            print(f"{kind:12} {name:14} pairs right {pairs:.3f}  best of the top {_TOP} {top:.3f}")
    return 0


def _samples(path: Path) -> list[Observation]:
    with Library.open(path) as library:
        return usable_of(library.memory.samples(FEATURE_VERSION, limit=_MOST_SAMPLES))


def _unseen(samples: Sequence[Observation], seen: Sequence[Observation]) -> Iterator[Group]:
    known = {sample.workload for sample in seen}
    return (group for group in grouped(samples, least=LEAST_SAMPLES) if group.workload not in known)


def _mean_of(model: Snapshot, groups: Sequence[Group]) -> NDArray[np.float64]:
    """Return the share of pairs ranked right, and the relative speed of the best of the top."""
    means: NDArray[np.float64] = np.mean([_judge(model, group) for group in groups], axis=0)
    return means


def _judge(model: Snapshot, group: Group) -> tuple[float, float]:
    predicted, run_sec = model.predict(group.features, group.context).log_sec, np.exp(group.log_sec)
    return ranked_right(predicted, run_sec), best_of_top(predicted, run_sec, _TOP)


if __name__ == "__main__":
    sys.exit(main())
