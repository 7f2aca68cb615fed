"""Runs exported models: `fleet.runtime.load("model.fleet")(x)`, on machines without a compiler.

    model = fleet.runtime.load("squeezenet.fleet")
    scores = model(image)                      # numpy in, numpy out
    scores = model(data_0=image)               # by the names of the ONNX model

It needs numpy, tvm_ffi and TVM's runtime libraries, nothing else of TVM and of this package's dependencies, so that
shipped programs stay small. `fleet export` makes the files; `fleet/runtime/c` has the same for programs in C.
"""

from __future__ import annotations

from fleet.runtime.manifest import Affinity, Manifest, TensorType
from fleet.runtime.model import LoadedModel, load

__all__ = ["Affinity", "LoadedModel", "Manifest", "TensorType", "load"]
