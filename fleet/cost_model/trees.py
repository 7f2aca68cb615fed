"""Gradient-boosted trees on rows, by XGBoost: one column per feature, one value per row."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from fleet.cost_model.part import Arrays, Candidates, Lesson, Vector
from fleet.cost_model.pooling import Rows
from fleet.domain.observation import Features

if TYPE_CHECKING:
    from xgboost import Booster, DMatrix

_PARAMETERS = {
    "objective": "reg:squarederror",
    "max_depth": 4,
    "base_score": 0.0,
    "nthread": 1,  # other workers use the other cores
    "verbosity": 0,
}
_MOST_BINS = 16

# Half the step, 40 rounds and 32 bins rank as well (77.6 % and 77.7 % of held-out pairs, five seeds), and take twice as
# long.
_BINNED_PARAMETERS = {
    "tree_method": "hist",
    "max_bin": _MOST_BINS,
    "eta": 0.2,
    "subsample": 0.8,
    "colsample_bytree": 0.3,
}

_BINNED_EVERY = 8
_ROUNDS = 20


class Trees:
    """Gradient-boosted trees of XGBoost."""

    def __init__(self, booster: Booster) -> None:
        self._booster = booster

    def values(self, rows: Rows) -> Vector:
        """Return a value for each row."""
        values: Vector = self._booster.inplace_predict(rows)
        return values

    def to_bytes(self) -> bytes:
        """Return the trees in XGBoost's UBJSON, for `load`."""
        return bytes(self._booster.save_raw("ubj"))


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedTrees:
    """Trees on the rows of all workloads, as a part of the cost model."""

    name: ClassVar[str] = "trees"

    booster: bytes
    """For `load`."""

    @classmethod
    def fit(cls, lessons: Sequence[Lesson], folds: Sequence[int], *, seed: int) -> list[SharedTrees]:
        """Fit trees for each fold.

        Binning takes longer than a fit, so all fits share it, with bin limits from every eighth row. Rows hidden from
        a fit get the weight 0.
        """
        import xgboost

        rows = np.concatenate([lesson.rows for lesson in lessons])
        targets = np.concatenate([lesson.targets for lesson in lessons])
        weights = np.concatenate([lesson.weights for lesson in lessons])
        owner = np.repeat(folds, [len(lesson.targets) for lesson in lessons])
        cuts = xgboost.QuantileDMatrix(rows[::_BINNED_EVERY], nthread=1, max_bin=_MOST_BINS)
        matrix = xgboost.QuantileDMatrix(rows, label=targets, nthread=1, max_bin=_MOST_BINS, ref=cuts)
        fitted = []
        for fold in range(max(folds) + 1):
            matrix.set_weight(np.where(owner == fold, np.float32(0), weights))
            trees = _train(matrix, _BINNED_PARAMETERS, rounds=_ROUNDS, seed=seed + fold)
            fitted.append(cls(booster=trees.to_bytes()))
        return fitted

    def level(self, features: Sequence[Features]) -> float:
        """Return 0: the rows are relative."""
        return 0.0

    def values(self, candidates: Candidates, level: float) -> Vector:
        """Return a value per candidate."""
        return load(self.booster).values(candidates.rows)

    def arrays(self) -> Arrays:
        """Return the trees as bytes."""
        return {"booster": np.frombuffer(self.booster, np.uint8)}

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> SharedTrees:
        """Read the trees; XGBoost parses them when they are first used."""
        return cls(booster=arrays["booster"].tobytes())


def fit(
    rows: Rows,
    targets: Vector,
    weights: NDArray[np.floating],
    parameters: Mapping[str, object],
    *,
    rounds: int,
    seed: int = 0,
) -> Trees:
    """Fit trees to weighted rows.

    Args:
        parameters: XGBoost's, beside those that all trees share.
    """
    import xgboost

    return _train(xgboost.DMatrix(rows, label=targets, weight=weights), parameters, rounds=rounds, seed=seed)


@functools.lru_cache(maxsize=32)
def load(content: bytes) -> Trees:
    """Return trained trees; parsed once per process."""
    import xgboost

    booster = xgboost.Booster({"nthread": 1})
    booster.load_model(bytearray(content))
    return Trees(booster)


def _train(matrix: DMatrix, parameters: Mapping[str, object], *, rounds: int, seed: int) -> Trees:
    import xgboost

    return Trees(xgboost.train({**_PARAMETERS, **parameters, "seed": seed}, matrix, num_boost_round=rounds))
