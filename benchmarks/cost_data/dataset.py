"""A data set of measured candidates, as one compressed file: arrays and JSON, never pickled objects."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fleet.domain.operators import describe_workload
from fleet.domain.workload import Workload

_FORMAT = 2
_FORMATS = (1, _FORMAT)
"""1 does not say which candidates were disturbed, nor of each workload when it was collected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Origin of one workload's candidates."""

    model: str
    """The model that it is a part of."""

    name: str
    """Its function in that model."""

    operator: str
    """For people: "conv2d 3x3 64->128 56x56"."""

    shash: str
    flop: float
    target_json: str
    mod_json: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The measured candidates of one workload."""

    program: Program
    features: list[NDArray[np.float32]]
    """Per candidate [n_stores, n_features]."""

    run_sec: NDArray[np.float64]
    """Best of the repeats; infinite for a failed candidate."""

    spread: NDArray[np.float32]
    """(median - least) / least of the repeats: a measure of disturbance."""

    sources: list[str]
    """Origin of each candidate: "own" space, "rules" of MetaSchedule at random, or "evolved" from good ones."""

    traces: list[str]
    is_disturbed: NDArray[np.bool_]
    """All its times were disturbed."""

    collected: Mapping[str, object]
    """Time, machine and code of the collection."""

    def __len__(self) -> int:
        return len(self.run_sec)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """Groups, and facts about their collection."""

    provenance: dict[str, object]
    groups: list[Group]

    @property
    def records(self) -> int:
        """Number of measured candidates."""
        return sum(len(group) for group in self.groups)


def program_of(model: str, workload: Workload, target_json: str) -> Program:
    """Describe a workload of a model."""
    return Program(
        model=model,
        name=workload.name,
        operator=describe_workload(workload.name, workload.args, workload.mod_json),
        shash=workload.shash,
        flop=workload.flop,
        target_json=target_json,
        mod_json=workload.mod_json,
    )


def save(path: Path, dataset: Dataset) -> None:
    """Write a data set; features keep three digits (float16)."""
    groups = dataset.groups
    rows = [features for group in groups for features in group.features]
    header = {
        "format": _FORMAT,
        "provenance": dataset.provenance,
        "programs": [asdict(group.program) for group in groups],
        "collected": [dict(group.collected) for group in groups],
    }
    temporary = path.with_suffix(".tmp.npz")
    np.savez_compressed(
        temporary,
        header=_packed(header),
        traces=_packed([group.traces for group in groups]),
        sources=_packed([group.sources for group in groups]),
        sizes=np.array([len(group) for group in groups], np.int32),
        stores=np.array([len(row) for row in rows], np.int16),
        features=np.concatenate([row for row in rows if len(row)]).astype(np.float16),
        run_sec=np.concatenate([group.run_sec for group in groups]),
        spread=np.concatenate([group.spread for group in groups]).astype(np.float32),
        disturbed=np.concatenate([group.is_disturbed for group in groups]).astype(bool),
    )
    temporary.replace(path)


def load(path: Path) -> Dataset:
    """Read a data set.

    Raises:
        ValueError: it is of another format.
    """
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    header = _unpacked(arrays["header"])
    if header["format"] not in _FORMATS:
        raise ValueError(f"{path} has format {header['format']}; this version reads {_FORMATS}")
    ends = np.cumsum(arrays["stores"], dtype=np.int64)
    rows = np.split(arrays["features"].astype(np.float32), ends[:-1])
    traces, sources = _unpacked(arrays["traces"]), _unpacked(arrays["sources"])
    disturbed = arrays.get("disturbed", np.zeros(len(rows), bool))
    collected = header.get("collected", [header["provenance"]] * len(header["programs"]))
    groups, at = [], 0
    for index, size in enumerate(arrays["sizes"].tolist()):
        here = slice(at, at + size)
        groups.append(
            Group(
                program=Program(**header["programs"][index]),
                features=rows[here],
                run_sec=arrays["run_sec"][here],
                spread=arrays["spread"][here],
                sources=sources[index],
                traces=traces[index],
                is_disturbed=disturbed[here],
                collected=collected[index],
            )
        )
        at += size
    return Dataset(provenance=header["provenance"], groups=groups)


def merge(parts: Sequence[Dataset], provenance: dict[str, object]) -> Dataset:
    """Return all groups of several data sets as one."""
    return Dataset(provenance=provenance, groups=[group for part in parts for group in part.groups])


def refreshed(old: Dataset, parts: Sequence[Dataset]) -> Dataset:
    """Return a data set with some workloads collected anew, each in its place; all others are unchanged."""
    new = {group.program.shash: group for part in parts for group in part.groups}
    groups = [new.get(group.program.shash, group) for group in old.groups]
    return replace(old, provenance={**old.provenance, "refreshed": len(new)}, groups=groups)


def _packed(value: object) -> NDArray[np.uint8]:
    return np.frombuffer(zlib.compress(json.dumps(value, separators=(",", ":")).encode(), 9), np.uint8)


def _unpacked(array: NDArray[np.uint8]):  # type: ignore[no-untyped-def]
    return json.loads(zlib.decompress(array.tobytes()))
