"""The snapshot that comes with the package: what was measured for it, so that the first search does not start blind.

`python -m benchmarks.cost_data.prior` makes it from the data set in benchmarks/data, whose provenance is in there.
"""

from __future__ import annotations

import functools
from pathlib import Path

from cross.targets.target import parse_target
from fleet.cost_model.snapshot import Snapshot

PATH = Path(__file__).with_name("prior_cpu.npz")


def has_prior(target_json: str) -> bool:
    """Tell whether anything is known before anything is measured for a target: it is, of processors."""
    return bool(parse_target(target_json)["kind"] == "llvm")


def prior_for(target_json: str) -> Snapshot | None:
    """Return what is known before anything is measured for a target, if anything is."""
    return _cpu() if has_prior(target_json) else None


@functools.lru_cache(maxsize=1)
def _cpu() -> Snapshot:
    return Snapshot.of(PATH.read_bytes())
