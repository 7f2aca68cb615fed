"""The conv2d benchmark's own figures: its layers are ResNet-18's, and each is found among the model's workloads."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from benchmarks.processes import ProcessFailed
from benchmarks.tune_conv2d import RESNET18, Layer, best_by_layer, check_torch, workload_names, write_model


def multiplications(layer: Layer) -> int:
    outputs = (layer.size // layer.stride) ** 2 * layer.filters
    return outputs * layer.channels * layer.kernel**2 * layer.count


def test_the_layers_match_those_of_the_network() -> None:
    """20 convolutions and 1.81 billion multiplications, the paper's count less the classifier's."""
    assert sum(layer.count for layer in RESNET18) == 20
    assert sum(map(multiplications, RESNET18)) == pytest.approx(1.81e9, rel=0.01)


@pytest.mark.parametrize("interpreter", [sys.executable, "no-such-python"])
def test_a_missing_peer_is_reported_before_tuning(interpreter: str) -> None:
    """An interpreter without PyTorch is reported at once."""
    if interpreter == sys.executable and importlib.util.find_spec("torch"):
        pytest.skip("this environment has PyTorch")

    with pytest.raises(ProcessFailed, match="torch-python"):
        check_torch(interpreter, is_gpu=False)


@pytest.mark.slow
def test_every_layer_is_found_among_the_workloads(tmp_path: Path) -> None:
    """Layers are matched by their shapes, since TVM's names carry no information."""
    names = workload_names(write_model(tmp_path / "layers.onnx", RESNET18), RESNET18)

    assert sorted(layer.name for layer in names.values()) == sorted(layer.name for layer in RESNET18)
    report = {"workloads": [{"name": name, "best_sec": 1e-6} for name in names] + [{"name": "relu", "best_sec": 2e-6}]}
    assert len(best_by_layer(report, names)) == len(RESNET18)
