"""Model files in: one value for all formats, and one way to Relax.

`load_model` reads a file without TVM; `import_model` gives it to the frontend of its format. Every format has its
module in `fleet.models.importing`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fleet.base.config import did_you_mean
from fleet.errors import ImportFailed, NotFound
from fleet.models.importing.keras_file import read_keras
from fleet.models.importing.onnx_file import import_onnx, read_onnx
from fleet.models.importing.program_file import PROGRAM_SUFFIX, import_program, read_program
from fleet.models.importing.shapes import Shapes
from fleet.models.importing.tflite_file import import_tflite, read_tflite
from fleet.models.importing.torch_file import import_torch, read_torch
from fleet.models.importing.transformers_model import PREFIX, check_folder, read_transformers
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
    """Return the path of a model that the `onnx` package carries: "squeezenet", "resnet50", "shufflenet", ...

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
    """Tell whether a name is one of a model, whether there is such a file or not. A single program is none."""
    return is_of_transformers(source) or Path(source).suffix in _READERS.keys() - {PROGRAM_SUFFIX}


def is_of_transformers(source: Path | str) -> bool:
    """Tell whether a name is "hf:FOLDER" or "hf:CONFIGCLASS"."""
    return str(source).startswith(PREFIX)


def check_exists(source: Path, *, takes_programs: bool = False) -> None:
    """Refuse other files than models at once, before anything is started for them.

    Args:
        takes_programs: a file with one program will do.

    Raises:
        ImportFailed: there is no such file, or its name is of no known type.
    """
    if source.suffix == PROGRAM_SUFFIX and not takes_programs:
        raise ImportFailed(f"{source} is one program, not a model: fleet tune and fleet build take it")
    if is_of_transformers(source):
        check_folder(source)
        return
    if source.suffix not in _READERS:
        raise ImportFailed(f"{source} is of no known type; known: {KNOWN_TYPES}")
    if not source.is_file():
        raise ImportFailed(f"{source} is a folder" if source.is_dir() else f"there is no model file {source}")


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
    if not is_of_transformers(path) and path.suffix not in _READERS:
        raise ImportFailed(f"{path} is of no known type; known: {KNOWN_TYPES}")
    reader = read_transformers if is_of_transformers(path) else _READERS[path.suffix]
    wanted = [shapes or {}] if shapes is None or isinstance(shapes, Mapping) else list(shapes) or [{}]
    return for_several_shapes(reader(path, wanted, batch_size, random_weights_seed))


def import_model(model: Model, *, unrolls: bool = False) -> IRModule:
    """Return a model as Relax functions, for its own shapes; for those of its others, give it these.

    Args:
        unrolls: unroll the steps of recurrent layers, for targets without a program for a whole layer: GPUs.

    Raises:
        ImportFailed: an operator that cannot be imported.
    """
    try:
        if model.format is ModelFormat.ONNX:
            return import_onnx(model, unrolls=unrolls)
        return _IMPORTERS[model.format](model)
    except ImportFailed as error:
        raise ImportFailed(f"{model.title}: {error}") from error


_READERS = {
    ".onnx": read_onnx,
    ".pt2": read_torch,
    ".keras": read_keras,
    ".tflite": read_tflite,
    PROGRAM_SUFFIX: read_program,
}
KNOWN_TYPES = ", ".join([*(f"*{suffix}" for suffix in _READERS), "hf:FOLDER", "hf:CONFIGCLASS"])
"""The types of files that can be read, in words."""

_IMPORTERS = {
    ModelFormat.TORCH: import_torch,
    ModelFormat.TFLITE: import_tflite,
    ModelFormat.PROGRAM: import_program,
}
