"""The models to compare, the goal of each beside ONNX Runtime, and the source of its ONNX file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fleet.models.model import bundled_model, load_model
from fleet.testing.models import HELD_OUT, write

_SEED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Largest time as a multiple of ONNX Runtime's."""

    static: float
    """Without any trial."""

    short: float
    """Tuned for three minutes."""

    long: float
    """Tuned for twenty minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One model of the comparison."""

    name: str
    budget: Budget
    is_bundled: bool = False
    """The onnx package ships the graph; else it is made by `fleet.testing.models`."""

    is_int8: bool = False


_SMALL_CONVOLUTIONS = Budget(static=1.3, short=1.0, long=0.9)
_LARGE_CONVOLUTIONS = Budget(static=1.5, short=1.15, long=1.0)
_MIXED = Budget(static=1.5, short=1.1, long=1.0)
_TRANSFORMERS = Budget(static=1.5, short=1.0, long=0.9)
_RECURRENT = Budget(static=1.0, short=1.0, long=1.0)
_INT8 = Budget(static=2.0, short=1.3, long=1.0)

ENTRIES = (
    Entry(name="squeezenet", budget=_SMALL_CONVOLUTIONS, is_bundled=True),
    Entry(name="shufflenet", budget=_SMALL_CONVOLUTIONS, is_bundled=True),
    Entry(name="densenet121", budget=_SMALL_CONVOLUTIONS, is_bundled=True),
    Entry(name="inception_v1", budget=_SMALL_CONVOLUTIONS, is_bundled=True),
    Entry(name="resnet18", budget=_LARGE_CONVOLUTIONS),
    Entry(name="resnet50", budget=_LARGE_CONVOLUTIONS, is_bundled=True),
    Entry(name="vgg19", budget=_LARGE_CONVOLUTIONS, is_bundled=True),
    Entry(name="mobilenet_v2", budget=_MIXED),
    Entry(name="convnext", budget=_MIXED),
    Entry(name="unet", budget=_MIXED),
    Entry(name="bert", budget=_TRANSFORMERS),
    Entry(name="bert_base", budget=_TRANSFORMERS),
    Entry(name="vit", budget=_TRANSFORMERS),
    Entry(name="llama", budget=_TRANSFORMERS),
    Entry(name="lstm", budget=_RECURRENT),
    Entry(name="gru", budget=_RECURRENT),
    Entry(name="gpt2", budget=_TRANSFORMERS),
    Entry(name="resnet18_int8", budget=_INT8, is_int8=True),
    *(Entry(name=name, budget=_MIXED) for name in HELD_OUT),
)
QUICK = ("keyword_spotting", "llama")
"""Enough to try everything that the benchmark does, in half a minute."""


def find_entries(text: str) -> list[Entry]:
    """Return the models that a user named, separated by commas; "held_out" stands for all held-out models.

    Raises:
        KeyError: there is no such model.
    """
    by_name = {entry.name: entry for entry in ENTRIES}
    names = [found for name in text.split(",") for found in (HELD_OUT if name == "held_out" else (name.strip(),))]
    return [by_name[name] for name in dict.fromkeys(names)]


def write_entry(entry: Entry, folder: Path) -> Path:
    """Write a model with random weights as FOLDER/NAME.onnx and return that path."""
    if not entry.is_bundled:
        return write(entry.name, folder)
    path = folder / f"{entry.name}.onnx"
    path.write_bytes(load_model(bundled_model(entry.name), random_weights_seed=_SEED).onnx_bytes)
    return path
