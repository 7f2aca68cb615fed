"""Recurrent models in the form that exporters write."""

from __future__ import annotations

from onnx import ModelProto

from fleet.testing.models.graph import GraphBuilder

_STEPS, _FEATURES, _HIDDEN, _CLASSES = 100, 64, 128, 32
_GATES = {"LSTM": 4, "GRU": 3}


def lstm() -> ModelProto:
    """Return a recogniser of 100 frames: two LSTMs of 128 columns and a class for each frame."""
    g = GraphBuilder("lstm")
    x = g.input("frames", (_STEPS, 1, _FEATURES))
    for features in (_FEATURES, _HIDDEN):
        x = _layer(g, "LSTM", x, features)
    return g.finish(g.linear(x, _HIDDEN, _CLASSES))


def gru() -> ModelProto:
    """Return a bidirectional GRU of 128 columns over 100 frames, as PyTorch exports it, with a class per frame."""
    g = GraphBuilder("gru")
    x = _layer(g, "GRU", g.input("frames", (_STEPS, 1, _FEATURES)), _FEATURES, directions=2)
    return g.finish(g.linear(x, 2 * _HIDDEN, _CLASSES))


def _layer(g: GraphBuilder, kind: str, x: str, features: int, *, directions: int = 1) -> str:
    """Add a layer on [steps, 1, features]; return its answers with concatenated directions."""
    rows = _GATES[kind] * _HIDDEN
    weights = (
        g.weight(directions, rows, features),
        g.weight(directions, rows, _HIDDEN),
        g.weight(directions, 2 * rows),
    )
    direction = "bidirectional" if directions == 2 else "forward"
    kept = {"linear_before_reset": 1} if kind == "GRU" else {}
    answers = g.node(kind, x, *weights, hidden_size=_HIDDEN, direction=direction, **kept)
    return g.reshape(g.transpose(answers, 0, 2, 1, 3), (_STEPS, 1, directions * _HIDDEN))
