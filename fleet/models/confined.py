"""Confinement of build pool tasks that read untrusted models: access to the model's files only, no network.

PyTorch formats contain code: a .pt2 file has pickles, a .keras file may name functions, and each process loads the
result again. Every task with such a model is confined. The other formats are data for C parsers: only reading them is
confined.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

from cross.pool.confined import Confined
from fleet.base.config import cross_config_file
from fleet.confinement.process import AllowedFiles, missing_features
from fleet.models.importers import frontend_of, has_code, importer_of
from fleet.models.importing.value import Model

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


def reading(fn: Callable[P, T], path: Path | str) -> Callable[P, T]:
    """Return a function that reads a model's file, confined to that file and its weight files."""
    if has_code(path) and (lacking := missing_features()):
        logger.warning("a model that may run code is read without a jail", extra={"missing": lacking})
    return Confined(fn, AllowedFiles(readable=tuple(map(str, _files_of(path)))))


def having(fn: Callable[P, T], model: Model, *, writable: Path | str | None = None) -> Callable[P, T]:
    """Return a function that takes this model as an argument, confined if the model may contain code.

    Args:
        writable: output folder of the function.
    """
    if not frontend_of(model.format).has_code:
        return fn
    places = () if writable is None else (str(Path(writable).absolute()),)
    files = [str(one.stored) for one in model.variants if isinstance(one.stored, Path)]
    return Confined(fn, AllowedFiles(readable=(*_linker_places(), *files), writable=places))


def _files_of(path: Path | str) -> list[Path]:
    file, importer = Path(path), importer_of(path)
    return [file.absolute()] if importer is None else [one.absolute() for one in importer.files(file)]


def _linker_places() -> list[str]:
    """Return the folders that may contain a linker, and the configuration file that names one."""
    named = [value.split()[0] for name, value in os.environ.items() if name.startswith("FLEET_LINKER_") and value]
    places = [
        *os.environ.get("PATH", "").split(os.pathsep),
        str(cross_config_file()),
        *(str(Path(one).parent.parent) for one in named),
    ]
    return [place for place in places if place.startswith("/") and Path(place) not in (Path("/"), Path.home())]
