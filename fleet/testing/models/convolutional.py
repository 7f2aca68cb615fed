"""Convolution networks in the shapes of their papers, batch normalisation folded where exporters fold it."""

from __future__ import annotations

from onnx import ModelProto

from fleet.testing.models.graph import GraphBuilder

_IMAGE = (1, 3, 224, 224)


def resnet18() -> ModelProto:
    """ResNet-18: He et al., Deep Residual Learning for Image Recognition, table 1."""
    g = GraphBuilder("resnet18")
    x = g.relu(g.conv(g.input("image", _IMAGE), 3, 64, 7, stride=2))
    x = g.max_pool(x, 3, stride=2, padding=1)
    channels = 64
    for stage, filters in enumerate((64, 128, 256, 512)):
        for block in range(2):
            stride = 2 if stage and not block else 1
            x, channels = _residual(g, x, channels, filters, stride), filters
    return g.finish(g.classifier(x, 512))


def _residual(g: GraphBuilder, x: str, channels: int, filters: int, stride: int) -> str:
    inner = g.conv(g.relu(g.conv(x, channels, filters, 3, stride=stride)), filters, filters, 3)
    skipped = x if stride == 1 and channels == filters else g.conv(x, channels, filters, 1, stride=stride)
    return g.relu(g.add(inner, skipped))


def mobilenet_v2() -> ModelProto:
    """MobileNetV2: Sandler et al., Inverted Residuals and Linear Bottlenecks, table 2."""
    g = GraphBuilder("mobilenet_v2")
    x = g.relu6(g.conv(g.input("image", _IMAGE), 3, 32, 3, stride=2))
    channels = 32
    rows = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
    for expansion, filters, repeats, first_stride in rows:
        for repeat in range(repeats):
            stride = 1 if repeat else first_stride
            x, channels = _inverted(g, x, channels, filters, expansion, stride), filters
    return g.finish(g.classifier(g.relu6(g.conv(x, channels, 1280, 1)), 1280))


def _inverted(g: GraphBuilder, x: str, channels: int, filters: int, expansion: int, stride: int) -> str:
    wide = channels * expansion
    inner = g.relu6(g.conv(x, channels, wide, 1)) if expansion > 1 else x
    inner = g.relu6(g.conv(inner, wide, wide, 3, stride=stride, groups=wide))
    made = g.conv(inner, wide, filters, 1)
    return g.add(x, made) if stride == 1 and channels == filters else made


def convnext() -> ModelProto:
    """A small ConvNeXt: Liu et al., A ConvNet for the 2020s; depths 2, 2, 6, 2, widths 40 to 320."""
    g = GraphBuilder("convnext")
    widths, depths = (40, 80, 160, 320), (2, 2, 6, 2)
    x = g.conv(g.input("image", _IMAGE), 3, widths[0], 4, stride=4, padding=0)
    x = _channels_first(g, g.layer_norm(_channels_last(g, x), widths[0]))
    for stage, (width, depth) in enumerate(zip(widths, depths, strict=True)):
        if stage:
            before = widths[stage - 1]
            x = _channels_first(g, g.layer_norm(_channels_last(g, x), before))
            x = g.conv(x, before, width, 2, stride=2, padding=0)
        for _ in range(depth):
            x = g.add(x, _convnext_block(g, x, width))
    pooled = g.node("Flatten", g.node("GlobalAveragePool", x), axis=1)
    return g.finish(g.gemm(g.layer_norm(pooled, widths[-1]), widths[-1], 1000))


def _convnext_block(g: GraphBuilder, x: str, width: int) -> str:
    inner = g.layer_norm(_channels_last(g, g.conv(x, width, width, 7, groups=width)), width)
    inner = g.linear(g.gelu(g.linear(inner, width, 4 * width)), 4 * width, width)
    return _channels_first(g, g.node("Mul", inner, g.weight(width)))


def _channels_last(g: GraphBuilder, x: str) -> str:
    return g.transpose(x, 0, 2, 3, 1)


def _channels_first(g: GraphBuilder, x: str) -> str:
    return g.transpose(x, 0, 3, 1, 2)


def unet() -> ModelProto:
    """A U-Net of 16 to 128 channels on 128 x 128 pixels: Ronneberger et al., with batch normalisation left as it is."""
    g = GraphBuilder("unet")
    x, channels, skipped = g.input("image", (1, 3, 128, 128)), 3, []
    for width in (16, 32, 64):
        x = _double(g, x, channels, width)
        skipped.append((x, width))
        x, channels = g.max_pool(x, 2, stride=2), width
    x, channels = _double(g, x, channels, 128), 128
    for left, width in reversed(skipped):
        weights = g.weight(channels, width, 2, 2), g.weight(width)
        x = g.node("ConvTranspose", x, *weights, kernel_shape=[2, 2], strides=[2, 2])
        x, channels = _double(g, g.node("Concat", left, x, axis=1), 2 * width, width), width
    return g.finish(g.conv(x, channels, 4, 1))


def _double(g: GraphBuilder, x: str, channels: int, width: int) -> str:
    first = g.relu(g.batch_norm(g.conv(x, channels, width, 3), width))
    return g.relu(g.batch_norm(g.conv(first, width, width, 3), width))
