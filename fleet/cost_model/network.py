"""A small network that looks at each store by itself: numpy, ranked pairs, Adam.

Two layers for each store, a sum over the stores, one layer and a value. It sees which features occur together in one
store, which pooled rows have lost. Trained on one workload per step; pairs of its candidates are to be in the right
order, by the logistic loss, weighted with how far their times are apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fleet.cost_model.pooling import Features

Array = NDArray[np.float32]

_RATE = 4e-3
_DECAY = 1e-3
_MOMENTUM, _SCALE = 0.9, 0.999
_CLOSE = 0.03
"""Natural logarithms of times that are closer than this count as equal: noise."""

_LIMIT = 5.0
"""Normalized features are cut here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """The candidates of one workload."""

    features: Sequence[Features]
    targets: Array
    """[n_candidates], higher is slower."""

    weights: Array
    """[n_candidates]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Weights, and how features are normalized."""

    columns: NDArray[np.int64]
    """Which features are used: the others were constant."""

    middle: Array
    scale: Array
    layers: tuple[Array, ...]
    """In the order of `_forward`."""

    def values(self, features: Sequence[Features]) -> Array:
        """Return a value per candidate [n_candidates]: higher is slower."""
        stores, owner = self._stores(features)
        return _forward(self.layers, stores, owner, len(features))[-1]

    def _stores(self, features: Sequence[Features]) -> tuple[Array, NDArray[np.int64]]:
        stores = np.concatenate(features)[:, self.columns]
        owner = np.repeat(np.arange(len(features)), [len(one) for one in features])
        return np.clip((stores - self.middle) / self.scale, -_LIMIT, _LIMIT), owner


def train(lessons: Sequence[Lesson], *, hidden: int = 48, passes: int = 20, sample: int = 64, seed: int = 0) -> Network:
    """Fit a network.

    Args:
        passes: how often each workload is seen.
        sample: candidates of a workload in one step.
    """
    random = np.random.default_rng(seed)
    stores = np.concatenate([one for lesson in lessons for one in lesson.features])
    columns = np.flatnonzero(stores.std(axis=0) > 1e-6)
    stores = stores[:, columns]
    network = Network(
        columns=columns,
        middle=stores.mean(axis=0),
        scale=stores.std(axis=0) + np.float32(1e-3),
        layers=_start(len(columns), hidden, random),
    )
    prepared = [_prepared(network, lesson) for lesson in lessons]
    layers = [layer.copy() for layer in network.layers]
    first, second = [np.zeros_like(layer) for layer in layers], [np.zeros_like(layer) for layer in layers]
    step = 0
    for number in range(passes):
        rate = _RATE * (1 - number / passes)
        for index in random.permutation(len(lessons)):
            step += 1
            for position, gradient in enumerate(_gradients(layers, *_drawn(prepared[index], sample, random))):
                gradient = gradient + _DECAY * layers[position]
                first[position] += (1 - _MOMENTUM) * (gradient - first[position])
                second[position] += (1 - _SCALE) * (gradient * gradient - second[position])
                mean, square = first[position] / (1 - _MOMENTUM**step), second[position] / (1 - _SCALE**step)
                layers[position] -= (rate * mean / (np.sqrt(square) + 1e-8)).astype(np.float32)
    return Network(columns=columns, middle=network.middle, scale=network.scale, layers=tuple(layers))


@dataclass(frozen=True, slots=True)
class _Prepared:
    stores: list[Array]
    targets: Array
    weights: Array


def _prepared(network: Network, lesson: Lesson) -> _Prepared:
    stores, owner = network._stores(lesson.features)  # noqa: SLF001 - of this module
    ends = np.cumsum(np.bincount(owner, minlength=len(lesson.features)))
    return _Prepared(np.split(stores, ends[:-1]), lesson.targets, lesson.weights)


def _drawn(
    lesson: _Prepared, sample: int, random: np.random.Generator
) -> tuple[Array, NDArray[np.int64], Array, Array]:
    count = len(lesson.targets)
    chosen = random.permutation(count)[:sample] if count > sample else np.arange(count)
    stores = [lesson.stores[index] for index in chosen]
    owner = np.repeat(np.arange(len(chosen)), [len(one) for one in stores])
    return np.concatenate(stores), owner, lesson.targets[chosen], lesson.weights[chosen]


def _start(inputs: int, hidden: int, random: np.random.Generator) -> tuple[Array, ...]:
    def drawn(rows: int, columns: int, size: float = 1.0) -> Array:
        values: Array = (random.standard_normal((rows, columns)) * np.sqrt(2 / rows) * size).astype(np.float32)
        return values

    nothing = np.zeros(hidden, np.float32)
    return (
        *(drawn(inputs, hidden), nothing.copy()),
        *(drawn(hidden, hidden), nothing.copy()),
        *(drawn(hidden, hidden), nothing.copy()),
        drawn(hidden, 1, 0.1),
    )


def _forward(
    layers: Sequence[Array], stores: Array, owner: NDArray[np.int64], count: int
) -> tuple[Array, Array, Array, Array, Array]:
    one = np.maximum(stores @ layers[0] + layers[1], 0)
    two = np.maximum(one @ layers[2] + layers[3], 0)
    starts = np.flatnonzero(np.diff(owner, prepend=-1))
    summed = np.add.reduceat(two, starts, axis=0)
    three = np.maximum(summed @ layers[4] + layers[5], 0)
    return one, two, summed, three, (three @ layers[6])[:, 0]


def _gradients(
    layers: Sequence[Array], stores: Array, owner: NDArray[np.int64], targets: Array, weights: Array
) -> list[Array]:
    one, two, summed, three, values = _forward(layers, stores, owner, len(targets))
    apart = targets[:, None] - targets[None, :]
    counted = np.where(apart > _CLOSE, apart, 0)
    counts = counted * weights[:, None] * weights[None, :]
    wrong = counts / (1 + np.exp(np.clip(values[:, None] - values[None, :], -30, 30)))
    by_value = ((wrong.sum(axis=0) - wrong.sum(axis=1)) / max(counted.sum(), 1e-6)).astype(np.float32)[:, None]
    by_three = (by_value @ layers[6].T) * (three > 0)
    by_two = (by_three @ layers[4].T)[owner] * (two > 0)
    by_one = (by_two @ layers[2].T) * (one > 0)
    return [
        *(stores.T @ by_one, by_one.sum(axis=0)),
        *(one.T @ by_two, by_two.sum(axis=0)),
        *(summed.T @ by_three, by_three.sum(axis=0)),
        three.T @ by_value,
    ]
