"""Runs a model in ONNX Runtime for reference outputs and a time to beat."""

from __future__ import annotations

import importlib.util
import logging
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fleet.workloads.model import Model

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

logger = logging.getLogger(__name__)

_ERRORS_ONLY = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class OnnxRun:
    """Outputs and time of a model in ONNX Runtime."""

    outputs: tuple[NDArray[np.generic], ...]
    median_sec: float | None
    """Median time of a run; None when it was not timed."""


def reference_outputs(
    model: Model, inputs: Sequence[NDArray[np.generic]], *, threads: int = 1, repeat: int = 0
) -> OnnxRun | None:
    """Run a model, and time `repeat` further runs of it. None where ONNX Runtime is not installed or refuses the model.

    Args:
        inputs: one array per input of the model, in order.
        threads: cores that it may use.
    """
    if importlib.util.find_spec("onnxruntime") is None:
        return None
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = _ERRORS_ONLY
    feeds = dict(zip(model.input_names, inputs, strict=True))
    try:
        session = onnxruntime.InferenceSession(model.onnx_bytes, options, providers=["CPUExecutionProvider"])
        outputs = tuple(session.run(None, feeds))
    except Exception as error:  # noqa: BLE001 - its errors share no other base class
        logger.warning("ONNX Runtime refuses the model", extra={"model": model.title, "reason": str(error)})
        return None
    times = [_time(session, feeds) for _ in range(repeat)]
    return OnnxRun(outputs=outputs, median_sec=statistics.median(times) if times else None)


def _time(session: InferenceSession, feeds: dict[str, NDArray[np.generic]]) -> float:
    started = time.perf_counter()
    session.run(None, feeds)
    return time.perf_counter() - started
