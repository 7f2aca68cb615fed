"""Converters for PyTorch operators that Relax has, but that TVM 0.27's frontend lacks or converts with a fixed type."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.fx import Node

_REDUCTIONS = {"add": "add", "sum": "add", "multiply": "mul", "prod": "mul", "amax": "max", "amin": "min"}
"""Names of reductions in PyTorch and in Relax."""


def converters() -> dict[str, Callable[[Node, Any], Any]]:
    """Return converters of TVM's frontend by operator: functions of a node and the importer."""
    from tvm import relax

    def reduced(op: Callable[..., Any]) -> Callable[[Node, Any], Any]:
        return lambda node, importer: importer.block_builder.emit(op(*_normalized(importer.retrieve_args(node))))

    def product(node: Node, importer: Any) -> Any:
        """Multiply matrices in their own type instead of the frontend's float32."""
        return importer.block_builder.emit(relax.op.matmul(*importer.retrieve_args(node)))

    def scattered(node: Node, importer: Any) -> Any:
        data, axis, places, updates, *given = importer.retrieve_args(node)
        reduction = _REDUCTIONS.get(given[0] if given else node.kwargs.get("reduce", "add"))
        if reduction is None or not node.kwargs.get("include_self", True):
            raise NotImplementedError(f"{node.target} with {node.args[4:]} {node.kwargs}")
        return importer.block_builder.emit(relax.op.scatter_elements(data, places, updates, axis, reduction))

    return {
        "amax.default": reduced(relax.op.max),
        "amin.default": reduced(relax.op.min),
        "prod.dim_int": reduced(relax.op.prod),
        "mm.default": product,
        "bmm.default": product,
        "scatter_add.default": scattered,
        "scatter.reduce": scattered,
        "scatter_reduce.two": scattered,
    }


def _normalized(args: Sequence[Any]) -> tuple[Any, ...]:
    """Return data, axes and keepdims; no axes mean all axes."""
    defaults: tuple[Any, ...] = (None, False)
    data, axes, keeps = tuple(args) + defaults[len(args) - 1 :]
    return data, None if axes == [] else axes, keeps
