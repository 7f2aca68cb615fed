"""Transformers of two layers and sequence 64, written out as exporters write them."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto

from fleet.testing.models.graph import GraphBuilder

_LAYERS = 2
_TOKENS = 64
_HEAD_WIDTH = 64
_MASKED = -3.4e38
"""Added to masked positions: the lowest float, as PyTorch writes."""


def bert() -> ModelProto:
    """BERT: Devlin et al.; 256 features a token, 4 heads, a vocabulary of 1,000."""
    return _bert("bert", 256)


def bert_base() -> ModelProto:
    """Two layers of BERT-base: 768 features, 12 heads."""
    return _bert("bert_base", 768)


def _bert(title: str, hidden: int) -> ModelProto:
    g = GraphBuilder(title)
    ids = g.input("ids", (1, _TOKENS), "int64")
    words = g.node("Gather", g.weight(1000, hidden), ids)
    x = g.layer_norm(g.add(words, g.weight(1, _TOKENS, hidden)), hidden)
    for _ in range(_LAYERS):
        x = g.layer_norm(g.add(x, _self_attention(g, x, hidden)), hidden)
        inner = g.gelu(g.linear(x, hidden, 4 * hidden))
        x = g.layer_norm(g.add(x, g.linear(inner, 4 * hidden, hidden)), hidden)
    return g.finish(x)


def _self_attention(g: GraphBuilder, x: str, hidden: int, *, mask: str | None = None) -> str:
    heads = hidden // _HEAD_WIDTH
    q, k, v = (
        g.heads(g.linear(x, hidden, hidden), heads, _HEAD_WIDTH, transposed=is_key) for is_key in (False, True, False)
    )
    return g.linear(g.attention(q, k, v, heads=heads, width=_HEAD_WIDTH, mask=mask), hidden, hidden)


def vit() -> ModelProto:
    """Two layers of ViT on 64 patches of 28 x 28 pixels and the class token: Dosovitskiy et al.; 384 features."""
    g, hidden = GraphBuilder("vit"), 384
    patches = g.conv(g.input("image", (1, 3, 224, 224)), 3, hidden, 28, stride=28, padding=0)
    tokens = g.transpose(g.reshape(patches, (1, hidden, _TOKENS)), 0, 2, 1)
    x = g.node("Concat", g.weight(1, 1, hidden), tokens, axis=1)
    x = g.add(x, g.weight(1, _TOKENS + 1, hidden))
    for _ in range(_LAYERS):
        x = g.add(x, _self_attention(g, g.layer_norm(x, hidden), hidden))
        inner = g.gelu(g.linear(g.layer_norm(x, hidden), hidden, 4 * hidden))
        x = g.add(x, g.linear(inner, 4 * hidden, hidden))
    first = g.node("Gather", g.layer_norm(x, hidden), g.constant(np.array(0, np.int64)), axis=1)
    return g.finish(g.gemm(first, hidden, 1000))


def gpt2() -> ModelProto:
    """Two layers of GPT-2: Radford et al.; 256 features, 4 heads, causal, GELU in its tanh approximation."""
    g, hidden = GraphBuilder("gpt2"), 256
    words = g.node("Gather", g.weight(1000, hidden), g.input("ids", (1, _TOKENS), "int64"))
    x, mask = g.add(words, g.weight(1, _TOKENS, hidden)), _causal_mask(g)
    for _ in range(_LAYERS):
        x = g.add(x, _self_attention(g, g.layer_norm(x, hidden), hidden, mask=mask))
        inner = g.gelu_tanh(g.linear(g.layer_norm(x, hidden), hidden, 4 * hidden))
        x = g.add(x, g.linear(inner, 4 * hidden, hidden))
    return g.finish(g.linear(g.layer_norm(x, hidden), hidden, 1000, bias=False))


def _causal_mask(g: GraphBuilder) -> str:
    """Return the mask that hides later tokens from each token."""
    return g.constant(np.triu(np.full((1, 1, _TOKENS, _TOKENS), _MASKED, np.float32), 1))


def llama() -> ModelProto:
    """Two layers of Llama: Touvron et al.; 4 heads that share 2 keys, rotary embedding, SwiGLU, causal."""
    g, hidden, heads, shared = GraphBuilder("llama"), 256, 4, 2
    x = g.node("Gather", g.weight(1000, hidden), g.input("ids", (1, _TOKENS), "int64"))
    turned = _rotary_tables(g)
    mask = _causal_mask(g)
    for _ in range(_LAYERS):
        normal = g.rms_norm(x, hidden)
        q = _turn(g, g.heads(g.linear(normal, hidden, hidden, bias=False), heads, _HEAD_WIDTH), turned)
        k, v = (
            g.heads(g.linear(normal, hidden, shared * _HEAD_WIDTH, bias=False), shared, _HEAD_WIDTH) for _ in range(2)
        )
        k, v = (_repeat(g, each, heads // shared) for each in (_turn(g, k, turned), v))
        mixed = g.attention(q, g.transpose(k, 0, 1, 3, 2), v, heads=heads, width=_HEAD_WIDTH, mask=mask)
        x = g.add(x, g.linear(mixed, hidden, hidden, bias=False))
        x = g.add(x, _gated(g, g.rms_norm(x, hidden), hidden, 688))
    return g.finish(g.linear(g.rms_norm(x, hidden), hidden, 1000, bias=False))


def _gated(g: GraphBuilder, x: str, hidden: int, wide: int) -> str:
    """SwiGLU: Shazeer, GLU Variants Improve Transformer."""
    gate = g.silu(g.linear(x, hidden, wide, bias=False))
    return g.linear(g.node("Mul", gate, g.linear(x, hidden, wide, bias=False)), wide, hidden, bias=False)


def _rotary_tables(g: GraphBuilder) -> tuple[str, str]:
    """Return cosines and sines [1, 1, tokens, width]: Su et al., RoFormer."""
    frequencies = 10_000.0 ** (-np.arange(0, _HEAD_WIDTH, 2) / _HEAD_WIDTH)
    angles = np.tile(np.outer(np.arange(_TOKENS), frequencies), 2)[None, None]
    return g.constant(np.cos(angles)), g.constant(np.sin(angles))


def _turn(g: GraphBuilder, x: str, tables: tuple[str, str]) -> str:
    """Turn pairs of features by the angle of their position; a pair is half a head apart."""
    half = _HEAD_WIDTH // 2
    low, high = (
        g.node("Slice", x, *(g.constant(np.array([bound], np.int64)) for bound in (start, start + half, 3)))
        for start in (0, half)
    )
    swapped = g.node("Concat", g.node("Neg", high), low, axis=-1)
    return g.add(g.node("Mul", x, tables[0]), g.node("Mul", swapped, tables[1]))


def _repeat(g: GraphBuilder, x: str, times: int) -> str:
    """Give each of the shared heads to `times` queries."""
    shared = 2
    shape = g.constant(np.array([1, shared, times, _TOKENS, _HEAD_WIDTH], np.int64))
    wide = g.node("Expand", g.node("Unsqueeze", x, g.constant(np.array([2], np.int64))), shape)
    return g.reshape(wide, (1, shared * times, _TOKENS, _HEAD_WIDTH))
