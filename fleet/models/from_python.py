"""Saves models that exist in Python to files, which every process can read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from fleet.errors import InvalidRequest

if TYPE_CHECKING:
    from onnx import ModelProto
    from torch import Tensor
    from torch.nn import Module

    PythonModel: TypeAlias = Path | str | ModelProto | Module


def model_file(model: PythonModel, example_inputs: Sequence[Tensor], folder: Path) -> Path:
    """Return the file of a model, saving it to a folder if it has none.

    Args:
        model: a model file, a model of the package onnx, or a PyTorch module (of Keras 3 on the torch backend, too).
        example_inputs: for a module, tensors of the shapes that it is wanted for.

    Raises:
        InvalidRequest: no model, a module without example inputs, or inputs for a model with shapes of its own.
    """
    if hasattr(example_inputs, "shape"):
        raise InvalidRequest("example_inputs is one tensor; give a tuple of the module's arguments: (x,)")
    if isinstance(model, str | Path) or hasattr(model, "SerializeToString"):
        if example_inputs:
            raise InvalidRequest("example_inputs are for PyTorch modules; this model has its own shapes: give shapes")
        return _of_onnx(model, folder)
    if not hasattr(model, "forward"):
        raise InvalidRequest(f"{type(model).__name__} is no model: give a file, an ONNX model or a PyTorch module")
    if not example_inputs:
        raise InvalidRequest("a module is wanted for the shapes of its inputs; give example_inputs")
    import torch

    path = folder / f"{type(model).__name__}.pt2"
    were_training = [part for part in model.modules() if part.training]
    try:
        with torch.no_grad():
            torch.export.save(torch.export.export(model.eval(), tuple(example_inputs)), path)
    finally:  # the caller may be training it
        for part in were_training:
            part.training = True
    return path


def _of_onnx(model: Path | str | ModelProto, folder: Path) -> Path:
    if isinstance(model, str | Path):
        return Path(model)
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path
