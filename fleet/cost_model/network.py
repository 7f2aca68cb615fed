"""A small network that evaluates each store separately: numpy, pairwise ranking loss, Adam.

Two layers for each store, a sum over the stores, one layer and a value. It sees which features occur together in one
store, which pooled rows have lost. Trained on one workload per step; pairs of its candidates are to be in the right
order, by the logistic loss, weighted with how far their times are apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fleet.cost_model.part import Arrays, Candidates, Lesson, Vector, other_folds
from fleet.domain.observation import Features

Array = NDArray[np.float32]

_RATE = 4e-3
_DECAY = 1e-3
_MOMENTUM, _SCALE = 0.9, 0.999
_CLOSE = 0.03
"""Natural logarithms of times that are closer than this count as equal: noise."""

_HIDDEN = 48
_PASSES = 11
"""Number of epochs."""

_SAMPLE = 64
"""Candidates of a workload in one step."""

_LIMIT = 5.0
"""Normalized features are cut here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Weights, and the normalization of features, as a part of the cost model."""

    name: ClassVar[str] = "network"

    columns: NDArray[np.int64]
    """Mask of the used features: the others were constant."""

    middle: Array
    scale: Array
    layers: tuple[Array, ...]
    """Layers in the order of `_forward`."""

    divisor: float = 1.0
    """Mean spread of the scores of a workload's candidates."""

    @classmethod
    def fit(cls, lessons: Sequence[Lesson], folds: Sequence[int], *, seed: int) -> list[Network]:
        """Fit a network for each fold."""
        return [_train(seen, seed + fold) for fold, seen in enumerate(other_folds(lessons, folds))]

    def level(self, features: Sequence[Features]) -> float:
        """Return the mean score of a frame's candidates."""
        return float(self.scores(features).mean())

    def values(self, candidates: Candidates, level: float) -> Vector:
        """Return a value per candidate, in units of the usual spread."""
        return (self.scores(candidates.features) - np.float32(level)) / np.float32(self.divisor)

    def arrays(self) -> Arrays:
        """Return weights and normalization."""
        arrays: dict[str, NDArray[np.generic]] = {f"layer{place}": layer for place, layer in enumerate(self.layers)}
        arrays |= {"columns": self.columns, "middle": self.middle, "net_scale": self.scale}
        return {**arrays, "divisor": np.array(self.divisor)}

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Network:
        """Read weights and normalization."""
        layers = sorted(name for name in arrays if name.startswith("layer"))
        return cls(
            columns=arrays["columns"].astype(np.int64),
            middle=arrays["middle"].astype(np.float32),
            scale=arrays["net_scale"].astype(np.float32),
            layers=tuple(arrays[name].astype(np.float32) for name in layers),
            divisor=float(arrays["divisor"]),
        )

    def scores(self, features: Sequence[Features]) -> Array:
        """Return a score per candidate [n_candidates]: higher is slower."""
        counts = np.array([len(one) for one in features])
        return _forward(self.layers, self.normalized(features), np.cumsum(counts) - counts)[-1]

    def normalized(self, features: Sequence[Features]) -> Array:
        """Return the normalized stores of all candidates, concatenated, as input of the first layer."""
        stores = np.concatenate(features)[:, self.columns]
        normalized: Array = np.clip((stores - self.middle) / self.scale, -_LIMIT, _LIMIT)
        return normalized


def _train(lessons: Sequence[Lesson], seed: int) -> Network:
    random = np.random.default_rng(seed)
    stores = np.concatenate([one for lesson in lessons for one in lesson.features])
    spread = stores.std(axis=0)
    columns = np.flatnonzero(spread > 1e-6)
    start = _start(len(columns), random)
    network = Network(
        columns=columns,
        middle=stores.mean(axis=0)[columns],
        scale=spread[columns] + np.float32(1e-3),
        layers=start,
    )
    prepared = [_batch(network.normalized(one.features), one) for one in lessons]
    # All layers in one vector, and their gradients in another: a step of Adam then takes a dozen operations, not
    # seventy.
    weights = np.concatenate([layer.ravel() for layer in start])
    gradient, first, second = (np.zeros_like(weights) for _ in range(3))
    layers, gradients = _views(weights, start), _views(gradient, start)
    step = 0
    for number in range(_PASSES):
        rate = _RATE * (1 - number / _PASSES)
        for index in random.permutation(len(lessons)):
            step += 1
            _write_gradients(gradients, layers, _drawn(prepared[index], random))
            gradient += _DECAY * weights
            first += (1 - _MOMENTUM) * (gradient - first)
            second += (1 - _SCALE) * (gradient * gradient - second)
            # Both are biased towards zero at first, by known factors.
            factor = rate * math.sqrt(1 - _SCALE**step) / (1 - _MOMENTUM**step)
            weights -= factor * first / (np.sqrt(second) + 1e-8)
    trained = replace(network, layers=layers)
    return replace(trained, divisor=float(np.mean([trained.scores(one.features).std() for one in lessons])) + 1e-6)


@dataclass(frozen=True, slots=True)
class _Batch:
    """Candidates of one workload in a training step."""

    stores: Array
    """Stores of the candidates, concatenated."""

    counts: NDArray[np.int64]
    """Stores of each."""

    starts: NDArray[np.int64]
    """The first store of each."""

    owner: NDArray[np.int64]
    """Owner of each store."""

    targets: Array
    weights: Array


def _batch(stores: Array, lesson: Lesson) -> _Batch:
    counts = np.array([len(one) for one in lesson.features])
    owner = np.repeat(np.arange(len(counts)), counts)
    return _Batch(stores, counts, np.cumsum(counts) - counts, owner, lesson.targets, lesson.weights)


def _drawn(batch: _Batch, random: np.random.Generator) -> _Batch:
    """Return a random sample of its candidates, or all if they are few."""
    if len(batch.targets) <= _SAMPLE:
        return batch
    chosen = random.permutation(len(batch.targets))[:_SAMPLE]
    counts = batch.counts[chosen]
    starts = np.cumsum(counts) - counts
    owner = np.repeat(np.arange(_SAMPLE), counts)
    rows = np.arange(len(owner)) + (batch.starts[chosen] - starts)[owner]
    return _Batch(batch.stores[rows], counts, starts, owner, batch.targets[chosen], batch.weights[chosen])


def _views(vector: Array, shapes: Sequence[Array]) -> tuple[Array, ...]:
    """Return views of a vector in the shapes of other arrays."""
    ends = np.cumsum([shape.size for shape in shapes])
    return tuple(part.reshape(shape.shape) for part, shape in zip(np.split(vector, ends[:-1]), shapes, strict=True))


def _start(inputs: int, random: np.random.Generator) -> tuple[Array, ...]:
    def drawn(rows: int, columns: int, size: float = 1.0) -> Array:
        values: Array = (random.standard_normal((rows, columns)) * np.sqrt(2 / rows) * size).astype(np.float32)
        return values

    nothing = np.zeros(_HIDDEN, np.float32)
    return (
        *(drawn(inputs, _HIDDEN), nothing.copy()),
        *(drawn(_HIDDEN, _HIDDEN), nothing.copy()),
        *(drawn(_HIDDEN, _HIDDEN), nothing.copy()),
        drawn(_HIDDEN, 1, 0.1),
    )


def _forward(
    layers: Sequence[Array], stores: Array, starts: NDArray[np.int64]
) -> tuple[Array, Array, Array, Array, Array]:
    one = _rectified(stores @ layers[0], layers[1])
    two = _rectified(one @ layers[2], layers[3])
    summed = np.add.reduceat(two, starts, axis=0)
    three = _rectified(summed @ layers[4], layers[5])
    return one, two, summed, three, (three @ layers[6])[:, 0]


def _rectified(values: Array, bias: Array) -> Array:
    """Add a bias and apply a rectifier, in place."""
    values += bias
    return np.maximum(values, 0, out=values)


def _write_gradients(gradients: Sequence[Array], layers: Sequence[Array], batch: _Batch) -> None:
    one, two, summed, three, values = _forward(layers, batch.stores, batch.starts)
    apart = batch.targets[:, None] - batch.targets[None, :]
    counted = apart * (apart > _CLOSE)
    ahead = values[:, None] - values[None, :]
    odds = np.exp(np.clip(ahead, -30, 30, out=ahead), out=ahead)
    odds += 1
    wrong = counted / odds
    wrong *= batch.weights[:, None]
    wrong *= batch.weights
    by_value = ((wrong.sum(axis=0) - wrong.sum(axis=1)) / max(counted.sum(), 1e-6)).astype(np.float32)[:, None]
    by_three = (by_value @ layers[6].T) * (three > 0)
    by_two = np.take(by_three @ layers[4].T, batch.owner, axis=0) * (two > 0)
    by_one = (by_two @ layers[2].T) * (one > 0)
    pairs = ((batch.stores, by_one), (one, by_two), (summed, by_three))
    for position, (inputs, by_output) in enumerate(pairs):
        np.matmul(inputs.T, by_output, out=gradients[2 * position])
        np.sum(by_output, axis=0, out=gradients[2 * position + 1])
    np.matmul(three.T, by_value, out=gradients[-1])
