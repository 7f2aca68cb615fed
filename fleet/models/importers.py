"""Importers in order, one value for each kind of model. An addition is one module and one line here."""

from __future__ import annotations

from pathlib import Path

from fleet.models.importing.importer import Frontend, Importer
from fleet.models.importing.keras_file import KERAS
from fleet.models.importing.onnx_file import ONNX
from fleet.models.importing.program_file import PROGRAM
from fleet.models.importing.tflite_file import TFLITE
from fleet.models.importing.torch_file import TORCH
from fleet.models.importing.transformers_model import TRANSFORMERS
from fleet.models.importing.value import ModelFormat
from fleet.models.importing.workloads_file import WORKLOADS

IMPORTERS: tuple[Importer, ...] = (ONNX, TORCH, KERAS, TFLITE, PROGRAM, WORKLOADS, TRANSFORMERS)

KNOWN_TYPES = ", ".join(form for importer in IMPORTERS for form in importer.forms)
"""The kinds of models that can be read, in words."""

_BY_PREFIX_FIRST = sorted(IMPORTERS, key=lambda importer: not importer.prefix)
_FRONTENDS: dict[ModelFormat, Frontend] = {importer.frontend.format: importer.frontend for importer in IMPORTERS}


def importer_of(source: Path | str) -> Importer | None:
    """Return the importer for a name, or None if it does not name a model."""
    return next((importer for importer in _BY_PREFIX_FIRST if importer.matches(source)), None)


def frontend_of(model_format: ModelFormat) -> Frontend:
    """Return the frontend of a format."""
    return _FRONTENDS[model_format]


def has_code(source: Path | str) -> bool:
    """Tell whether reading a model may run its author's code."""
    importer = importer_of(source)
    return importer is not None and importer.frontend.has_code


def title_of(source: Path) -> str:
    """Return a model's readable name."""
    importer = importer_of(source)
    return importer.title(source) if importer else source.stem
