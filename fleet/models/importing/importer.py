"""`Importer`: describes one kind of model files or names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

from fleet.errors import ImportFailed
from fleet.models.importing.shapes import Shapes
from fleet.models.importing.value import Model, ModelFormat

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from tvm.ir import IRModule

    Arrays: TypeAlias = "Sequence[NDArray[np.generic]]"
    Run: TypeAlias = "Callable[[], tuple[NDArray[np.generic], ...]]"


class ToRelax(Protocol):
    """Returns a model as Relax functions. For GPUs recurrent layers are unrolled, because they have no program for
    whole layers.

    Raises:
        ImportFailed: an operator that cannot be imported.
    """

    def __call__(self, model: Model, *, unrolls: bool) -> IRModule: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """The usual engine of a format, with which models are compared."""

    engine: str
    """The package: "onnxruntime", "torch", "ai_edge_litert"."""

    prepare: Callable[[Model, Arrays, int], Run]
    """Returns a function that runs a model on some arrays with some threads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frontend:
    """Conversion of one format to Relax."""

    format: ModelFormat
    to_relax: ToRelax
    reference: Reference | None = None
    has_code: bool = False
    """Files and models may contain code of their author. Every task with one is confined, and the queue refuses it."""


def check_file(path: Path) -> None:
    """Refuse a missing file.

    Raises:
        ImportFailed: there is no such file, or it is a folder.
    """
    if not path.is_file():
        raise ImportFailed(f"{path} is a folder" if path.is_dir() else f"there is no model file {path}")


def stem(path: Path) -> str:
    """Return a file's name without its suffix."""
    return path.stem


def only_file(path: Path) -> list[Path]:
    """Return the file itself."""
    return [path]


@dataclass(frozen=True, slots=True, kw_only=True)
class Importer:
    """One kind of models, recognised by the suffix of their files or the prefix of their names."""

    forms: tuple[str, ...]
    """The names for people: "*.onnx"."""

    suffix: str = ""
    prefix: str = ""
    """One of the two is set."""

    packages: tuple[str, ...] = ()
    """Packages of an extra that reading needs. `read` names the missing extra."""

    frontend: Frontend
    read: Callable[[Path, Sequence[Shapes], int | None, int | None], list[Model]]
    """Returns the model for each set of shapes, with a batch size and a seed of random weights: see `load_model`."""

    refusal: str = ""
    """Error message of commands that accept models only; empty if the file is a model."""

    check: Callable[[Path], None] = check_file
    """Raises ImportFailed for a name of nothing, quickly and without a package of the format."""

    title: Callable[[Path], str] = stem
    files: Callable[[Path], list[Path]] = only_file
    """Returns the files that reading needs, the model's own first."""

    def matches(self, source: Path | str) -> bool:
        """Tell whether a name is of this kind, whether or not the model exists."""
        return str(source).startswith(self.prefix) if self.prefix else Path(source).suffix == self.suffix
