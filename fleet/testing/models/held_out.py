"""Models that nothing here was developed on: they show whether gains elsewhere hold in general.

Look at their figures, never at their operators, when a schedule or a pass is chosen.
"""

from __future__ import annotations

import numpy as np
from onnx import ModelProto

from fleet.testing.models.graph import GraphBuilder


def efficientnet() -> ModelProto:
    """An EfficientNet of half the depth, with squeeze-and-excite and SiLU: Tan and Le, table 1; 192 x 192 pixels."""
    g = GraphBuilder("efficientnet")
    x = g.silu(g.conv(g.input("image", (1, 3, 192, 192)), 3, 32, 3, stride=2))
    channels = 32
    rows = (
        (1, 16, 3, 1, 1),
        (6, 24, 3, 2, 1),
        (6, 40, 5, 2, 2),
        (6, 80, 3, 2, 2),
        (6, 112, 5, 1, 1),
        (6, 192, 5, 2, 2),
    )
    for expansion, filters, kernel, first_stride, repeats in rows:
        for repeat in range(repeats):
            stride = 1 if repeat else first_stride
            made = _gated_residual(g, x, channels, channels * expansion, filters, kernel, stride)
            x = g.add(x, made) if repeat else made
            channels = filters
    return g.finish(g.classifier(g.silu(g.conv(x, channels, 640, 1)), 640))


def _gated_residual(g: GraphBuilder, x: str, channels: int, wide: int, filters: int, kernel: int, stride: int) -> str:
    inner = g.silu(g.conv(x, channels, wide, 1)) if wide > channels else x
    inner = g.silu(g.conv(inner, wide, wide, kernel, stride=stride, groups=wide))
    squeezed = g.silu(g.conv(g.node("GlobalAveragePool", inner), wide, max(channels // 4, 8), 1))
    gate = g.node("Sigmoid", g.conv(squeezed, max(channels // 4, 8), wide, 1))
    return g.conv(g.node("Mul", inner, gate), wide, filters, 1)


def segformer() -> ModelProto:
    """A small SegFormer: Xie et al.; two stages of one block, keys from a reduced image; 128 x 128, 8 classes."""
    g = GraphBuilder("segformer")
    x, channels, size = g.input("image", (1, 3, 128, 128)), 3, 128
    maps = []
    for width, kernel, stride, reduction in ((32, 7, 4, 4), (64, 3, 2, 2)):
        x = g.node("Identity", g.conv(x, channels, width, kernel, stride=stride))
        channels, size = width, size // stride
        tokens = g.layer_norm(_tokens(g, x, width), width)
        tokens = g.add(tokens, _reduced_attention(g, tokens, width, size, reduction))
        tokens = g.add(tokens, _mixed(g, g.layer_norm(tokens, width), width, size))
        x = _image(g, g.layer_norm(tokens, width), width, size)
        maps.append(_image(g, g.linear(_tokens(g, x, width), width, 64), 64, size))
    scales = g.constant(np.array([1, 1, 2, 2], np.float32))
    enlarged = g.node("Resize", maps[1], "", scales, mode="linear", coordinate_transformation_mode="half_pixel")
    fused = g.relu(g.batch_norm(g.conv(g.node("Concat", maps[0], enlarged, axis=1), 128, 64, 1), 64))
    return g.finish(g.conv(fused, 64, 8, 1))


def _tokens(g: GraphBuilder, x: str, width: int) -> str:
    return g.transpose(g.reshape(x, (1, width, -1)), 0, 2, 1)


def _image(g: GraphBuilder, tokens: str, width: int, size: int) -> str:
    return g.reshape(g.transpose(tokens, 0, 2, 1), (1, width, size, size))


def _reduced_attention(g: GraphBuilder, tokens: str, width: int, size: int, reduction: int) -> str:
    normal = g.layer_norm(tokens, width)
    small = g.conv(_image(g, normal, width, size), width, width, reduction, stride=reduction, padding=0)
    keys = g.layer_norm(_tokens(g, small, width), width)
    head = 32
    q, k, v = (
        g.heads(g.linear(given, width, width), width // head, head, transposed=is_key)
        for given, is_key in ((normal, False), (keys, True), (keys, False))
    )
    return g.linear(g.attention(q, k, v, heads=width // head, width=head), width, width)


def _mixed(g: GraphBuilder, tokens: str, width: int, size: int) -> str:
    """Add the feed-forward layer with a depthwise convolution in its middle."""
    wide = 4 * width
    image = _image(g, g.linear(tokens, width, wide), wide, size)
    return g.linear(g.gelu(_tokens(g, g.conv(image, wide, wide, 3, groups=wide), wide)), wide, width)


def keyword_spotting() -> ModelProto:
    """DS-CNN: Zhang et al., Hello Edge; one second of sound as 49 x 10 cepstra, 12 words."""
    g = GraphBuilder("keyword_spotting")
    x = g.relu(g.batch_norm(g.conv(g.input("cepstra", (1, 1, 49, 10)), 1, 64, (10, 4), stride=2), 64))
    for _ in range(4):
        x = g.relu(g.batch_norm(g.conv(x, 64, 64, 3, groups=64), 64))
        x = g.relu(g.batch_norm(g.conv(x, 64, 64, 1), 64))
    return g.finish(g.node("Softmax", g.classifier(x, 64, 12), axis=-1))


def tabular() -> ModelProto:
    """A residual perceptron on 32 rows of 100 numbers: Gorishniy et al., Revisiting Deep Learning for Tabular Data."""
    g, width = GraphBuilder("tabular"), 192
    x = g.gemm(g.input("rows", (32, 100)), 100, width)
    for _ in range(4):
        inner = g.relu(g.gemm(g.batch_norm(x, width), width, 2 * width))
        x = g.add(x, g.gemm(inner, 2 * width, width))
    return g.finish(g.gemm(g.relu(g.batch_norm(x, width)), width, 1))


def detector() -> ModelProto:
    """A small detector in the manner of YOLO: split stages, SiLU, pyramid pooling, two scales; 160 x 160 pixels."""
    g = GraphBuilder("detector")
    x = g.silu(g.conv(g.input("image", (1, 3, 160, 160)), 3, 16, 3, stride=2))
    maps, channels = [], 16
    for width in (32, 64, 128, 256):
        x = _split_stage(g, g.silu(g.conv(x, channels, width, 3, stride=2)), width)
        maps.append(x)
        channels = width
    pooled = [g.silu(g.conv(maps[3], 256, 128, 1))]
    for _ in range(3):
        pooled.append(g.max_pool(pooled[-1], 5, stride=1, padding=2))
    low = g.silu(g.conv(g.node("Concat", *pooled, axis=1), 512, 128, 1))
    scales = g.constant(np.array([1, 1, 2, 2], np.float32))
    enlarged = g.node("Resize", low, "", scales, mode="nearest", coordinate_transformation_mode="asymmetric")
    fused = g.silu(g.conv(g.node("Concat", enlarged, maps[2], axis=1), 256, 128, 3))
    return g.finish(g.conv(fused, 128, 24, 1), g.conv(low, 128, 24, 1))


def _split_stage(g: GraphBuilder, x: str, width: int) -> str:
    half = width // 2
    left = g.silu(g.conv(x, width, half, 1))
    right = g.silu(g.conv(x, width, half, 1))
    inner = g.silu(g.conv(g.silu(g.conv(left, half, half, 1)), half, half, 3))
    return g.silu(g.conv(g.node("Concat", g.add(left, inner), right, axis=1), width, width, 1))
