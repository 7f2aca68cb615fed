"""What is done to a PyTorch program before TVM's frontend gets it.

The program is decomposed to ATen's core operators first. Then what TVM 0.27 gets wrong is written differently:
TVM keeps `cumsum` of bool as bool, where PyTorch counts in int64, and so the masks of GPT-2 and Llama do not compile;
`cat` with an empty vector, which PyTorch ignores and which caches of attention begin with, is refused; operands of
different types are computed in the first one's, so that half of an integer is nothing; and indices that count from the
end, as in `x[:, [-1]]`, read what lies before the tensor.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import dtype
    from torch.export import ExportedProgram
    from torch.fx import Node

_EMPTY = (0,)


def simplified(program: ExportedProgram) -> ExportedProgram:
    """Return a program that computes the same, decomposed, with fewer operators that TVM does not know."""
    import torch

    aten = torch.ops.aten
    program = program.run_decompositions()
    for node in list(program.graph.nodes):
        if node.op != "call_function":
            continue
        if node.target == aten.cumsum.default:
            _count_in_integers(node)
        elif node.target == aten.cat.default:
            _leave_out_empty(node)
        elif node.target in (aten.index.Tensor, aten.index_put.default):
            _count_from_the_front(node)
        elif getattr(node.target, "overloadpacket", None) in _binary_operators():
            _promote(node)
    return program


@functools.cache
def _binary_operators() -> frozenset[object]:
    """Return the operators whose operands PyTorch brings to one type."""
    import torch

    names = ("add", "sub", "mul", "div", "pow", "maximum", "minimum", "eq", "ne", "lt", "le", "gt", "ge")
    return frozenset(getattr(torch.ops.aten, name) for name in names)


def _promote(node: Node) -> None:
    """Cast operands to the type in which PyTorch computes."""
    import torch

    values = [arg.meta.get("val") if isinstance(arg, torch.fx.Node) else arg for arg in node.args[:2]]
    result = node.meta.get("val")
    if result is None or any(value is None for value in values):
        return
    dtype = result.dtype if result.dtype != torch.bool else torch.result_type(*values)
    for arg, value in zip(node.args, values, strict=False):
        if isinstance(arg, torch.fx.Node) and isinstance(value, torch.Tensor) and value.dtype != dtype:
            node.replace_input_with(arg, _cast(node, arg, dtype))


def _count_in_integers(node: Node) -> None:
    """Give a cumulative sum of bool the type that its result has anyway."""
    import torch

    given = node.args[0]
    value = given.meta.get("val") if isinstance(given, torch.fx.Node) else None
    if value is not None and value.dtype == torch.bool:
        node.replace_input_with(given, _cast(node, given, torch.int64))


def _count_from_the_front(node: Node) -> None:
    """Have indices into an axis say the remainder by its size; masks are not looked at, they take several axes."""
    import torch

    data, indices = node.args[0], list(node.args[1])
    values = [index.meta.get("val") if isinstance(index, torch.fx.Node) else None for index in indices]
    if any(value is not None and value.dtype == torch.bool for value in values):
        return
    for axis, value in enumerate(values):
        size = data.meta["val"].shape[axis]
        if value is not None and isinstance(size, int):
            with node.graph.inserting_before(node):
                made = node.graph.call_function(torch.ops.aten.remainder.Scalar, (indices[axis], size))
            made.meta["val"] = value
            indices[axis] = made
    node.args = (data, indices, *node.args[2:])


def _cast(before: Node, value: Node, to: dtype) -> Node:
    """Return a node that casts a value, inserted before the node that needs it."""
    import torch

    with before.graph.inserting_before(before):
        made = before.graph.call_function(
            torch.ops.aten._to_copy.default,  # noqa: SLF001 - a core operator of this name
            (value,),
            {"dtype": to},
        )
    made.meta["val"] = value.meta["val"].to(to)
    return made


def _leave_out_empty(node: Node) -> None:
    parts = node.args[0]
    if not isinstance(parts, (list, tuple)):
        return
    kept = [part for part in parts if _shape(part) != _EMPTY]
    if 0 < len(kept) < len(parts):
        node.args = (kept, *node.args[1:])


def _shape(part: object) -> tuple[object, ...] | None:
    value = getattr(part, "meta", {}).get("val")
    return tuple(value.shape) if value is not None else None
