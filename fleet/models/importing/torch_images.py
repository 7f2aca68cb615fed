"""Pooling and resizing in operators that TVM 0.27 converts correctly: see `torch_operators`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def adaptive_max_pool(x: Tensor, sizes: Sequence[int]) -> Any:
    given = x.shape[-2:]
    if any(size % wanted for size, wanted in zip(given, sizes, strict=True)):
        return NotImplemented
    window = [size // wanted for size, wanted in zip(given, sizes, strict=True)]
    return torch.ops.aten.max_pool2d_with_indices(x, window, window)


def averaged(pool: Callable[..., Any], axes: int) -> Callable[..., Any]:
    """Return an average pooling with an explicit divisor."""

    def computed(x: Tensor, size: Sequence[int], *args: Any) -> Any:
        defaults: tuple[Any, ...] = ((), 0, False, True, None)
        stride, padding, ceil_mode, _, divisor = args + defaults[len(args) :]
        if divisor is None or ceil_mode:
            return NotImplemented
        elements = math.prod(size) if len(size) > 1 else size[0] ** axes
        return pool(x, size, stride, padding) * (elements / divisor)

    return computed


def unless(is_right: Callable[..., bool], instead: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: NotImplemented if is_right(*args) else instead(*args)


def is_repetition(x: Tensor, sizes: Sequence[int] | None, scales: Sequence[float] | None) -> bool:
    """Tell whether each element is repeated a whole number of times; else TVM rounds to the nearest, PyTorch down."""
    wanted = sizes or [int(size * scale) for size, scale in zip(x.shape[2:], scales or (), strict=True)]
    return all(size % given == 0 for size, given in zip(wanted, x.shape[2:], strict=True)) and all(
        scale == int(scale) for scale in scales or ()
    )


def is_by_sizes(x: Tensor, sizes: Sequence[int] | None, corners: bool, scales: Sequence[float] | None) -> bool:
    """Tell whether the scales equal the ratio of sizes; TVM uses sizes only."""
    fits = (size * scale == int(size * scale) for size, scale in zip(x.shape[2:], scales or (), strict=False))
    return bool(corners or sizes or all(fits))
