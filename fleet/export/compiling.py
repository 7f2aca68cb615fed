"""`fleet.compile`: compiles a model with the library's schedules, as a callable.

model = fleet.compile("model.onnx")       # with the records of your own library, for this machine
scores = model(image)
model.save("model.fleet")                 # as `fleet export` makes
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import finalize

from fleet.base.scratch import scratch_dir
from fleet.domain.scope import ScopeFilter
from fleet.errors import ConfigError
from fleet.export.service import Exported, ExportOptions, export
from fleet.export.targets import target_of
from fleet.models.from_python import model_file
from fleet.models.importing.shapes import Shapes
from fleet.runtime.manifest import Affinity, Manifest
from fleet.runtime.model import LoadedModel, load

if TYPE_CHECKING:
    from torch import Tensor

    from fleet.models.from_python import PythonModel


class CompiledModel:
    """A model compiled by `fleet.compile`. It is loaded at the first call; one for another machine can be saved."""

    def __init__(self, exported: Exported, stack: ExitStack) -> None:
        """Use `fleet.compile`."""
        self._exported = exported
        finalize(self, stack.close)

    def __repr__(self) -> str:
        return f"<CompiledModel {self.manifest.line}>"

    @property
    def manifest(self) -> Manifest:
        """Its inputs and outputs, requirements, and used records."""
        return self._exported.manifest

    @cached_property
    def loaded(self) -> LoadedModel:
        """The model, loaded in this process. Raises as `fleet.runtime.load`."""
        return load(self._exported.path)

    def __call__(self, *arrays: object, **by_name: object) -> Any:
        """Run the model on numpy arrays, by position or name. Raises as `fleet.runtime.LoadedModel`."""
        return self.loaded(*arrays, **by_name)

    def save(self, path: Path | str) -> None:
        """Write the model as one file, as `fleet export` does.

        Raises:
            ConfigError: it cannot be written there.
        """
        try:
            shutil.copyfile(self._exported.path, path)
        except OSError as error:
            raise ConfigError(f"cannot write {path}: {error.strerror or error}") from error


def compile(  # noqa: A001 - the name that users look for
    model: PythonModel,
    target: str | Mapping[str, object] = "host",
    *,
    example_inputs: Sequence[Tensor] = (),
    library: str | os.PathLike[str] | None = None,
    device_model: str | None = None,
    shapes: Shapes | Sequence[Shapes] = (),
    batch_size: int | None = None,
    threads: int | None = None,
    affinity: Affinity | str = Affinity.CORES,
) -> CompiledModel:
    """Compile a whole model with the best checked schedules that the library has for the target.

    Blocks while it compiles, in processes of its own; also where an event loop runs, as in notebooks.

    Args:
        model: a model file, a model of the package onnx, or a PyTorch module (of Keras 3 on the torch backend, too).
        target: a board ("rpi4-64"), "host", or a TVM target as JSON or dict.
        example_inputs: for a module, tensors of the shapes that it is compiled for.
        library: file or URL of the library; None: your own.
        device_model: take the records measured on this hardware, whatever their exact target.
        shapes: shape by input name, for inputs with unknown dimensions; several of them: the model takes each.
        batch_size: size of every input's open first dimension.
        threads: that it runs on; None: as many as the target has cores.
        affinity: where they run, see `fleet.runtime.Affinity`.

    Raises:
        ImportFailed: no model, or one with an operator that cannot be imported.
        InvalidRequest: a module without example inputs; a shape that does not fit the model.
        ConfigError: a target that cannot work, or no linker for it.
        BuildError: it does not compile or link.
    """
    stack = ExitStack()
    folder = stack.enter_context(scratch_dir("compile"))
    try:
        path = model_file(model, example_inputs, folder)
        options = ExportOptions(
            model=path,
            target=target_of(target if isinstance(target, str) else json.dumps(dict(target))),
            output=folder / f"{path.stem}.fleet",
            library=None if library is None else os.fspath(library),
            within=ScopeFilter(device_model=device_model),
            shapes=[shapes] if isinstance(shapes, Mapping) else shapes,
            input_batch_size=batch_size,
            threads=threads,
            affinity=Affinity.of(affinity),
        )
        with ThreadPoolExecutor(1) as executor:
            return CompiledModel(executor.submit(asyncio.run, export(options)).result(), stack)
    except BaseException:  # also if cancelled or interrupted; raised again
        stack.close()
        raise
