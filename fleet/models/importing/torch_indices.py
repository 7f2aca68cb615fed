"""PyTorch's indexing operators in operators that TVM 0.27 converts correctly: see `torch_operators`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def select(x: Tensor, axis: int, place: Any) -> Any:
    """Replace negative indices: TVM reads memory before the tensor. For an open axis, take a slice."""
    if not isinstance(place, int) or place >= 0:
        return NotImplemented
    if isinstance(x.shape[axis], int):
        return x.select(axis, place + x.shape[axis])
    return x.narrow(axis, x.shape[axis] + place, 1).squeeze(axis)


def unfold(x: Tensor, axis: int, size: int, step: int) -> Any:
    starts = torch.arange(0, x.shape[axis] - size + 1, step)
    windows = x.movedim(axis, -1)[..., starts[:, None] + torch.arange(size)]
    return windows.movedim(-2, axis % x.ndim)


def index(x: Tensor, places: Sequence[Tensor | None]) -> Any:
    """Give an index for every axis, where some axes lack one: TVM aligns indices of several axes wrongly."""
    given = [place for place in places if place is not None]
    if any(place.dtype == torch.bool for place in given) or len(given) in (1, x.ndim) or _is_grid(places):
        return NotImplemented
    return torch.ops.aten.index(x, _on_every_axis(x, places))


def _is_grid(places: Sequence[Tensor | None]) -> bool:
    """Tell whether two neighbouring axes have independent indices: rows and columns."""
    *_, rows, columns = places
    if rows is None or columns is None or any(place is not None for place in places[:-2]):
        return False
    return (rows.ndim, rows.shape[-1], columns.ndim) == (2, 1, 1)


def index_put(x: Tensor, places: Sequence[Tensor | None], values: Tensor, accumulate: bool = False) -> Any:
    given = [place for place in places if place is not None]
    if len(given) == 1 and given[0].dtype == torch.bool and places[0] is not None and not accumulate:
        if values.numel() != 1:
            return NotImplemented  # refused: the number of axes that the mask takes is unknown
        mask = given[0].reshape(given[0].shape + (1,) * (x.ndim - given[0].ndim))
        return torch.where(mask, values.reshape(()), x)
    if len(given) == x.ndim or any(place.dtype == torch.bool for place in given):
        return NotImplemented
    everywhere = _on_every_axis(x, places)
    return torch.ops.aten.index_put(x, everywhere, values.expand(everywhere[0].shape), accumulate)


def _on_every_axis(x: Tensor, places: Sequence[Tensor | None]) -> list[Tensor]:
    """Return the index on each axis of all elements of `x[places]`, each of that shape."""
    places = [*places, *[None] * (x.ndim - len(places))]
    axes = [axis for axis, place in enumerate(places) if place is not None]
    common = torch.broadcast_shapes(*(place.shape for place in places if place is not None))
    together = axes[-1] - axes[0] + 1 == len(axes)
    before = [axis for axis in range(axes[0]) if together]
    after = [axis for axis in range(x.ndim) if axis not in axes and axis not in before]
    shape = (*(x.shape[axis] for axis in before), *common, *(x.shape[axis] for axis in after))

    def spread(axis: int, place: Tensor | None) -> Tensor:
        if place is not None:
            front = (place % x.shape[axis]).expand(common)
            return front.reshape(*common, *[1] * len(after)).expand(shape)
        where = before.index(axis) if axis in before else len(before) + len(common) + after.index(axis)
        own = [-1 if at == where else 1 for at in range(len(shape))]
        return torch.arange(x.shape[axis]).reshape(own).expand(shape)

    return [spread(axis, place) for axis, place in enumerate(places)]


def within_places(operator: Any) -> Callable[..., Any]:
    """Drop updates whose index is out of bounds."""

    def computed(x: Tensor, axis: int, places: Tensor, updates: Tensor, *args: Any, **kwargs: Any) -> Any:
        if places.shape == updates.shape:
            return NotImplemented
        return operator(x, axis, places, updates[tuple(slice(size) for size in places.shape)], *args, **kwargs)

    return computed
