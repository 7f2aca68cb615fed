"""PyTorch's operators in terms of others, where TVM 0.27 lacks them or converts them wrongly.

Each function here, in `torch_indices` and in `torch_images` computes its operator, or returns NotImplemented
where TVM's own reading is right, and mostly faster.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._decomp import get_decompositions

from fleet.models.importing import torch_images, torch_indices


def decompositions() -> Any:
    """Return PyTorch's default decompositions with ours, for `ExportedProgram.run_decompositions`."""
    aten = torch.ops.aten
    table = torch.export.default_decompositions()
    comparisons = [getattr(aten, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")]
    of_bools = [getattr(op, kind) for op in comparisons for kind in ("Tensor", "Scalar")]
    of_bools += [aten.mul.Tensor, aten.maximum.default, aten.minimum.default]
    of_halves = [aten.mm.default, aten.bmm.default, aten.convolution.default, aten.sum.default, aten.sum.dim_IntList]
    of_halves += [aten.mean.default, aten.mean.dim, aten.var.correction]
    scatters = [aten.scatter.src, aten.scatter.reduce, aten.scatter_add.default, aten.scatter_reduce.two]
    resized = get_decompositions([aten.upsample_nearest2d.vec, aten.upsample_bilinear2d.vec])
    table.update({operator: _in_bytes(operator) for operator in of_bools})
    table.update({operator: _in_single(operator) for operator in of_halves})
    table.update({operator: torch_indices.within_places(operator) for operator in scatters})
    table.update(
        {
            aten.add.Tensor: _add,
            aten.sub.Tensor: _sub,
            aten.ne.Tensor: _ne,
            aten.isfinite.default: lambda x: x.abs() < math.inf,
            aten.erfc.default: lambda x: 1 - torch.erf(x),
            aten.exp2.default: lambda x: torch.pow(2.0, x),
            aten.elu.default: _elu,
            aten.pow.Scalar: _integer_power,
            aten.pow.Tensor_Tensor: _integer_power,
            aten.div.Tensor_mode: _div,
            aten.clamp.default: _clamp,
            aten.arange.start_step: _arange,
            aten.any.default: _any,
            aten.any.dim: _any,
            aten.any.dims: _any,
            aten.min.dim: _min,
            aten.var_mean.correction: lambda x, *args, **kwargs: (
                torch.var(x, *args, **kwargs),
                torch.mean(x, *args, keepdim=kwargs.get("keepdim", False)),
            ),
            aten.select.int: torch_indices.select,
            aten.unfold.default: torch_indices.unfold,
            aten.index.Tensor: torch_indices.index,
            aten.index_put.default: torch_indices.index_put,
            aten.addmm.default: _addmm,
            aten.native_group_norm.default: _group_norm,
            aten.adaptive_max_pool2d.default: torch_images.adaptive_max_pool,
            aten.avg_pool2d.default: torch_images.averaged(aten.avg_pool2d, 2),
            aten.avg_pool3d.default: torch_images.averaged(aten.avg_pool3d, 3),
            aten.upsample_nearest2d.vec: torch_images.unless(
                torch_images.is_repetition, resized[aten.upsample_nearest2d.vec]
            ),
            aten.upsample_bilinear2d.vec: torch_images.unless(
                torch_images.is_by_sizes, resized[aten.upsample_bilinear2d.vec]
            ),
        }
    )
    return table


def _add(x: Any, y: Any, *, alpha: float = 1) -> Any:
    return _in_bytes(torch.ops.aten.add.Tensor)(x, y) if alpha == 1 else x + y * alpha


def _sub(x: Any, y: Any, *, alpha: float = 1) -> Any:
    return NotImplemented if alpha == 1 else x - y * alpha


def _ne(x: Tensor, y: Tensor) -> Any:
    """Compare for inequality. Only NaN differs from itself, which TVM assumes never to happen."""
    return x.isnan() if x is y and x.is_floating_point() else _in_bytes(torch.ops.aten.ne.Tensor)(x, y)


def _in_bytes(operator: Any) -> Callable[..., Any]:
    """Compute a combination of two conditions in bytes, since TVM cannot compile it."""

    def computed(x: Any, y: Any) -> Any:
        if any(getattr(value, "dtype", type(value)) not in (torch.bool, bool) for value in (x, y)):
            return NotImplemented
        result = operator(x.to(torch.uint8), y.to(torch.uint8) if isinstance(y, torch.Tensor) else int(y))
        return result if result.dtype == torch.bool else result != 0

    return computed


def _elu(x: Tensor, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Any:
    if scale == 1 and input_scale == 1:
        return NotImplemented
    return torch.where(x > 0, x, alpha * torch.expm1(x * input_scale)) * scale


def _integer_power(base: Any, exponent: Tensor) -> Any:
    dtype = torch.result_type(base, exponent)
    if dtype.is_floating_point:
        return NotImplemented
    return torch.pow(base if isinstance(base, int) else base.double(), exponent.double()).to(dtype)


def _div(x: Tensor, y: Any, *, rounding_mode: str | None) -> Any:
    """Give a divisor that is a number the type of the result."""
    if isinstance(y, torch.Tensor):
        return NotImplemented
    divisor = torch.full((), y, dtype=torch.result_type(x, y))
    return torch.div(x, divisor, rounding_mode=rounding_mode)


def _clamp(x: Tensor, low: float | None = None, high: float | None = None) -> Any:
    """Clamp integers on one side: TVM's other bound is infinite, which is no integer. A fractional bound promotes
    them.
    """
    bound = next(value for value in (low, high) if value is not None)
    dtype = torch.result_type(x, bound)
    if dtype != x.dtype:
        return torch.clamp(x.to(dtype), low, high)
    if x.is_floating_point() or (low is not None and high is not None):
        return NotImplemented
    tensor = torch.full((), bound, dtype=dtype)
    return torch.minimum(x, tensor) if low is None else torch.maximum(x, tensor)


def _arange(start: float, end: float, step: float = 1, *, dtype: Any = None, **_: Any) -> Any:
    """Count up and reverse: TVM overestimates the length of a descending range."""
    if not step < 0:
        return NotImplemented
    return (torch.arange(math.ceil((end - start) / step)) * step + start).to(dtype)


def _any(x: Tensor, axes: Any = None, keeps: bool = False) -> Any:
    if x.dtype != torch.bool:
        return torch.any(x != 0, axes, keeps)
    if axes is not None or not x.ndim:
        return NotImplemented
    return torch.any(x, list(range(x.ndim)), keeps)


def _min(x: Tensor, axis: int, keeps: bool = False) -> Any:
    values, places = torch.topk(x, 1, axis, largest=False)
    return (values, places) if keeps else (values.squeeze(axis), places.squeeze(axis))


def _in_single(operator: Any) -> Callable[..., Any]:
    """Compute sums of half precision in float32, as PyTorch does, and round once."""

    def computed(*args: Any, **kwargs: Any) -> Any:
        if (kwargs.get("dtype") or args[0].dtype) != torch.float16:
            return NotImplemented
        kwargs.pop("dtype", None)
        return operator(*(arg.float() if isinstance(arg, torch.Tensor) else arg for arg in args), **kwargs).half()

    return computed


def _addmm(x: Tensor, y: Tensor, z: Tensor, *, beta: float = 1, alpha: float = 1) -> Any:
    """Multiply in the operands' own type if that is not float32, which the frontend assumes."""
    if x.dtype == torch.float32:
        return NotImplemented
    product = torch.mm(y, z) * alpha if alpha != 1 else torch.mm(y, z)
    if beta == 0:
        return product.expand(torch.broadcast_shapes(x.shape, product.shape))
    return (x * beta if beta != 1 else x) + product


def _group_norm(x: Tensor, weight: Any, bias: Any, *sizes: Any) -> Any:
    if weight is not None and bias is not None:
        return NotImplemented
    channels = x.shape[1]
    weight = x.new_ones(channels) if weight is None else weight
    bias = x.new_zeros(channels) if bias is None else bias
    return torch.ops.aten.native_group_norm(x, weight, bias, *sizes)
