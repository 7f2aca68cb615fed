"""Reads TFLite models (*.tflite), and runs them for reference where LiteRT (the package ai-edge-litert) is installed.

A TFLite model has the shapes that it was converted for: the shapes between its operators are written in the file,
so no input can get another one. Only the first subgraph is the model; others are bodies of its loops and branches.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from cross.compile.library import last_lines
from fleet.base.digests import digest_of
from fleet.domain.measuring import TensorSpec
from fleet.errors import ImportFailed, InvalidRequest
from fleet.models.importing.complaint import complaint
from fleet.models.importing.importer import Frontend, Importer, Reference
from fleet.models.importing.packages import require
from fleet.models.importing.shapes import Shapes, close_shapes
from fleet.models.importing.value import Model, ModelFormat

if TYPE_CHECKING:
    from tvm.ir import IRModule

_FOR_WHAT = "a TFLite model"


def read_tflite(
    path: Path, shape_sets: Sequence[Shapes], batch_size: int | None, random_weights_seed: int | None
) -> list[Model]:
    """Read a TFLite file; see `fleet.models.model.load_model`. Every set of shapes must equal the file's."""
    if random_weights_seed is not None:
        raise InvalidRequest(f"{path}: weights of TFLite models are not replaced; leave --random-weights out")
    tflite = require("tflite", _FOR_WHAT)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ImportFailed(f"cannot read {path}: {error.strerror or error}") from error
    if not tflite.Model.ModelBufferHasIdentifier(content, 0):
        raise ImportFailed(f"{path} is no TFLite model: it lacks the mark TFL3")
    try:
        model = _read(path.stem, content)
    except Exception as error:  # flatbuffers follows damaged offsets anywhere
        raise ImportFailed(f"{path} is no TFLite model, or damaged: {last_lines(error)}") from error
    found = {name: spec.shape for name, spec in zip(model.input_names, model.inputs, strict=True)}
    for shapes in shape_sets:
        close_shapes(found, shapes, batch_size)
    return [model]


def import_tflite(model: Model, *, unrolls: bool = False) -> IRModule:
    """Return the model as Relax functions.

    Raises:
        ImportFailed: an operator that TVM cannot import.
    """
    tflite = require("tflite", _FOR_WHAT)
    from tvm.relax.frontend.tflite import from_tflite

    try:
        mod = from_tflite(tflite.Model.GetRootAs(model.content, 0))
    except Exception as error:  # TVM's frontends raise many classes
        raise ImportFailed(f"TVM cannot import the model: {complaint(error)}") from error
    return _with_names(mod, model.input_names)


def tflite_runner(
    model: Model, inputs: Sequence[NDArray[np.generic]], threads: int
) -> Callable[[], tuple[NDArray[np.generic], ...]]:
    """Return a function that runs the model in LiteRT and returns its outputs."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_content=model.content, num_threads=threads)
    interpreter.allocate_tensors()
    for given, array in zip(interpreter.get_input_details(), inputs, strict=True):
        interpreter.set_tensor(given["index"], array)
    places = [made["index"] for made in interpreter.get_output_details()]

    def run() -> tuple[NDArray[np.generic], ...]:
        interpreter.invoke()
        return tuple(interpreter.get_tensor(place) for place in places)

    return run


def _read(title: str, content: bytes) -> Model:
    import tflite

    graph = tflite.Model.GetRootAs(content, 0).Subgraphs(0)
    dtypes = {number: name.lower() for name, number in vars(tflite.TensorType).items() if isinstance(number, int)}
    given = [graph.Tensors(graph.Inputs(place)) for place in range(graph.InputsLength())]
    made = [graph.Tensors(graph.Outputs(place)) for place in range(graph.OutputsLength())]
    shapes = [tuple(tensor.Shape(axis) for axis in range(tensor.ShapeLength())) for tensor in given]
    return Model(
        title=title,
        format=ModelFormat.TFLITE,
        digest=digest_of(content),
        input_names=_plain([tensor.Name() for tensor in given], "input"),
        inputs=tuple(TensorSpec(shape, dtypes[tensor.Type()]) for shape, tensor in zip(shapes, given, strict=True)),
        output_names=_plain([tensor.Name() for tensor in made], "output"),
        stored=content,
    )


def _plain(names: Sequence[bytes | None], kind: str) -> tuple[str, ...]:
    """Return unique identifiers: "serving_default_x" for "serving_default_x:0".

    TVM carries the names into the kernels that it generates, and in OpenCL and CUDA sources other names are no names.
    """
    found: list[str] = []
    for index, name in enumerate(names):
        text = re.sub(r"\W", "_", re.sub(r":\d+$", "", (name or b"").decode(errors="replace")), flags=re.ASCII)
        is_usable = text.isidentifier() and text not in found
        found.append(text if is_usable else f"{kind}_{index}")
    return tuple(found)


def _with_names(mod: IRModule, names: Sequence[str]) -> IRModule:
    """Rename the parameters of `main`, and drop the frontend's own attributes."""
    from tvm import ir, relax

    main = mod["main"]
    params = [relax.Var(name, param.ty) for name, param in zip(names, main.params, strict=True)]
    body = main.bind_params(dict(zip(main.params, params, strict=True))).body
    named = relax.Function(params, body, main.ret_ty, is_pure=main.is_pure).with_attr("global_symbol", "main")
    return ir.IRModule({**mod.functions, mod.get_global_var("main"): named})


TFLITE = Importer(
    forms=("*.tflite",),
    suffix=".tflite",
    packages=("tflite",),
    read=read_tflite,
    frontend=Frontend(
        format=ModelFormat.TFLITE,
        to_relax=import_tflite,
        reference=Reference(engine="ai_edge_litert", prepare=tflite_runner),
    ),
)
