"""One engine and one model in a process of their own: runs blocks of calls when asked, and is idle in between.

    python -m benchmarks.model_runner onnxruntime model.onnx --inputs inputs.npz --threads 2

Reads one JSON object per line, {"calls": 20, "warm": 3}, and answers each with {"ms": [...]}; {"save": "out.npz"}
stores the outputs. The first line that it prints by itself says that the model is loaded.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Arrays: TypeAlias = Mapping[str, NDArray[np.generic]]
Call: TypeAlias = Callable[[], list[NDArray[np.generic]]]

_ERRORS_ONLY = 3


def main() -> None:
    """Load the model, then answer until stdin ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engine", choices=_ENGINES)
    parser.add_argument("model", type=Path, help="an .onnx file, or for tvm the .so built of it")
    parser.add_argument("--inputs", type=Path, required=True, help=".npz, in the order of the model's inputs")
    parser.add_argument("--threads", type=int, required=True)
    options = parser.parse_args()
    with np.load(options.inputs) as stored:
        inputs = {name: stored[name] for name in stored.files}
    call = _ENGINES[options.engine](options.model, inputs, options.threads)
    print(json.dumps({"loaded": options.engine}), flush=True)
    for line in sys.stdin:
        print(json.dumps(_answer(call, json.loads(line))), flush=True)


def _answer(call: Call, request: Mapping[str, object]) -> dict[str, object]:
    if "save" in request:
        np.savez(str(request["save"]), *call())
        return {"saved": request["save"]}
    for _ in range(int(str(request["warm"]))):
        call()
    return {"ms": [_time_ms(call) for _ in range(int(str(request["calls"])))]}


def _time_ms(call: Call) -> float:
    started = time.perf_counter()
    call()
    return (time.perf_counter() - started) * 1e3


def _onnxruntime(model: Path, inputs: Arrays, threads: int) -> Call:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = _ERRORS_ONLY
    session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, inputs)


def _openvino(model: Path, inputs: Arrays, threads: int) -> Call:
    import openvino

    wishes = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"}
    request = openvino.Core().compile_model(str(model), "CPU", wishes).create_infer_request()
    given = list(inputs.values())
    return lambda: list(request.infer(given, share_inputs=True, share_outputs=True).values())


def _tvm(model: Path, inputs: Arrays, threads: int) -> Call:
    """Load ours. TVM reads its thread count from TVM_NUM_THREADS when it starts."""
    import tvm
    from tvm import relax

    del threads
    machine = relax.VirtualMachine(tvm.runtime.load_module(str(model)), tvm.cpu())
    given = [tvm.runtime.tensor(array) for array in inputs.values()]

    def call() -> list[NDArray[np.generic]]:
        result = machine["main"](*given)
        return [each.numpy() for each in ([result] if hasattr(result, "numpy") else result)]

    return call


_ENGINES: dict[str, Callable[[Path, Arrays, int], Call]] = {
    "onnxruntime": _onnxruntime,
    "openvino": _openvino,
    "tvm": _tvm,
}


if __name__ == "__main__":
    main()
