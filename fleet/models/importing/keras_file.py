"""Reads Keras 3 models (*.keras): with the torch backend a Keras model is a PyTorch module, and is exported as one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from cross.compile.library import last_lines
from fleet.errors import ImportFailed
from fleet.models.importing.importer import Importer
from fleet.models.importing.packages import require
from fleet.models.importing.shapes import OpenShape, Shapes, close_shapes
from fleet.models.importing.torch_file import TORCH, torch_models
from fleet.models.importing.value import Model

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.nn import Module


def read_keras(
    path: Path, shape_sets: Sequence[Shapes], batch_size: int | None, random_weights_seed: int | None
) -> list[Model]:
    """Read a Keras 3 file, for each set of shapes; see `fleet.models.model.load_model`."""
    if not path.is_file():
        raise ImportFailed(f"cannot read {path}: there is no such file")
    os.environ.setdefault("KERAS_BACKEND", "torch")
    require("torch", "a Keras model")
    keras = require("keras", "a Keras model")
    if keras.backend.backend() != "torch":
        raise ImportFailed(f"Keras runs on {keras.backend.backend()}; set KERAS_BACKEND=torch before it is imported")
    try:
        model = keras.saving.load_model(path, compile=False, safe_mode=True).eval()
    except Exception as error:  # Keras follows damaged files anywhere
        raise ImportFailed(f"{path} is no Keras 3 model: {last_lines(error)}") from error
    found: dict[str, OpenShape] = {
        str(given.name): tuple(
            "batch" if index == 0 and size is None else size or "" for index, size in enumerate(given.shape)
        )
        for given in model.inputs
    }
    dtypes = [str(given.dtype) for given in model.inputs]
    models: list[Model] = []
    for shapes in shape_sets:
        closed = close_shapes(found, shapes, batch_size)
        program = _export(model, list(closed.values()), dtypes, path)
        models += torch_models(path.stem, program, [{}], None, random_weights_seed)
    return [replace(model, input_names=tuple(found)) for model in models]


def _export(model: Module, shapes: Sequence[tuple[int, ...]], dtypes: Sequence[str], path: Path) -> ExportedProgram:
    import torch

    examples = [torch.zeros(shape, dtype=getattr(torch, dtype)) for shape, dtype in zip(shapes, dtypes, strict=True)]
    try:
        with torch.no_grad():
            return torch.export.export(model, (examples[0] if len(examples) == 1 else examples,))
    except Exception as error:  # torch.export raises many classes, also from the model's code
        raise ImportFailed(f"torch.export cannot export {path}: {last_lines(error)}") from error


KERAS = Importer(
    forms=("*.keras",), suffix=".keras", packages=("torch", "keras"), read=read_keras, frontend=TORCH.frontend
)
