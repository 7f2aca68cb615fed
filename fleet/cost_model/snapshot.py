"""A trained model as bytes: arrays and JSON in one compressed file, without executable content."""

from __future__ import annotations

import io
import json
import reprlib
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from typing import Any, NotRequired, TypedDict, TypeVar

import numpy as np
from numpy.typing import NDArray

from fleet.base.digests import digest_of
from fleet.cost_model import experts
from fleet.cost_model.calibration import Calibration
from fleet.cost_model.corrections import Correction
from fleet.cost_model.experts import Experts
from fleet.cost_model.model import CostModel
from fleet.cost_model.part import Arrays, Part
from fleet.cost_model.prediction import Prediction, predict
from fleet.cost_model.samples import Context
from fleet.domain.observation import Features
from fleet.errors import InvalidRequest

_COLUMNS_VERSION = 1
"""Of the columns that a snapshot makes of stored rows; those have `feature_codec.FEATURE_VERSION`. A snapshot of
another is refused: its columns would be taken for others."""

_FIRST_PARTS = ("ridge", "trees", "network")
"""Parts of snapshots that name none."""

_MOST_BYTES = 64 * 1024 * 1024
_MOST_UNPACKED_BYTES = 4 * _MOST_BYTES
"""Compressed bytes may become a thousand times as many."""

T = TypeVar("T")


class _Header(TypedDict):
    feature_version: int
    width: int
    calibration: dict[str, Any]
    left_out_pairs: float
    parts: NotRequired[list[str]]
    """Parts of each member, in order; absent in snapshots of version 0.1."""

    scales: list[float]
    """Divisors of the members' networks, in order: version 0.1 reads them here."""

    instruction_sets: list[str]
    device_models: list[str]
    corrections: NotRequired[list[dict[str, Any]]]
    """Fields of the corrections; absent if there are none, and ignored by version 0.1."""

    metrics: dict[str, float]


@dataclass(frozen=True)
class Snapshot:
    """A model that can be stored and sent."""

    content: bytes
    metrics: Mapping[str, float]
    """Its training data, and the ranking of workloads that its members had not seen."""

    @cached_property
    def digest(self) -> str:
        """Its name: "sha256:<hex>" of its content."""
        return digest_of(self.content)

    @classmethod
    def of(cls, content: bytes) -> Snapshot:
        """Parse a snapshot's header.

        Raises:
            InvalidRequest: it is none, or one of another feature version.
        """
        return cls(content=content, metrics=_read(lambda: dict(_header(_arrays(content))["metrics"])))

    @cached_property
    def model(self) -> CostModel:
        """The model itself; parsed at first use.

        Raises:
            InvalidRequest: the content is damaged.
        """
        return _read(lambda: _unpack(_arrays(self.content)))

    def predict(self, features: Sequence[Features], context: Context) -> Prediction:
        """Return the expected times of candidates.

        Args:
            features: of each candidate, with at least one store.

        Raises:
            InvalidRequest: their features are of another version.
        """
        return predict(self.model, features, context)


@lru_cache(maxsize=4)
def snapshot_of(content: bytes) -> Snapshot:
    """Parse a snapshot, once per process.

    Raises:
        InvalidRequest: it is none, or one of another feature version.
    """
    return Snapshot.of(content)


def pack(model: CostModel, metrics: Mapping[str, float]) -> Snapshot:
    """Return a model as a snapshot."""
    arrays = {
        f"{number}.{name}": array
        for number, member in enumerate(model.members)
        for part in member.parts
        for name, array in part.arrays().items()
    }
    header = {
        "feature_version": _COLUMNS_VERSION,
        "width": model.width,
        "calibration": asdict(model.calibration),
        "parts": [part.name for part in model.members[0].parts],
        "scales": [float(arrays.get(f"{number}.divisor", np.array(1.0))) for number in range(len(model.members))],
        "instruction_sets": list(model.by_instruction_set),
        "device_models": list(model.by_device),
        **({"corrections": [asdict(one) for one in model.corrections.values()]} if model.corrections else {}),
        "left_out_pairs": model.left_out_pairs,
        "metrics": dict(metrics),
    }
    arrays["header"] = np.frombuffer(json.dumps(header).encode(), np.uint8)
    arrays |= {f"set{place}": row for place, row in enumerate(model.by_instruction_set.values())}
    arrays |= {f"device{place}": row for place, row in enumerate(model.by_device.values())}
    file = io.BytesIO()
    np.savez_compressed(file, allow_pickle=False, **arrays)
    return Snapshot(content=file.getvalue(), metrics=dict(metrics))


def _read(read: Callable[[], T]) -> T:
    """Parse a part of the content; any failure counts as damage."""
    try:
        return read()
    except (AttributeError, IndexError, KeyError, OverflowError, RecursionError, TypeError, ValueError) as error:
        raise InvalidRequest(f"this is no snapshot of a cost model: {type(error).__name__}: {error}") from error


def _unpack(arrays: Arrays) -> CostModel:
    header = _header(arrays)
    kinds = _parts(header.get("parts", _FIRST_PARTS))
    members = []
    for number, divisor in enumerate(header["scales"]):
        prefix = f"{number}."
        own = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
        own["divisor"] = np.array(divisor)
        members.append(Experts(parts=tuple(kind.from_arrays(own) for kind in kinds)))
    first, second = header["calibration"].pop("level")  # JSON has no tuples
    return CostModel(
        width=header["width"],
        members=tuple(members),
        by_instruction_set=_residuals(header["instruction_sets"], "set", arrays),
        by_device=_residuals(header["device_models"], "device", arrays),
        calibration=Calibration(level=(first, second), **header["calibration"]),
        left_out_pairs=header["left_out_pairs"],
        corrections={
            (one.device_model, one.kind): one
            for one in (Correction(**fields) for fields in header.get("corrections", []))
        },
    )


def _parts(names: Sequence[str]) -> list[type[Part]]:
    """Return the parts with these names. A name chooses among ours and never imports code."""
    known = {part.name: part for part in experts.PARTS}
    if not names or len(set(names)) < len(names) or not known.keys() >= set(names):
        raise InvalidRequest(
            f"the snapshot has the parts {reprlib.repr(names)}, this program {list(known)}: train it anew"
        )
    return [known[name] for name in names]


def _residuals(names: list[str], prefix: str, arrays: Arrays) -> dict[str, NDArray[np.float32]]:
    return {name: arrays[f"{prefix}{place}"].astype(np.float32) for place, name in enumerate(names)}


def _arrays(content: bytes) -> dict[str, NDArray[np.generic]]:
    if len(content) > _MOST_BYTES:
        raise InvalidRequest(f"a snapshot of {len(content)} bytes; at most {_MOST_BYTES} are read")
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            size = sum(member.file_size for member in archive.infolist())
        if size > _MOST_UNPACKED_BYTES:
            raise InvalidRequest(f"a snapshot of {size} bytes; at most {_MOST_UNPACKED_BYTES} are unpacked")
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except InvalidRequest:
        raise
    except Exception as error:  # zipfile and numpy follow damaged files anywhere
        raise InvalidRequest(f"this is no snapshot of a cost model: {error}") from error


def _header(arrays: Arrays) -> _Header:
    header: _Header = json.loads(arrays["header"].tobytes())
    version = header["feature_version"]
    if version != _COLUMNS_VERSION:
        raise InvalidRequest(
            f"the snapshot has features of version {version}, this program of version {_COLUMNS_VERSION}: train it anew"
        )
    return header
