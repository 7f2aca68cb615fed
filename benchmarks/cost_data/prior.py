"""Trains the snapshot that comes with the package: `python -m benchmarks.cost_data.prior`."""

from __future__ import annotations

from benchmarks import common
from benchmarks.cost_data.dataset import load
from benchmarks.cost_model import DATA, samples_of, usable
from fleet.cost_model.prior import PATH
from fleet.cost_model.training import train_snapshot


def main() -> None:
    """Train, and write it into the package."""
    groups = [usable(group) for group in load(DATA).groups]
    snapshot = train_snapshot(sample for group in groups for sample in samples_of(group))
    PATH.write_bytes(snapshot.content)
    common.say(f"{len(snapshot.content)} bytes, {dict(snapshot.metrics)}, {snapshot.digest}")


if __name__ == "__main__":
    main()
