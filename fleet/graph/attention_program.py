"""Attention as one tensor program: softmax(q k^T * scale + bias) v, for all heads, in the layout of projections.

The scores of one row of queries never reach memory if all stages run row by row (`fleet.spaces.attention`); that
schedule finds the stages by their names. Keys are turned, so that a vector holds neighbours along the sequence, and
padded to whole vectors; scores of the padding count as nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import te, tirx
from tvm.ir import Expr
from tvm.te import Tensor

ATTRIBUTE = "fleet.attention"
"""Attribute of the PrimFuncs of this module."""

KEYS, SCORES, MASKED, LARGEST, POWERS, TOTAL, INVERSE, MIXED, RESULT = (
    f"attention_{stage}"
    for stage in ("keys", "scores", "masked", "largest", "powers", "total", "inverse", "mixed", "result")
)

_PADDED_TO = 16
"""Numbers in the widest register of any processor, so that the program is the same for all."""

LOWEST = -3.4028234663852886e38
"""Lowest float32. Not minus infinity: a row with all keys masked would be NaN."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Parameters beside the tensors' shapes."""

    heads: int
    shared_heads: int
    """Number of heads of keys and values, a divisor of `heads`: each serves as many neighbouring heads of queries."""

    scale: float
    diagonal: int | None = None
    """Query i sees keys up to i + diagonal; None: all keys."""


def padded_to_vectors(seen: int) -> int:
    """Return the number of keys for which scores are computed."""
    return -(-seen // _PADDED_TO) * _PADDED_TO


def attend(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None = None, *, attention: Attention) -> Tensor:
    """Return the output tokens of attention, [batch, tokens, heads * width of values].

    Args:
        query: float32 [batch, tokens, heads * width].
        key: [batch, seen, shared heads * width].
        value: [batch, seen, shared heads * width of values].
        bias: added to the scaled scores, [batch, heads, tokens, padded(seen)] or with ones in place of any of them.
    """
    batch, tokens = (int(size) for size in query.shape[:2])
    seen = int(key.shape[1])
    heads, shared = attention.heads, attention.shared_heads
    width, value_width = int(query.shape[2]) // heads, int(value.shape[2]) // shared
    padded = padded_to_vectors(seen)
    each = heads // shared

    def turned(b: Expr, h: Expr, w: Expr, s: Expr) -> Expr:
        found = key[b, s, h * width + w]
        return found if padded == seen else tirx.if_then_else(s < seen, found, tirx.const(0.0, "float32"))

    def masked(b: Expr, h: Expr, t: Expr, s: Expr) -> Expr:
        score = scores[b, h, t, s] * tirx.const(attention.scale, "float32")
        if bias is not None:
            at = zip(bias.shape, (b, h, t, s), strict=True)
            score = score + bias[tuple(tirx.const(0, "int32") if int(size) == 1 else index for size, index in at)]
        if attention.diagonal is not None:
            score = tirx.Select(s <= t + attention.diagonal, score, tirx.const(LOWEST, "float32"))
        return score if padded == seen else tirx.Select(s < seen, score, tirx.const(LOWEST, "float32"))

    def power(b: Expr, h: Expr, t: Expr, s: Expr) -> Expr:
        found = tirx.exp(logits[b, h, t, s] - largest[b, h, t])
        # Masked again, for rows with all keys masked by the lowest number: there, the padding is no lower.
        return found if padded == seen else tirx.Select(s < seen, found, tirx.const(0.0, "float32"))

    w = te.reduce_axis((0, width), "w")
    of_largest, of_total = (te.reduce_axis((0, padded), name) for name in ("s_largest", "s_total"))
    s = te.reduce_axis((0, seen), "s")
    rows = (batch, heads, tokens)
    keys = te.compute((batch, shared, width, padded), turned, name=KEYS)
    scores = te.compute(
        (*rows, padded),
        lambda b, h, t, s: te.sum(query[b, t, h * width + w] * keys[b, h // each, w, s], axis=w),
        name=SCORES,
    )
    logits = te.compute((*rows, padded), masked, name=MASKED)
    largest = te.compute(rows, lambda b, h, t: te.max(logits[b, h, t, of_largest], axis=of_largest), name=LARGEST)
    powers = te.compute((*rows, padded), power, name=POWERS)
    total = te.compute(rows, lambda b, h, t: te.sum(powers[b, h, t, of_total], axis=of_total), name=TOTAL)
    inverse = te.compute(rows, lambda b, h, t: tirx.const(1.0, "float32") / total[b, h, t], name=INVERSE)
    mixed = te.compute(
        (batch, tokens, heads, value_width),
        lambda b, t, h, c: te.sum(powers[b, h, t, s] * value[b, s, h // each * value_width + c], axis=s),
        name=MIXED,
    )
    return te.compute(
        (batch, tokens, heads * value_width),
        lambda b, t, f: mixed[b, t, f // value_width, f % value_width] * inverse[b, f // value_width, t],
        name=RESULT,
    )
