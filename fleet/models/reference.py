"""Reference outputs of a model from the usual engine of its format. `fleet.models.engine_turns` times the engine."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fleet.models.importing.tflite_file import tflite_runner
from fleet.models.importing.torch_file import torch_runner
from fleet.models.importing.value import Model, ModelFormat

logger = logging.getLogger(__name__)

_ERRORS_ONLY = 3
_Outputs: TypeAlias = "tuple[NDArray[np.generic], ...]"
_Runner: TypeAlias = "Callable[[], _Outputs]"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceRun:
    """Outputs of a model in the engine of its format."""

    by: str
    """The engine: "onnxruntime", "torch", "ai_edge_litert"."""

    outputs: _Outputs


def reference_outputs(model: Model, inputs: Sequence[NDArray[np.generic]], *, threads: int = 1) -> ReferenceRun | None:
    """Run a model in its engine. Return None if the engine is not installed or refuses the model.

    Args:
        inputs: one array per input of the model, in order.
        threads: cores that it may use.
    """
    ready = engine_ready(model, inputs, threads=threads)
    return ReferenceRun(by=engine_of(model.format), outputs=ready[1]) if ready is not None else None


def engine_ready(
    model: Model, inputs: Sequence[NDArray[np.generic]], *, threads: int
) -> tuple[_Runner, _Outputs] | None:
    """Return a function that runs a model in its engine, and the outputs of its first run.

    Return None if the engine is not installed or refuses the model.
    """
    by, prepare = _ENGINES[model.format]
    if importlib.util.find_spec(by) is None:
        return None
    try:
        run = prepare(model, inputs, threads)
        return run, run()
    except Exception as error:  # noqa: BLE001 - the engines' errors share no other base class
        logger.warning(
            "the reference refuses the model", extra={"engine": by, "model": model.title, "reason": str(error)}
        )
        return None


def engine_of(model_format: ModelFormat) -> str:
    """Return the name of a format's engine; empty if it has none."""
    return _ENGINES[model_format][0] if model_format in _ENGINES else ""


def is_refused(model: Model, inputs: Sequence[NDArray[np.generic]]) -> bool:
    """Tell whether the engine of a model's format does not run it on some inputs; False where it is not installed."""
    by, prepare = _ENGINES[model.format]
    if importlib.util.find_spec(by) is None:
        return False
    try:
        prepare(model, inputs, 1)()
    except Exception as error:  # noqa: BLE001 - the engines' errors share no other base class
        logger.debug("refused", extra={"engine": by, "model": model.title, "reason": str(error)})
        return True
    return False


def _onnx_runner(model: Model, inputs: Sequence[NDArray[np.generic]], threads: int) -> _Runner:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = _ERRORS_ONLY
    feeds = dict(zip(model.input_names, inputs, strict=True))
    session = onnxruntime.InferenceSession(model.content, options, providers=["CPUExecutionProvider"])
    return lambda: tuple(session.run(None, feeds))


_ENGINES: dict[ModelFormat, tuple[str, Callable[[Model, Sequence[NDArray[np.generic]], int], _Runner]]] = {
    ModelFormat.ONNX: ("onnxruntime", _onnx_runner),
    ModelFormat.TORCH: ("torch", torch_runner),
    ModelFormat.TFLITE: ("ai_edge_litert", tflite_runner),
}
"""By format: the package that runs it, and the function that prepares a run on some arrays with some threads."""
