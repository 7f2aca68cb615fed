"""Rewrites of a PyTorch program before it is passed to TVM's frontend.

The program is decomposed to ATen's core operators first, and by `fleet.models.importing.torch_operators` for those that
TVM 0.27 gets wrong. Then parts that need the graph are rewritten: TVM keeps `cumsum` and `cumprod` of bool and short
integers in their type, where PyTorch counts in int64, and so the masks of GPT-2 and Llama do not compile; `cat` with an
empty vector, which PyTorch ignores and which caches of attention begin with, is refused; operands of different types
are computed in the first one's, so that half of an integer is nothing; indices that count from the end, as in `x[:,
[-1]]`, read memory before the tensor; `grid_sample` wants its grid's coordinates first; and the places of `max_pool`
are zeros, so that a program that reads them is refused.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import dtype
from torch.export import ExportedProgram
from torch.fx import Node

from fleet.errors import ImportFailed
from fleet.models.importing.torch_operators import decompositions

_EMPTY = (0,)


def simplified(program: ExportedProgram) -> ExportedProgram:
    """Return an equivalent, decomposed program with fewer operators that TVM lacks."""
    aten = torch.ops.aten
    program = program.run_decompositions(decompositions())
    counting = (aten.cumsum.default, aten.cumprod.default, aten.prod.default, aten.prod.dim_int)
    for node in list(program.graph.nodes):
        if node.op != "call_function":
            continue
        _refuse(node)
        if node.target in counting:
            _count_in_integers(node)
        elif node.target == aten.cat.default:
            _leave_out_empty(node)
            _promote(node, node.args[0])
        elif node.target == aten.where.self:
            _promote(node, node.args[1:])
        elif node.target in (aten.index.Tensor, aten.index_put.default):
            _count_from_the_front(node)
        elif node.target == aten.grid_sampler_2d.default:
            _put_coordinates_first(node)
        elif getattr(node.target, "overloadpacket", None) in _arithmetic():
            _promote(node, node.args[:2])
    _leave_out_none(program)
    return program


def _refuse(node: Node) -> None:
    """Refuse operators that TVM would convert wrongly."""
    aten = torch.ops.aten
    if node.target in (aten.max_pool2d_with_indices.default, aten.max_pool3d_with_indices.default):
        if any(user.args[1] == 1 and user.users for user in node.users):
            raise ImportFailed("the places of max_pool (return_indices=True) are not imported")
    elif node.target in (aten.avg_pool2d.default, aten.avg_pool3d.default):
        if len(node.args) > 6 and node.args[6] is not None:
            raise ImportFailed("avg_pool with both divisor_override and ceil_mode is not imported")
    elif node.target == aten._upsample_bilinear2d_aa.default:  # noqa: SLF001 - an operator of this name
        given, made = node.args[0].meta["val"].shape[2:], node.meta["val"].shape[2:]
        if any(size < before for size, before in zip(made, given, strict=True)):
            raise ImportFailed("interpolate to a smaller size with antialias=True is not imported")


@functools.cache
def _arithmetic() -> frozenset[object]:
    """Return the operators whose operands PyTorch promotes to one type."""
    two = "add sub mul div pow fmod remainder maximum minimum eq ne lt le gt ge"
    one = "exp expm1 log log1p log2 log10 sqrt rsqrt reciprocal sin cos tan sinh cosh tanh asin acos atan erf sigmoid"
    return frozenset(getattr(torch.ops.aten, name) for name in f"{two} {one}".split())


def _promote(node: Node, operands: Sequence[object]) -> None:
    """Cast operands to the type in which PyTorch computes."""
    values = [arg.meta.get("val") if isinstance(arg, torch.fx.Node) else arg for arg in operands]
    result = node.meta.get("val")
    if result is None or any(value is None for value in values):
        return
    compares = result.dtype == torch.bool and len(values) == 2
    dtype = torch.result_type(*values) if compares else result.dtype
    for arg, value in zip(operands, values, strict=True):
        if isinstance(arg, torch.fx.Node) and isinstance(value, torch.Tensor) and value.dtype != dtype:
            node.replace_input_with(arg, _cast(node, arg, dtype))


def _count_in_integers(node: Node) -> None:
    """Cast the counted values to the result's type."""
    given, result = node.args[0], node.meta["val"].dtype
    if given.meta["val"].dtype != result:
        node.replace_input_with(given, _cast(node, given, result))


def _count_from_the_front(node: Node) -> None:
    """Replace indices into an axis by their remainder modulo its size. Masks, which take several axes, are ignored."""
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


def _put_coordinates_first(node: Node) -> None:
    """Permute a grid from [N, H, W, 2] to [N, 2, H, W]."""
    grid = node.args[1]
    with node.graph.inserting_before(node):
        made = node.graph.call_function(torch.ops.aten.permute.default, (grid, [0, 3, 1, 2]))
    made.meta["val"] = grid.meta["val"].permute(0, 3, 1, 2)
    node.args = (node.args[0], made, *node.args[2:])


def _leave_out_none(program: ExportedProgram) -> None:
    """Drop outputs that are None, such as unrequested attention weights."""
    (output,) = program.graph.find_nodes(op="output")
    specs = program.graph_signature.output_specs
    kept = [at for at, given in enumerate(output.args[0]) if given is not None]
    output.args = (tuple(output.args[0][at] for at in kept),)
    specs[:] = [specs[at] for at in kept]


def _cast(before: Node, value: Node, to: dtype) -> Node:
    """Return a node that casts a value, inserted before the node that needs it."""
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
