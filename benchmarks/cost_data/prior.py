"""Trains the snapshot shipped with the package, and stores its training data there.

    python -m benchmarks.cost_data.prior
    python -m benchmarks.cost_data.prior --before OLD.npz    # only if the data set's last change did not make it worse

With --before, one model is trained on the present data set and one on the former, both without the workloads of the
frozen split, on which they are compared.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np

from benchmarks import common
from benchmarks.cost_data.dataset import Group, load
from benchmarks.cost_model import DATA, SPLIT, samples_of, usable
from fleet.cost_model.packaged_model import PATH, SAMPLES_PATH
from fleet.cost_model.ranking import ranked_right
from fleet.cost_model.samples import Context, grouped
from fleet.cost_model.snapshot import Snapshot
from fleet.cost_model.training import is_not_worse, train_snapshot
from fleet.domain.observation import Observation


def main(argv: Sequence[str] | None = None) -> int:
    """Train, and write it into the package; the exit code is 1 if it would be worse."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cost_data.prior", description=__doc__)
    parser.add_argument("--before", type=Path, metavar="DATASET", help="the data set as it was")
    options = parser.parse_args(argv)
    groups = _groups(DATA)
    if options.before and not _passes(groups, _groups(options.before)):
        return 1
    snapshot = _trained(groups)
    PATH.write_bytes(snapshot.content)
    SAMPLES_PATH.write_bytes(pack_samples([sample for group in groups for sample in samples_of(group)]))
    common.say(f"{len(snapshot.content)} bytes, {dict(snapshot.metrics)}, {snapshot.digest}")
    return 0


def pack_samples(samples: Sequence[Observation]) -> bytes:
    """Return samples as a compressed file of arrays and JSON, without failed ones: see
    `fleet.cost_model.packaged_model.unpack_samples`.
    """
    groups = grouped(samples)
    facts = [
        {
            "workload": group.workload,
            "flop": group.flop,
            "device_model": group.device_model,
            "instruction_set": group.instruction_set,
            "kind": group.kind,
            "count": len(group),
        }
        for group in groups
    ]
    features = [one for group in groups for one in group.features]
    file = io.BytesIO()
    np.savez_compressed(
        file,
        facts=np.frombuffer(json.dumps(facts).encode(), np.uint8),
        stores=np.concatenate(features).astype("<f2"),
        store_counts=np.array([len(one) for one in features], "<u2"),
        run_sec=np.exp(np.concatenate([group.log_sec for group in groups])).astype("<f4"),
        is_disturbed=np.concatenate([group.weights < 1 for group in groups]),
    )
    return file.getvalue()


def _passes(groups: Sequence[Group], before: Sequence[Group]) -> bool:
    evaluated = frozenset(json.loads(SPLIT.read_text())["evaluated"])
    now, then = _trained(groups, without=evaluated), _trained(before, without=evaluated)
    left = [group for group in groups if group.program.shash in evaluated]
    pairs = {name: np.array([_pairs(model, group) for group in left]) for name, model in (("now", now), ("then", then))}
    difference = pairs["now"] - pairs["then"]
    error = difference.std(ddof=1) / np.sqrt(len(difference))
    passes = is_not_worse(now, then, [sample for group in left for sample in samples_of(group)])
    common.say(
        f"pairs right of {len(left)} workloads left out: {pairs['now'].mean():.4f}, {pairs['then'].mean():.4f} before; "
        f"paired {difference.mean():+.4f}, standard error {error:.4f}: {'not worse' if passes else 'worse'}"
    )
    return passes


def _groups(path: Path) -> list[Group]:
    return [usable(group) for group in load(path).groups]


def _trained(groups: Sequence[Group], *, without: Collection[str] = ()) -> Snapshot:
    return train_snapshot(
        sample for group in groups if group.program.shash not in without for sample in samples_of(group)
    )


def _pairs(model: Snapshot, group: Group) -> float:
    first = samples_of(group)[0]
    context = Context(flop=group.program.flop, device_model=first.device_model, instruction_set=first.instruction_set)
    return ranked_right(model.predict(group.features, context).log_sec, group.run_sec)


if __name__ == "__main__":
    sys.exit(main())
