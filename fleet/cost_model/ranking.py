"""Accuracy of a ranking of candidates."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_NOISE = 0.03
"""Times closer than this are equal: they differ as much when they are measured again."""


def ranked_right(predicted: NDArray[np.floating], run_sec: NDArray[np.floating]) -> float:
    """Return the share of correctly ordered pairs among pairs of clearly different candidates; ties count half.

    Args:
        predicted: higher is slower, [n_candidates].
        run_sec: measured times.

    Returns:
        0.5 where no two are clearly different.
    """
    slower = run_sec[:, None] > (1 + _NOISE) * run_sec[None, :]
    ahead = predicted[:, None] - predicted[None, :]
    pairs = int(slower.sum())
    return float(((ahead > 0) & slower).sum() + 0.5 * ((ahead == 0) & slower).sum()) / pairs if pairs else 0.5
