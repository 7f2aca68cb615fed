"""Models for benchmarks and tests, made by code: nothing is downloaded.

    python -m fleet.testing.models resnet18 bert --to models/

They have the graphs that exporters write and random weights that keep activations in range, so that outputs can be
compared and times mean something. `HELD_OUT` is never used to choose a schedule or a pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import onnx
from onnx import ModelProto

from fleet.base.config import did_you_mean
from fleet.errors import NotFound
from fleet.models.random_weights import randomize_weights
from fleet.testing.models import convolutional, held_out, recurrent, transformers
from fleet.testing.models.quantized import quantized

__all__ = ["GENERATED", "HELD_OUT", "SUFFIX", "build", "write"]

SUFFIX = ".onnx"
_SEED = 0
_INT8 = "resnet18_int8"

_FLOAT: Mapping[str, Callable[[], ModelProto]] = MappingProxyType(
    {
        "resnet18": convolutional.resnet18,
        "mobilenet_v2": convolutional.mobilenet_v2,
        "convnext": convolutional.convnext,
        "unet": convolutional.unet,
        "bert": transformers.bert,
        "bert_base": transformers.bert_base,
        "vit": transformers.vit,
        "llama": transformers.llama,
        "lstm": recurrent.lstm,
        "gru": recurrent.gru,
        "gpt2": transformers.gpt2,
        "efficientnet": held_out.efficientnet,
        "segformer": held_out.segformer,
        "keyword_spotting": held_out.keyword_spotting,
        "tabular": held_out.tabular,
        "detector": held_out.detector,
    }
)
HELD_OUT = ("efficientnet", "segformer", "keyword_spotting", "tabular", "detector")
GENERATED = (*(name for name in _FLOAT if name not in HELD_OUT), _INT8, *HELD_OUT)
"""Every model that `build` knows."""


def build(name: str) -> ModelProto:
    """Return a model with its weights; the same one every time.

    Raises:
        NotFound: there is no such model.
        ImportFailed: the int8 model, where ONNX Runtime is not installed.
    """
    if name == _INT8:
        return quantized(build("resnet18"), _INT8)
    if name not in _FLOAT:
        raise NotFound(f"no generated model {name!r}{did_you_mean(name, GENERATED)}")
    model = _FLOAT[name]()
    randomize_weights(model, _SEED)
    return model


def write(name: str, to: Path | str) -> Path:
    """Build a model, save it as TO/NAME.onnx, or as TO if that ends so, and return that path."""
    path = Path(to) if Path(to).suffix == SUFFIX else Path(to) / f"{name}{SUFFIX}"
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save_model(build(name), str(path))
    return path
