"""Profiles a model in ONNX Runtime: its time by operator.

Its profile is a JSON list of Chrome trace events. Those of category "Node" with a name that ends in "_kernel_time" are
runs of a node of its optimized graph, `dur` in microseconds: see "Profiling Tools" of onnxruntime.ai/docs/performance.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from fleet.base.scratch import scratch_dir
from fleet.models.model import Model, ModelFormat

logger = logging.getLogger(__name__)

_ERRORS_ONLY = 3
_WARM_UPS = 2
_KERNEL = "_kernel_time"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceNode:
    """One node of ONNX Runtime's optimized graph."""

    name: str
    op_type: str
    """Operator as in ONNX, or ONNX Runtime's own: "FusedConv", "ReorderInput"."""

    median_sec: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceProfile:
    """Profile of a model in ONNX Runtime."""

    nodes: tuple[ReferenceNode, ...]
    median_sec: float
    """Median time of a run without the profiler."""

    threads: int


class _Event(TypedDict, total=False):
    """Fields of a trace event that are used here."""

    cat: str
    name: str
    dur: float
    args: Mapping[str, str]


def profile_reference(
    model: Model, inputs: Sequence[NDArray[np.generic]], *, threads: int, runs: int
) -> ReferenceProfile | None:
    """Time a model and its nodes in ONNX Runtime. None for other formats, and if it is missing or refuses the model.

    Args:
        inputs: one array per input of the model, in order.
        threads: cores that it may use.
        runs: runs without and with the profiler, each.
    """
    if model.format is not ModelFormat.ONNX or importlib.util.find_spec("onnxruntime") is None:
        return None
    feeds = dict(zip(model.input_names, inputs, strict=True))
    try:
        median_sec = statistics.median(_run(model, feeds, threads, runs, profile_prefix=None))
        with scratch_dir("ort") as folder:
            _run(model, feeds, threads, runs, profile_prefix=folder / "profile")
            (found,) = folder.glob("profile*")
            nodes = parse_nodes(json.loads(found.read_text()))
    except Exception as error:  # noqa: BLE001 - its errors share no other base class
        logger.warning("ONNX Runtime refuses the model", extra={"model": model.title, "reason": str(error)})
        return None
    return ReferenceProfile(nodes=nodes, median_sec=median_sec, threads=threads)


def parse_nodes(events: Sequence[_Event]) -> tuple[ReferenceNode, ...]:
    """Parse the nodes of a profile, in the order of their first run, without warm-up runs."""
    secs: dict[tuple[str, str], list[float]] = {}
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith(_KERNEL):
            key = event["name"].removesuffix(_KERNEL), event["args"].get("op_name", "")
            secs.setdefault(key, []).append(event["dur"] / 1e6)
    return tuple(
        ReferenceNode(name=name, op_type=op_type, median_sec=statistics.median(found[_WARM_UPS:] or found))
        for (name, op_type), found in secs.items()
    )


def _run(
    model: Model, feeds: Mapping[str, NDArray[np.generic]], threads: int, runs: int, *, profile_prefix: Path | None
) -> list[float]:
    """Return the time of each run [s] after the warm-up runs."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = _ERRORS_ONLY
    if profile_prefix is not None:
        options.enable_profiling = True
        options.profile_file_prefix = str(profile_prefix)
    session = onnxruntime.InferenceSession(model.onnx_bytes, options, providers=["CPUExecutionProvider"])
    secs = []
    for _ in range(_WARM_UPS + runs):
        started = time.perf_counter()
        session.run(None, dict(feeds))
        secs.append(time.perf_counter() - started)
    if profile_prefix is not None:
        session.end_profiling()
    return secs[_WARM_UPS:]
