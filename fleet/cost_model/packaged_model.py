"""The model and training data shipped with the package, used until the library has its own.

A snapshot that a library trains has learnt from both: one library's records alone taught less than the package knows.

`python -m benchmarks.cost_data.prior` makes both from the data set in benchmarks/data, which has its provenance.
"""

from __future__ import annotations

import functools
import io
import json
from pathlib import Path

import numpy as np

from cross.targets.target import Target
from fleet.cost_model.snapshot import Snapshot
from fleet.domain.observation import Observation

PATH = Path(__file__).with_name("prior_cpu.npz")
SAMPLES_PATH = Path(__file__).with_name("prior_cpu_samples.npz")


def has_prior(target: Target) -> bool:
    """Tell whether the package has a prior model for a target: it has one for processors."""
    return target.is_processor


def prior_for(target: Target) -> Snapshot | None:
    """Return the prior model for a target, or None if there is none."""
    return _cpu() if has_prior(target) else None


@functools.lru_cache(maxsize=1)
def _cpu() -> Snapshot:
    return Snapshot.of(PATH.read_bytes())


def prior_samples() -> list[Observation]:
    """Return the training data of the processors' prior: some 5,000 candidates, 10 MB."""
    return unpack_samples(SAMPLES_PATH.read_bytes())


def unpack_samples(content: bytes) -> list[Observation]:
    """Return the samples in a compressed file of arrays and JSON, with features as half floats.

    `benchmarks.cost_data.prior` writes it.
    """
    with np.load(io.BytesIO(content)) as file:
        arrays = {name: file[name] for name in file.files}
    ends = np.cumsum(arrays["store_counts"])
    features = np.split(arrays["stores"].astype(np.float32), ends[:-1])
    facts = json.loads(arrays["facts"].tobytes())
    owners = [fact for fact in facts for _ in range(fact["count"])]
    return [
        Observation(
            workload=fact["workload"],
            run_sec=float(run_sec),
            features=rows,
            flop=fact["flop"],
            device_model=fact["device_model"],
            instruction_set=fact["instruction_set"],
            kind=fact.get("kind", ""),
            is_disturbed=bool(is_disturbed),
        )
        for fact, rows, run_sec, is_disturbed in zip(
            owners, features, arrays["run_sec"], arrays["is_disturbed"], strict=True
        )
    ]
