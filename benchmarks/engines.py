"""Engines that run a model, each in its own process; ours is built and tuned by the commands of its users."""

from __future__ import annotations

import importlib.util
import os
import statistics
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from benchmarks.common import say
from benchmarks.processes import Process, ProcessFailed, python

_LOAD_TIMEOUT_SEC = 300.0
_BUILD_TIMEOUT_SEC = 600.0
_TUNE_TIMEOUT_SEC = 6 * 3600.0
_CALL_TIMEOUT_SEC = 120.0
_SLOW_MS = 2000.0
"""A program this slow is called once only: its time is known well enough."""

_WARM_CALLS = 3
_MOST_CALLS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A model in the form for one engine."""

    name: str
    """Its column: "onnxruntime", "openvino", "static", "tuned"."""

    engine: str
    """ "onnxruntime", "openvino" or "tvm"."""

    path: Path


def peers(model: Path) -> list[Program]:
    """Return the model for each of the other installed engines."""
    known = ("onnxruntime", "openvino")
    installed = [name for name in known if importlib.util.find_spec(name) is not None]
    for name in known:
        if name not in installed:
            say(f"{name} is not installed and left out: pip install 'tvm-fleet[compare-models]'")
    return [Program(name=name, engine=name, path=model) for name in installed]


def build_ours(name: str, model: Path, scratch: Path, *, library: Path | None = None) -> Program:
    """Build a model for this machine, with the schedules of a library if there is one.

    Raises:
        ProcessFailed: it does not build, or not in time.
    """
    output = scratch / f"{name}.so"
    which = ("--library", library) if library else ("--untuned",)
    command = python("fleet.cli.main", "build", model, "--target", "host", "-o", output, *which)
    with Process(command, scratch / f"build-{name}.log") as process:
        process.finish(_BUILD_TIMEOUT_SEC)
    return Program(name=name, engine="tvm", path=output)


def tune(model: Path, scratch: Path, *, trials: int | None, minutes: float | None) -> Path:
    """Tune a model for so many trials or minutes, and as a whole at the end; return the library with its records.

    Raises:
        ProcessFailed: it ended badly, or not in time.
    """
    library = scratch / "library.sqlite"
    limits = {"--trials": trials, "--minutes": minutes}
    words = [word for name, limit in limits.items() if limit is not None for word in (name, limit)]
    command = python("fleet.cli.main", "tune", model, *words, "--json", "--library", library)
    with Process(command, scratch / "tune.log") as process:
        process.finish(_TUNE_TIMEOUT_SEC)
    return library


def _within_mask() -> dict[str, str]:
    """Return variables that keep TVM's threads on this process's processors, if those are not all."""
    is_limited = len(os.sched_getaffinity(0)) < (os.cpu_count() or 1)
    return {"TVM_BIND_THREADS": "0"} if is_limited else {}


class Engine:
    """A process that has a model loaded and waits for its turn."""

    def __init__(self, program: Program, inputs: Path, *, threads: int, scratch: Path) -> None:
        self._outputs = scratch / f"outputs-{program.name}.npz"
        self._slow_ms: float | None = None
        self._calls = 0
        self._process = Process(
            python(
                *("benchmarks.model_runner", program.engine, program.path),
                *("--inputs", inputs, "--threads", threads),
            ),
            scratch / f"run-{program.name}.log",
            environment={"TVM_NUM_THREADS": str(threads), "OMP_NUM_THREADS": str(threads), **_within_mask()},
        )

    def __enter__(self) -> Engine:
        self._process.__enter__()
        try:
            self._process.wait_for("loaded", _LOAD_TIMEOUT_SEC)
        except ProcessFailed:
            self._process.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.__exit__(kind, error, traceback)

    def block_ms(self, block_sec: float) -> float:
        """Return the median time of the calls that fit into a block.

        Raises:
            ProcessFailed: the engine failed, or took too long.
        """
        if self._slow_ms is not None:
            return self._slow_ms
        if not self._calls:
            first_ms = self._ask(warm=0, calls=1)
            if first_ms > _SLOW_MS:
                self._slow_ms = first_ms
                return first_ms
            warm_ms = self._ask(warm=1, calls=1)
            self._calls = min(_MOST_CALLS, max(3, round(block_sec * 1e3 / warm_ms)))
        return self._ask(warm=_WARM_CALLS, calls=self._calls)

    def outputs(self) -> list[NDArray[np.generic]]:
        """Return the model's outputs for the inputs."""
        self._process.ask({"save": str(self._outputs)}, _CALL_TIMEOUT_SEC)
        with np.load(self._outputs) as stored:
            return [stored[name] for name in stored.files]

    def _ask(self, *, warm: int, calls: int) -> float:
        answer = self._process.ask({"warm": warm, "calls": calls}, _CALL_TIMEOUT_SEC)
        return float(statistics.median(answer["ms"]))
