"""External weight files of an ONNX model. The model names them, so the paths are untrusted and checked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from fleet.errors import ImportFailed

if TYPE_CHECKING:
    import onnx


def weight_files(path: Path) -> list[str]:
    """Return the sorted weight files of an ONNX file, relative to its folder, without reading them.

    Empty for a file that is not an ONNX model: its reader reports the error.

    Raises:
        ImportFailed: a path leaves the model's folder: it is absolute, or has ".." or a symbolic link.
    """
    import onnx
    from google.protobuf.message import DecodeError

    try:
        proto = onnx.load(str(path), load_external_data=False)
    except (DecodeError, OSError):
        return []
    tensors = [*_tensors_of(proto.graph), *_tensors_of_nodes(node for one in proto.functions for node in one.node)]
    locations = {entry.value for one in tensors for entry in one.external_data if entry.key == "location"}
    for location in sorted(locations):
        _check_inside(path, location)
    return sorted(locations)


def _check_inside(model: Path, location: str) -> None:
    parts = PurePosixPath(location).parts
    if not parts or PurePosixPath(location).is_absolute() or ".." in parts or "\0" in location:
        raise ImportFailed(f"{model} names {location!r} for its weights, which is not a file in the model's own folder")
    step = model.parent
    for part in parts:
        step /= part
        if step.is_symlink():
            raise ImportFailed(
                f"{model} names {location!r} for its weights, and {step} is a symbolic link; put the file itself there"
            )


def _tensors_of(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Yield the tensors of a graph and of its nested graphs."""
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    yield from _tensors_of_nodes(graph.node)


def _tensors_of_nodes(nodes: Iterator[onnx.NodeProto]) -> Iterator[onnx.TensorProto]:
    for node in nodes:
        for attribute in node.attribute:
            yield from (attribute.t, *attribute.tensors)
            for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
                yield from (sparse.values, sparse.indices)
            for graph in (attribute.g, *attribute.graphs):
                yield from _tensors_of(graph)
