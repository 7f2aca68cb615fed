"""Codec of features in the library: compressed half floats, 200 bytes for a candidate of two stores. Also the metrics
of a snapshot: the targets that it covers.

Rows are kept as they come from the extractor. A model's derived features (sums, maxima, differences from a workload's
median) take microseconds and are its own affair, so they can change without another extraction, which takes 10 ms.
Values are logarithms up to 40 or shares up to 1: half floats tell 1 part in 1,000 of them.
"""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fleet.domain.keys import canonical_target
from fleet.domain.observation import Observation
from fleet.errors import InvalidRequest
from fleet.library import RecordProgram, StoredSnapshot

FEATURE_VERSION = "per-store-1"
"""Names the extractor: rows of another version are neither learnt from nor predicted on."""

TARGET_KINDS = "target_kinds"
"""Key of a snapshot's metrics: the targets that it covers. Features of processors say nothing about GPUs."""

_SHAPE = struct.Struct("<HH")
_HALF_BYTES = 2
_MOST_ROWS = 4096
"""A program has a dozen stores; more than this is no program but damage."""


def pack_program(program: int | None, rows: NDArray[np.float32]) -> RecordProgram:
    """Return the stored features of a candidate.

    Args:
        program: hash of the scheduled program; None: not known.
        rows: float32, shape [n_stores, n_features]; none at all for a schedule that does not apply any more.

    Raises:
        InvalidRequest: not finite, or too large for half floats.
    """
    limit = np.finfo(np.float16).max
    if rows.ndim != 2 or len(rows) > _MOST_ROWS or not np.all(np.abs(rows) <= limit):  # also refuses NaN
        raise InvalidRequest(
            f"features {rows.shape} are not finite, or beyond half floats: nothing is learnt from them"
        )
    packed = _SHAPE.pack(*rows.shape) + zlib.compress(rows.astype("<f2").tobytes())
    text = "" if program is None else f"{program & 0xFFFFFFFFFFFFFFFF:016x}"
    return RecordProgram(program_hash=text, feature_version=FEATURE_VERSION, stores=packed)


NO_PROGRAM = pack_program(None, np.empty((0, 0), np.float32))
"""Stands for a trace that does not apply any more, or of a target that is refused, so that nobody tries again."""


def unpack_rows(stores: bytes) -> NDArray[np.float32]:
    """Return float32 [n_stores, n_features] from `RecordProgram.stores`.

    Raises:
        InvalidRequest: damaged.
    """
    try:
        rows, columns = _SHAPE.unpack_from(stores)
        size = rows * columns * _HALF_BYTES
        unpacking = zlib.decompressobj()
        unpacked = unpacking.decompress(stores[_SHAPE.size :], size + 1)  # a larger one is damaged, whatever its size
        if not unpacking.eof:
            raise ValueError("they end too early, or too late")
        return np.frombuffer(unpacked, "<f2").reshape(rows, columns).astype(np.float32)
    except (struct.error, zlib.error, ValueError) as error:
        raise InvalidRequest(f"stored features cannot be read: {error}") from error


def unpacked(packed: Observation) -> Observation:
    """Return an observation of the library with its features.

    Raises:
        InvalidRequest: they are damaged.
    """
    return replace(packed, features=unpack_rows(packed.stores), stores=b"") if packed.stores else packed


def target_kind(target_json: str) -> str:
    """Return the kind of a target: "llvm", "cuda", ..."""
    return str(json.loads(canonical_target(target_json))["kind"])


def target_kinds(snapshot: StoredSnapshot) -> tuple[str, ...]:
    """Return which kinds of targets a snapshot was trained for."""
    kinds = snapshot.metrics.get(TARGET_KINDS)
    return tuple(map(str, kinds)) if isinstance(kinds, list) else ()
