"""Loads model files: one value for all formats, and one conversion to Relax.

`load_model` reads a file without TVM; `import_model` gives it to the frontend of its format. Every kind of models is
one of `fleet.models.importers`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fleet.base.config import did_you_mean
from fleet.errors import ImportFailed, NotFound
from fleet.models.importers import KNOWN_TYPES, frontend_of, importer_of
from fleet.models.importing.shapes import Shapes
from fleet.models.importing.value import Model, ModelFormat, for_several_shapes

if TYPE_CHECKING:
    from tvm.ir import IRModule

__all__ = [
    "KNOWN_TYPES",
    "Model",
    "ModelFormat",
    "bundled_model",
    "check_exists",
    "import_model",
    "is_model",
    "load_model",
]

_BUNDLED = "backend/test/data/light"


def bundled_model(name: str = "squeezenet") -> Path:
    """Return the path of a model inside the `onnx` package: "squeezenet", "resnet50", "shufflenet", ...

    Raises:
        NotFound: it carries no such model.
    """
    spec = importlib.util.find_spec("onnx")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    known = {
        path.stem.removeprefix("light_"): path
        for folder in folders
        for path in sorted((Path(folder) / _BUNDLED).glob("light_*.onnx"))
    }
    if name not in known:
        hint = did_you_mean(name, known) if known else "; the package onnx is not installed"
        raise NotFound(f"the onnx package carries no model {name!r}{hint}")
    return known[name]


def is_model(source: Path | str) -> bool:
    """Tell whether a name has the form of a model's, whether or not the file exists. A single program is not a
    model, nor is a file of workloads.
    """
    importer = importer_of(source)
    return importer is not None and not importer.refusal


def check_exists(source: Path, *, takes_programs: bool = False) -> None:
    """Refuse files that are not models, before any process is started.

    Args:
        takes_programs: accept a file with one program or with workloads.

    Raises:
        ImportFailed: the file is missing, or its type is unknown.
    """
    importer = importer_of(source)
    if importer is None:
        raise ImportFailed(f"{source} is of no known type; known: {KNOWN_TYPES}")
    if importer.refusal and not takes_programs:
        raise ImportFailed(f"{source} {importer.refusal}")
    importer.check(source)


def load_model(
    path: Path | str,
    *,
    shapes: Shapes | Sequence[Shapes] | None = None,
    batch_size: int | None = None,
    random_weights_seed: int | None = None,
) -> Model:
    """Read a model file.

    Args:
        shapes: shape by input name, for inputs with open dimensions. Dimensions of one name have one size. Several of
            them: the model is for all, see `Model.others`.
        batch_size: size of every open first dimension.
        random_weights_seed: replace the weights by random ones; None keeps them.

    Raises:
        ImportFailed: there is no such file, it is not a model, or a dimension of an input stays open.
        InvalidRequest: a shape is for an input that does not exist, or does not fit it; no first dimension is open.
    """
    path = Path(path)
    importer = importer_of(path)
    if importer is None:
        raise ImportFailed(f"{path} is of no known type; known: {KNOWN_TYPES}")
    wanted = [shapes or {}] if shapes is None or isinstance(shapes, Mapping) else list(shapes) or [{}]
    return for_several_shapes(importer.read(path, wanted, batch_size, random_weights_seed))


def import_model(model: Model, *, unrolls: bool = False) -> IRModule:
    """Return a model as Relax functions, for its own shapes. For its other shapes, pass one of `others`.

    Args:
        unrolls: unroll the steps of recurrent layers, for targets without a program for a whole layer: GPUs.

    Raises:
        ImportFailed: an operator that cannot be imported.
    """
    try:
        return frontend_of(model.format).to_relax(model, unrolls=unrolls)
    except ImportFailed as error:
        raise ImportFailed(f"{model.title}: {error}") from error
