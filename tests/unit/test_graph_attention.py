"""Attention as exporters write it becomes one program, which reads and writes tokens as projections do."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pytest

from cross.targets.target import parse_target
from fleet.graph.attention_program import ATTRIBUTE
from fleet.graph.pipeline import lower
from fleet.graph.rebuilding import op_name
from tests.unit.graph_models import function_of, random_array, run

if TYPE_CHECKING:
    from collections.abc import Callable

    from tvm.ir import IRModule
    from tvm.relax import Expr

    from tests.unit.graph_models import Emit

pytestmark = pytest.mark.slow
TARGET = parse_target(json.dumps({"kind": "llvm", "num-cores": 2}))
TOKENS, SEEN, HEADS, WIDTH = 5, 7, 4, 8


def programs(mod: IRModule) -> Counter[str]:
    """Return how often main calls each program, without the numbers behind names."""
    values = [binding.value for block in mod["main"].body.blocks for binding in block.bindings]
    return Counter(v.args[0].name_hint.rstrip("0123456789") for v in values if op_name(v) == "relax.call_tir")


def heads_of(emit: Emit, tokens: Expr, heads: int, *order: int) -> Expr:
    from tvm import relax

    split = emit(relax.op.reshape(tokens, [1, -1, heads, WIDTH]))
    return emit(relax.op.permute_dims(split, order))


def repeated(emit: Emit, heads: Expr, times: int) -> Expr:
    """Return each head several times, as exporters of models with shared keys do."""
    from tvm import relax

    shared = HEADS // times
    single = emit(relax.op.reshape(heads, [1, shared, 1, -1, WIDTH]))
    return emit(
        relax.op.reshape(emit(relax.op.broadcast_to(single, [1, shared, times, SEEN, WIDTH])), [1, HEADS, -1, WIDTH])
    )


def attention_on(emit: Emit, query: Expr, key: Expr, value: Expr, masked: Callable[[Expr], Expr] | None) -> Expr:
    from tvm import relax

    scores = emit(relax.op.divide(emit(relax.op.matmul(query, key)), relax.const(np.float32(WIDTH**0.5))))
    scores = scores if masked is None else emit(masked(scores))
    mixed = emit(relax.op.matmul(emit(relax.op.nn.softmax(scores, axis=-1)), value))
    return emit(relax.op.reshape(emit(relax.op.permute_dims(mixed, [0, 2, 1, 3])), [1, -1, HEADS * WIDTH]))


@pytest.mark.parametrize("mask", [None, (TOKENS, SEEN)])
def test_attention_on_heads_is_one_program(mask: tuple[int, ...] | None) -> None:
    """No transpose is left, with or without a mask; the mask is padded in place, as the keys are."""
    shapes = [(1, TOKENS, HEADS * WIDTH), (1, SEEN, HEADS * WIDTH), (1, SEEN, HEADS * WIDTH)]

    def body(q: Expr, k: Expr, v: Expr, *rest: object) -> Expr:
        from tvm import relax

        *masks, emit = rest
        heads = [
            heads_of(emit, x, HEADS, *order) for x, order in ((q, (0, 2, 1, 3)), (k, (0, 2, 3, 1)), (v, (0, 2, 1, 3)))
        ]
        return attention_on(emit, *heads, (lambda scores: relax.op.add(scores, masks[0])) if masks else None)

    mod = function_of([*shapes, *([mask] if mask else [])], body)

    lowered = lower(mod, TARGET)

    assert {"attention"} == set(programs(lowered)) - {"pad", "reshape", "fused_reshape_pad"}
    check_same(mod, lowered, *shapes, *([mask] if mask else []))


@pytest.mark.parametrize("is_known", [True, False])
def test_a_choice_of_the_lowest_number_is_a_mask(is_known: bool) -> None:
    """GPT-2 replaces scores by the lowest number where a constant or another input decides so; that choice is a
    mask.
    """
    shapes = [(1, TOKENS, HEADS * WIDTH), (1, SEEN, HEADS * WIDTH), (1, SEEN, HEADS * WIDTH), (1, 1, TOKENS, SEEN)]

    def body(q: Expr, k: Expr, v: Expr, limits: Expr, emit: Emit) -> Expr:
        from tvm import relax

        heads = [
            heads_of(emit, x, HEADS, *order) for x, order in ((q, (0, 2, 1, 3)), (k, (0, 2, 3, 1)), (v, (0, 2, 1, 3)))
        ]
        below = relax.const(np.tri(TOKENS, SEEN, dtype=bool)[None, None])
        seen = below if is_known else emit(relax.op.greater(limits, relax.const(np.float32(0))))
        return attention_on(emit, *heads, lambda scores: relax.op.where(seen, scores, relax.const(np.float32(-3.4e38))))

    mod = function_of(shapes, body)

    lowered = lower(mod, TARGET)

    assert 1 == programs(lowered)["attention"]
    assert not any("softmax" in name for name in programs(lowered))
    check_same(mod, lowered, *shapes)


def test_shared_keys_are_not_copied() -> None:
    """Four heads of queries read two of keys, where they are."""
    shapes = [(1, TOKENS, HEADS * WIDTH), (1, SEEN, HEADS // 2 * WIDTH), (1, SEEN, HEADS // 2 * WIDTH)]

    def body(q: Expr, k: Expr, v: Expr, emit: Emit) -> Expr:
        from tvm import relax

        key, value = (repeated(emit, heads_of(emit, x, HEADS // 2, 0, 2, 1, 3), 2) for x in (k, v))
        key = emit(relax.op.permute_dims(key, [0, 1, 3, 2]))
        return attention_on(emit, heads_of(emit, q, HEADS, 0, 2, 1, 3), key, value, None)

    mod = function_of(shapes, body)

    lowered = lower(mod, TARGET)

    assert Counter(["attention"]) == programs(lowered)
    check_same(mod, lowered, *shapes)


@pytest.mark.parametrize("causal_mask", [None, "TopLeft"])
def test_operator_of_pytorch_is_one_program(causal_mask: str | None) -> None:
    """PyTorch's operator has inputs [batch, tokens, heads, width], and may have a causal mask."""
    shapes = [(2, SEEN, HEADS, WIDTH)] * 3

    def body(q: Expr, k: Expr, v: Expr, emit: Emit) -> Expr:
        from tvm import relax

        return relax.op.nn.attention(q, k, v, causal_mask=causal_mask)

    mod = function_of(shapes, body)

    lowered = lower(mod, TARGET)

    assert 1 == programs(lowered)["attention"]
    assert any(ATTRIBUTE in (function.attrs or {}) for function in lowered.functions.values())
    check_same(mod, lowered, *shapes)


def test_without_heads_there_is_one() -> None:
    """Three axes work as well: they are batches of single heads."""
    shapes = [(3, TOKENS, WIDTH), (3, WIDTH, SEEN), (3, SEEN, WIDTH)]

    def body(q: Expr, k: Expr, v: Expr, emit: Emit) -> Expr:
        from tvm import relax

        scores = emit(relax.op.matmul(q, k))
        return relax.op.matmul(emit(relax.op.nn.softmax(scores, axis=-1)), v)

    mod = function_of(shapes, body)

    lowered = lower(mod, TARGET)

    assert 1 == programs(lowered)["attention"]
    check_same(mod, lowered, *shapes)


def test_scores_that_are_read_elsewhere_are_kept() -> None:
    """A model that returns its attention weights needs them in memory."""
    shapes = [(1, TOKENS, WIDTH), (1, WIDTH, SEEN), (1, SEEN, WIDTH)]

    def body(q: Expr, k: Expr, v: Expr, emit: Emit) -> Expr:
        from tvm import relax

        weights = emit(relax.op.nn.softmax(emit(relax.op.matmul(q, k)), axis=-1))
        return relax.op.concat([emit(relax.op.matmul(weights, v)), weights], axis=2)

    lowered = lower(function_of(shapes, body), TARGET)

    assert not programs(lowered)["attention"]


def check_same(mod: IRModule, lowered: IRModule, *shapes: tuple[int, ...]) -> None:
    inputs = [random_array(*shape, seed=seed) for seed, shape in enumerate(shapes)]
    np.testing.assert_allclose(run(mod, *inputs), run(lowered, *inputs), rtol=1e-4, atol=1e-5)
