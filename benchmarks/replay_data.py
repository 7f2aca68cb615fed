"""Recorded candidates for replays: their times, and predictions of a cost model that has not seen their workload."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fleet.cost_model.model import train_model
from fleet.cost_model.samples import Group
from fleet.domain.observation import Observation

LEAST = 60
"""Workloads with fewer candidates are left out, since they leave no choice."""

_FOLDS = 5

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """One workload."""

    name: str
    run_secs: Floats
    """[n_candidates], infinite for failures."""

    is_late: NDArray[np.bool_]
    """Candidates of a second search, which evolved from the first one's."""

    values: Floats
    """The model's predictions, [n_members, n_candidates]; higher is slower."""

    slope: float
    """Logarithm of the time per unit of value, usually."""

    noise: float
    """Standard deviation of a candidate's logarithm of the time around that line."""


def prepare(path: Path) -> list[Recorded]:
    """Read a data set of `benchmarks.collect`, with predictions of models that were trained on other workloads only."""
    groups, is_late = _groups(path)
    found: list[Recorded] = []
    for fold in range(min(_FOLDS, len(groups))):
        model = train_model([group for number, group in enumerate(groups) if number % _FOLDS != fold])
        for number in range(fold, len(groups), _FOLDS):
            group = groups[number]
            found.append(
                Recorded(
                    name=group.workload,
                    run_secs=np.exp(group.log_sec.astype(np.float64)),
                    is_late=is_late[number],
                    values=model.values(model.frame(group.features), group.features).astype(np.float64),
                    slope=model.calibration.slope,
                    noise=model.calibration.noise,
                )
            )
    return sorted(found, key=lambda one: one.name)


def save(path: Path, recorded: Sequence[Recorded]) -> None:
    """Write one compressed file of arrays."""
    np.savez_compressed(
        path,
        names=np.array([one.name for one in recorded]),
        sizes=np.array([len(one.run_secs) for one in recorded], np.int32),
        run_secs=np.concatenate([one.run_secs for one in recorded]).astype(np.float32),
        is_late=np.concatenate([one.is_late for one in recorded]),
        values=np.concatenate([one.values for one in recorded], axis=1).astype(np.float32),
        slopes=np.array([one.slope for one in recorded]),
        noises=np.array([one.noise for one in recorded]),
    )


def load(path: Path) -> list[Recorded]:
    """Read a file of `save`."""
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    ends = np.cumsum(arrays["sizes"])[:-1]
    return [
        Recorded(
            name=str(name),
            run_secs=secs.astype(np.float64),
            is_late=late,
            values=values.astype(np.float64),
            slope=float(slope),
            noise=float(noise),
        )
        for name, secs, late, values, slope, noise in zip(
            arrays["names"],
            np.split(arrays["run_secs"], ends),
            np.split(arrays["is_late"], ends),
            np.split(arrays["values"], ends, axis=1),
            arrays["slopes"],
            arrays["noises"],
            strict=True,
        )
    ]


def _groups(path: Path) -> tuple[list[Group], list[NDArray[np.bool_]]]:
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    programs = json.loads(zlib.decompress(arrays["header"].tobytes()))["programs"]
    sources = json.loads(zlib.decompress(arrays["sources"].tobytes()))
    rows = np.split(arrays["features"].astype(np.float32), np.cumsum(arrays["stores"], dtype=np.int64)[:-1])
    groups, is_late, at = [], [], 0
    for program, size, origin in zip(programs, arrays["sizes"].tolist(), sources, strict=True):
        secs = arrays["run_sec"][at : at + size]
        good = np.isfinite(secs)
        if good.sum() >= LEAST:
            groups.append(
                Group(
                    [
                        Observation(
                            workload=str(program["operator"]), run_sec=sec, features=row, flop=float(program["flop"])
                        )
                        for row, sec, is_good in zip(rows[at : at + size], secs.tolist(), good, strict=True)
                        if is_good
                    ]
                )
            )
            is_late.append(np.array([source == "evolved" for source in origin])[good])
        at += size
    return groups, is_late
