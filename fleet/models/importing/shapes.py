"""Shapes of a model's inputs whose file leaves dimensions open. Pure.

An open dimension has a name in most files, and dimensions of one name have one size: `--shape ids=1,64` says the
length of the attention mask, too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeAlias

from fleet.base.config import did_you_mean
from fleet.errors import ImportFailed, InvalidRequest

Dim: TypeAlias = "int | str"
"""A size, or the name of an open dimension; "" where it has none."""

OpenShape: TypeAlias = "tuple[Dim, ...] | None"
"""None: not even the number of dimensions is known."""

Shapes: TypeAlias = Mapping[str, tuple[int, ...]]
"""Shape by input name, of some or all inputs."""


_BATCH, _PIXELS, _STEPS = 1, 224, 128
_IMAGE_RANK = 4
"""Number of dimensions of an image input: batch, channels, height and width."""

_MOST_ELEMENTS = 2**31 - 1
"""Maximum elements of a tensor: programs count in 32 bits."""


def close_shapes(
    inputs: Mapping[str, OpenShape], shapes: Shapes, batch_size: int | None = None
) -> dict[str, tuple[int, ...]]:
    """Return the shape of every input.

    Args:
        inputs: shapes in the file, by input name.
        shapes: the user's values for some of them.
        batch_size: size of the first dimension of each input, where that is open.

    Raises:
        InvalidRequest: a shape is for an input that does not exist, does not fit it, or contradicts another one; or
            no input has an open first dimension.
        ImportFailed: a dimension stays open.
    """
    sizes: dict[str, int] = {}
    for name, shape in shapes.items():
        if name not in inputs:
            raise InvalidRequest(f"the model has no input {name!r}{did_you_mean(name, inputs)}")
        _check(name, inputs[name], shape)
        for dim, size in zip(inputs[name] or (), shape, strict=False):
            _note(sizes, dim, size, name)
    if batch_size is not None and batch_size < 1:
        raise InvalidRequest(f"a batch has at least one element, not {batch_size}")
    if batch_size is not None:
        opened = [name for name, shape in inputs.items() if shape and _is_open(shape[0])]
        if not opened:
            raise InvalidRequest("no input has an open first dimension, so the model's batch size cannot be set")
        for name in opened:
            _note(sizes, (inputs[name] or ())[0], batch_size, "the batch size")
            given = shapes[name][0] if name in shapes else batch_size
            if given != batch_size:
                raise InvalidRequest(
                    f"the batch size is {batch_size}, and by the shape of input {name!r} it is {given}"
                )
    closed = {name: _closed(shape, sizes, batch_size) for name, shape in inputs.items()}
    closed.update(shapes)
    _check_all_closed(inputs, closed)
    _check_sizes(closed)
    return {name: tuple(int(dim) for dim in shape) for name, shape in closed.items() if shape is not None}


def _check_sizes(closed: Mapping[str, OpenShape]) -> None:
    for name, shape in closed.items():
        count = math.prod(int(dim) for dim in shape or ())
        if count > _MOST_ELEMENTS:
            raise InvalidRequest(
                f"input {name!r} would have {count:,} elements; programs index at most {_MOST_ELEMENTS:,}"
            )


def _is_open(dim: Dim) -> bool:
    return isinstance(dim, str)


def _check(name: str, known: OpenShape, shape: tuple[int, ...]) -> None:
    if any(size < 1 for size in shape):
        raise InvalidRequest(f"the shape {shape} of input {name!r} has a dimension below 1")
    if known is not None and len(known) != len(shape):
        raise InvalidRequest(f"input {name!r} has {len(known)} dimensions, the shape {shape} has {len(shape)}")
    for index, (dim, size) in enumerate(zip(known or (), shape, strict=False)):
        if not _is_open(dim) and dim != size:
            raise InvalidRequest(f"dimension {index} of input {name!r} is {dim} in the model, not {size}")


def _note(sizes: dict[str, int], dim: Dim, size: int, source: str) -> None:
    """Record the size of a named dimension."""
    if not isinstance(dim, str) or not dim:
        return
    if sizes.setdefault(dim, size) != size:
        raise InvalidRequest(f"the dimension {dim!r} would be {sizes[dim]} and, by {source}, {size}")


def _closed(shape: OpenShape, sizes: Mapping[str, int], batch_size: int | None) -> OpenShape:
    if shape is None:
        return None
    dims: list[Dim] = [sizes.get(dim, dim) if isinstance(dim, str) else dim for dim in shape]
    if dims and _is_open(dims[0]) and batch_size is not None:
        dims[0] = batch_size
    return tuple(dims)


def _check_all_closed(inputs: Mapping[str, OpenShape], closed: Mapping[str, OpenShape]) -> None:
    problems = {name: _open_dims(shape) for name, shape in closed.items() if shape is None or any(map(_is_open, shape))}
    if problems:
        listed = "; ".join(f"{name!r} has {', '.join(dims)}" for name, dims in problems.items())
        first = next(iter(problems))
        advice = f"Give all dimensions, like --shape {first}={_example(inputs[first])}"
        if all(shape is not None and not any(map(_is_open, shape[1:])) for shape in closed.values()):
            advice = f"Give the batch size, like --batch-size {_BATCH}, or all dimensions: --shape {first}=..."
        raise ImportFailed(f"inputs of unknown shape: {listed}. {advice}")


def _open_dims(shape: OpenShape) -> list[str]:
    if shape is None:
        return ["no shape at all"]
    return [f"dimension {index} = {dim or '?'}" for index, dim in enumerate(shape) if _is_open(dim)]


def _example(shape: OpenShape) -> str:
    """Return an example for an open shape: a batch of one, images of 224 x 224, sequences of 128."""
    sizes = shape or (_BATCH, 3, _PIXELS, _PIXELS)
    usual = _PIXELS if len(sizes) >= _IMAGE_RANK else _STEPS
    return ",".join(str((usual if index else _BATCH) if _is_open(dim) else dim) for index, dim in enumerate(sizes))
