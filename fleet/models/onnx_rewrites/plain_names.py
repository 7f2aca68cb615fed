"""Renames the inputs of an ONNX model so that all names are identifiers.

TVM carries the names into the kernels that it generates. In LLVM's code any name will do; in OpenCL and CUDA sources,
"gpu_0/data_0" is a division.
"""

from __future__ import annotations

import re

from onnx import ModelProto

from fleet.models.onnx_rewrites.graph import all_nodes


def use_plain_names(proto: ModelProto) -> None:
    """Rename the inputs of a model with names that are not identifiers, in place."""
    taken = {name for node in all_nodes(proto.graph) for name in (*node.input, *node.output)}
    taken.update(value.name for value in (*proto.graph.input, *proto.graph.initializer))
    renamed: dict[str, str] = {}
    for value in proto.graph.input:
        if not value.name.isidentifier() or not value.name.isascii():
            plain = _free(value.name, taken)
            taken.add(plain)
            renamed[value.name] = plain
            value.name = plain
    for node in all_nodes(proto.graph) if renamed else ():
        for index, name in enumerate(node.input):
            node.input[index] = renamed.get(name, name)
    for output in proto.graph.output:
        output.name = renamed.get(output.name, output.name)


def _free(name: str, taken: set[str]) -> str:
    base = re.sub(r"[^A-Za-z0-9_]", "_", name)
    base = base if re.match(r"[A-Za-z]", base) else f"input_{base}"
    candidate, count = base, 1
    while candidate in taken:
        candidate, count = f"{base}_{count}", count + 1
    return candidate
