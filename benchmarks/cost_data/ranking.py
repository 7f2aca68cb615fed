"""Quality of the first candidates of a ranking."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def best_of_top(predicted: NDArray[np.floating], run_sec: NDArray[np.floating], count: int) -> float:
    """Return the best time of all over that of the candidates predicted to be fastest."""
    first = np.argsort(predicted, kind="stable")[:count]
    return float(run_sec.min() / run_sec[first].min())
