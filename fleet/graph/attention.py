"""Fuses attention into one tensor program, so that scores stay in the nearest cache.

Exporters write softmax(q k^T * scale + mask) v as single operators on heads, [batch, heads, tokens, width], or without
the axis of heads; PyTorch's own operator arrives as `relax.nn.attention` on [batch, tokens, heads, width]. The program
reads and writes tokens as projections do, [batch, tokens, heads * width], so no transpose is left around it. Heads
that were copied for several queries are read where they were.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from tvm import relax
from tvm.relax import Call, Expr

from fleet.graph.attention_program import ATTRIBUTE, LOWEST, Attention, attend, padded_to_vectors
from fleet.graph.constants import array_of, constant, dtype_of, operand, shape_of
from fleet.graph.rebuilding import Rebuild, Rule, op_name

_OPAQUE = 8
"""TVM's number for programs that are never fused (kOpaque): the program has a schedule as it is."""

_FEWEST_COLUMNS = 4
"""Numbers of a value's head in a vector: with fewer, the single operators are no slower."""

_LOW = -1e30
"""Added to a score, it absorbs it: so low a number may be added instead of chosen."""

_RANK = 4
"""Batch, heads, tokens, width."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scores:
    """softmax(query key * scale + bias), before the softmax."""

    query: Expr
    """[batch, heads, tokens, width], or without the axis of heads."""

    key: Expr
    """[batch, heads, width, seen]"""

    scale: float
    bias: Expr | None


def fuse_product(rebuild: Rebuild, call: Call) -> Expr | None:
    """Fuse the product of softmax(scores) and values."""
    softmax = rebuild.call_only_for(call.args[0], "relax.nn.softmax")
    shape = shape_of(rebuild.builder.normalize(call))
    if softmax is None or shape is None or int(softmax.attrs.axis) not in (-1, len(shape) - 1):
        return None
    scores = _scores(rebuild, softmax.args[0])
    if scores is None or not _are_heads(scores.query, scores.key, call.args[1], len(shape)):
        return None
    query = _by_token(rebuild, scores.query)
    key, shared = _once_by_token(rebuild, rebuild.emit(relax.op.permute_dims(scores.key, _swapped_last(len(shape)))))
    value, shared_values = _once_by_token(rebuild, call.args[1])
    if shared != shared_values:
        return None
    heads = shape[1] if len(shape) == _RANK else 1
    attention = Attention(heads=heads, shared_heads=shared, scale=scores.scale)
    found = _fused(rebuild, [query, key, value], scores.bias, attention)
    if found is None or len(shape) < _RANK:
        return found
    tokens = rebuild.emit(relax.op.reshape(rebuild.bind(found), [shape[0], shape[2], shape[1], shape[3]]))
    return relax.op.permute_dims(tokens, [0, 2, 1, 3])


def fuse_operator(rebuild: Rebuild, call: Call) -> Expr | None:
    """Fuse PyTorch's operator, with tensors of [batch, tokens, heads, width]."""
    shapes = [shape_of(arg) for arg in call.args]
    query, key, value = ((0, 0, 0, 0) if shape is None else shape for shape in shapes[:3])
    if None in shapes or call.attrs.window_size is not None:
        return None
    masked = None if call.attrs.causal_mask is None else str(call.attrs.causal_mask)
    attention = Attention(
        heads=query[2],
        shared_heads=key[2],
        scale=query[3] ** -0.5 if call.attrs.scale is None else float(call.attrs.scale),
        diagonal={None: None, "TopLeft": 0, "BottomRight": abs(key[1] - query[1])}[masked],
    )
    flat = [
        rebuild.emit(relax.op.reshape(arg, [shape[0], shape[1], shape[2] * shape[3]]))
        for arg, shape in zip(call.args[:3], (query, key, value), strict=True)
    ]
    found = _fused(rebuild, flat, call.args[3] if len(shapes) > len(flat) else None, attention)
    return None if found is None else relax.op.reshape(rebuild.bind(found), [*query[:3], value[3]])


def _fused(rebuild: Rebuild, tokens: list[Expr], bias: Expr | None, attention: Attention) -> Expr | None:
    """Return the program's call on query, key and value by token; None if it does not support them."""
    query, key, value = ([int(size) for size in each.ty.shape.values] for each in tokens)
    if any(dtype_of(each) != "float32" for each in tokens) or value[2] // attention.shared_heads % _FEWEST_COLUMNS:
        return None
    arguments = list(tokens)
    if bias is not None:
        full = (query[0], attention.heads, query[1], key[1])
        padded = _padded_bias(rebuild, bias, full)
        if padded is None:
            return None
        arguments.append(padded)
    return rebuild.builder.call_te(
        functools.partial(attend, attention=attention),
        *arguments,
        primfunc_name_hint="attention",
        primfunc_attrs={ATTRIBUTE: 1, "op_pattern": _OPAQUE},
    )


def _scores(rebuild: Rebuild, expr: Expr) -> _Scores | None:
    """Return the operands of scores that have no other reader."""
    for bias, rest in _with_bias(rebuild, expr):
        scaled = rebuild.call_only_for(rest, "relax.multiply")
        factor = None if scaled is None else array_of(rebuild, scaled.args[1])
        if scaled is not None and (factor is None or factor.size > 1):
            continue
        product = rebuild.call_only_for(rest if scaled is None else scaled.args[0], "relax.matmul")
        if product is not None:
            scale = 1.0 if factor is None else float(factor.reshape(()))
            return _Scores(query=product.args[0], key=product.args[1], scale=scale, bias=bias)
    return None


def _with_bias(rebuild: Rebuild, expr: Expr) -> list[tuple[Expr | None, Expr]]:
    """Return the ways to split scores into a bias and the rest: as a sum, or as a choice between the rest and a low
    number.
    """
    call = rebuild.call_only_for(expr, "relax.add", "relax.where")
    if call is None:
        return [(None, expr)]
    if op_name(call) == "relax.add":
        left, right = call.args
        return [(right, left), (left, right)]
    seen, scores, low = call.args
    number = array_of(rebuild, low)
    if number is None or number.dtype != np.float32 or number.size != 1 or float(number.reshape(())) > _LOW:
        return []
    known = array_of(rebuild, seen)
    if known is None:
        return [(rebuild.emit(relax.op.where(seen, operand(np.zeros_like(number), seen), low)), scores)]
    return [(constant(np.where(known, np.float32(0), number.reshape(()))), scores)]


def _are_heads(query: Expr, key: Expr, value: Expr, rank: int) -> bool:
    """Tell whether these are three stacks of equally many matrices, without broadcasting."""
    shapes = [shape_of(each) for each in (query, key, value)]
    known = [shape for shape in shapes if shape is not None and len(shape) == rank]
    return rank in (_RANK - 1, _RANK) and len(known) == len(shapes) and len({shape[:-2] for shape in known}) == 1


def _by_token(rebuild: Rebuild, heads: Expr) -> Expr:
    """Return [batch, heads, tokens, width] as [batch, tokens, heads * width]."""
    shape = shape_of(heads) or ()
    if len(shape) < _RANK:
        return heads
    tokens = rebuild.emit(relax.op.permute_dims(heads, [0, 2, 1, 3]))
    return rebuild.emit(relax.op.reshape(tokens, [shape[0], shape[2], shape[1] * shape[3]]))


def _once_by_token(rebuild: Rebuild, heads: Expr) -> tuple[Expr, int]:
    """Return keys or values by token without repeated heads, and the number of heads."""
    shape = shape_of(heads) or ()
    if len(shape) < _RANK:
        return heads, 1
    copied = rebuild.call_of(heads, "relax.reshape")
    repeated = None if copied is None else rebuild.call_of(copied.args[0], "relax.broadcast_to")
    single = None if repeated is None else shape_of(repeated.args[0])
    if repeated is not None and single is not None:
        batch, shared, *_ = single
        if single == (batch, shared, 1, *shape[2:]) and shape[0] == batch and shape[1] % shared == 0:
            once = rebuild.emit(relax.op.reshape(repeated.args[0], [batch, shared, *shape[2:]]))
            return _by_token(rebuild, once), shared
    return _by_token(rebuild, heads), shape[1]


def _swapped_last(rank: int) -> list[int]:
    return [*range(rank - 2), rank - 1, rank - 2]


def _padded_bias(rebuild: Rebuild, bias: Expr, full: tuple[int, ...]) -> Expr | None:
    """Return a bias with four axes and whole vectors of keys; None if it does not fit the scores."""
    shape = shape_of(bias)
    if shape is None or len(shape) > _RANK or dtype_of(bias) != "float32":
        return None
    if len(shape) < _RANK and full[1] == 1:  # heads may be missing
        shape = (*shape[:-2], 1, *shape[-2:])
    shape = (1,) * (_RANK - len(shape)) + shape
    if any(size not in (1, whole) for size, whole in zip(shape, full, strict=True)):
        return None
    aligned = rebuild.emit(relax.op.reshape(bias, shape))
    added = padded_to_vectors(shape[3]) - shape[3]
    if shape[3] == 1 or not added:
        return aligned
    array = array_of(rebuild, aligned)
    if array is not None:
        return constant(np.pad(array, [(0, 0)] * 3 + [(0, added)], constant_values=LOWEST))
    return rebuild.emit(relax.op.nn.pad(aligned, [0] * 7 + [added], "constant", LOWEST))


ATTENTION: dict[str, Rule] = {
    "relax.matmul": fuse_product,
    "relax.nn.attention": fuse_operator,
    "relax.nn.attention_bias": fuse_operator,
}
