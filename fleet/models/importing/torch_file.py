"""Reads PyTorch programs: files that `torch.export.save` wrote, conventionally *.pt2.

A program is kept as that file. Open dimensions (`torch.export.Dim`) stay open in it and are closed in Relax; everything
else is as PyTorch itself would run it, which is therefore the reference.

Loading a .pt2 file may run code that its author put into it, as with any file of `torch.save`.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from cross.compile.library import last_lines
from fleet.base.digests import digest_of
from fleet.domain.measuring import TensorSpec
from fleet.errors import ImportFailed
from fleet.models.importing.complaint import complaint
from fleet.models.importing.importer import Frontend, Importer, Reference
from fleet.models.importing.packages import require
from fleet.models.importing.shapes import Dim, Shapes, close_shapes
from fleet.models.importing.value import Model, ModelFormat

if TYPE_CHECKING:
    from torch import Tensor
    from torch.export import ExportedProgram
    from tvm.ir import IRModule

_FOR_WHAT = "a PyTorch program"


def read_torch(
    path: Path, shape_sets: Sequence[Shapes], batch_size: int | None, random_weights_seed: int | None
) -> list[Model]:
    """Read a file of `torch.export.save`, for each set of shapes; see `fleet.models.model.load_model`."""
    require("torch", _FOR_WHAT)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ImportFailed(f"cannot read {path}: {error.strerror or error}") from error
    program = _load(content, str(path))
    return torch_models(path.stem, program, shape_sets, batch_size, random_weights_seed, content=content)


def torch_models(
    title: str,
    program: ExportedProgram,
    shape_sets: Sequence[Shapes],
    batch_size: int | None,
    random_weights_seed: int | None,
    *,
    content: bytes | None = None,
) -> list[Model]:
    """Return the model of an exported program, for each set of shapes.

    Args:
        content: the program as a file, where that exists already.

    Raises:
        ImportFailed, InvalidRequest: see `fleet.models.importing.shapes.close_shapes`.
    """
    if random_weights_seed is not None:
        _randomize(program, random_weights_seed)
    if content is None or random_weights_seed is not None:
        content = _saved(program)
    return [_model(title, program, shapes, batch_size, content) for shapes in shape_sets]


def import_torch(model: Model, *, unrolls: bool = False) -> IRModule:
    """Return the program as Relax functions, with the shapes that the model was given.

    Raises:
        ImportFailed: an operator that TVM cannot import.
    """
    require("torch", _FOR_WHAT)
    from tvm.relax.frontend.torch import from_exported_program

    from fleet.models.importing.torch_converters import converters
    from fleet.models.importing.torch_graph import simplified

    program = simplified(_load(model.content, model.title))
    try:
        mod = from_exported_program(
            program, unwrap_unit_return_tuple=True, run_ep_decomposition=False, custom_convert_map=converters()
        )
    except Exception as error:  # TVM's frontends raise many classes
        raise ImportFailed(f"TVM cannot import the model: {complaint(error)}") from error
    mod = _with_shapes(mod, model.inputs)
    _check_outputs(mod, program)
    return mod


def torch_runner(
    model: Model, inputs: Sequence[NDArray[np.generic]], threads: int
) -> Callable[[], tuple[NDArray[np.generic], ...]]:
    """Return a function that runs the program in PyTorch, without gradients, and returns its outputs."""
    import torch
    from torch.utils import _pytree as pytree

    program = _load(model.content, model.title)
    module = program.module()
    tensors = [torch.from_numpy(np.array(array)) for array in inputs]
    args, kwargs = pytree.tree_unflatten(tensors, program.call_spec.in_spec)
    torch.set_num_threads(threads)

    def run() -> tuple[NDArray[np.generic], ...]:
        with torch.inference_mode():
            outputs = pytree.tree_leaves(module(*args, **kwargs))
        return tuple(output.numpy() for output in outputs if output is not None)

    return run


def _model(title: str, program: ExportedProgram, shapes: Shapes, batch_size: int | None, content: bytes) -> Model:
    inputs = _inputs(program)
    closed = close_shapes({name: dims for name, (dims, _) in inputs.items()}, shapes, batch_size)
    return Model(
        title=title,
        format=ModelFormat.TORCH,
        digest=digest_of(content + repr(sorted(closed.items())).encode()),
        input_names=tuple(inputs),
        inputs=tuple(TensorSpec(closed[name], dtype) for name, (_, dtype) in inputs.items()),
        output_names=tuple(str(name) for name in program.graph_signature.user_outputs if name is not None),
        stored=content,
    )


def _saved(program: ExportedProgram) -> bytes:
    import torch

    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    return buffer.getvalue()


def _load(content: bytes, name: str) -> ExportedProgram:
    import torch

    try:
        return torch.export.load(io.BytesIO(content))
    except Exception as error:  # torch.export follows damaged files anywhere
        said = last_lines(error)
        raise ImportFailed(f"{name} is no program as torch.export.save writes it: {said}") from error


def _inputs(program: ExportedProgram) -> dict[str, tuple[tuple[Dim, ...], str]]:
    """Return dimensions and element type of each input."""
    wanted = list(program.graph_signature.user_inputs)
    values = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    found = {}
    for name in wanted:
        value = values.get(str(name))
        if value is None or not hasattr(value, "shape"):
            raise ImportFailed(f"input {name!r} is no tensor; export the model with tensors as its only inputs")
        dims = tuple(size if isinstance(size, int) else str(size) for size in value.shape)
        found[str(name)] = (dims, str(value.dtype).removeprefix("torch."))
    return found


def _with_shapes(mod: IRModule, inputs: Sequence[TensorSpec]) -> IRModule:
    """Make the open dimensions of a module static."""
    from tvm import relax, tirx

    shapes = [(param.ty.shape or (), spec.shape) for param, spec in zip(mod["main"].params, inputs, strict=True)]
    sizes = {
        dim: size for dims, shape in shapes for dim, size in zip(dims, shape, strict=True) if isinstance(dim, tirx.Var)
    }
    return relax.transform.BindSymbolicVars(sizes)(mod) if sizes else mod


def _check_outputs(mod: IRModule, program: ExportedProgram) -> None:
    """Refuse programs that TVM misread, detected by the types of their outputs."""
    from tvm import relax

    given = mod["main"].ret_ty
    fields = list(given.fields) if isinstance(given, relax.TupleType) else [given]
    wanted = [node.meta["val"] for node in program.graph.find_nodes(op="output")[0].args[0]]
    wanted = wanted[-len(fields) :]  # buffers that the program changes come first
    for at, (field, value) in enumerate(zip(fields, wanted, strict=True)):
        dtype, dims = str(value.dtype).removeprefix("torch."), tuple(value.shape)
        same = field.ndim == len(dims) and all(
            int(size) == dim
            for size, dim in zip(field.shape or (), dims, strict=False)
            if isinstance(dim, int) and hasattr(size, "value")
        )
        if not same or field.dtype != dtype:
            raise ImportFailed(f"TVM reads output {at} as {field}, and PyTorch as {dtype} of shape {list(dims)}")


def _randomize(program: ExportedProgram, seed: int) -> None:
    """Redraw the weights of products and convolutions, with a variance that preserves the scale of activations."""
    import torch

    rng = np.random.default_rng(seed)
    weights: dict[str, Tensor] = program.state_dict
    for name, weight in sorted(weights.items()):
        if weight.is_floating_point() and weight.ndim >= 2:
            fan_in = int(np.prod(weight.shape[1:]))
            drawn = rng.standard_normal(tuple(weight.shape)) / np.sqrt(max(1, fan_in))
            weights[name] = torch.nn.Parameter(torch.from_numpy(drawn).to(weight.dtype), requires_grad=False)


TORCH = Importer(
    forms=("*.pt2",),
    suffix=".pt2",
    packages=("torch",),
    read=read_torch,
    frontend=Frontend(
        format=ModelFormat.TORCH,
        to_relax=import_torch,
        reference=Reference(engine="torch", prepare=torch_runner),
        has_code=True,  # pickles
    ),
)
