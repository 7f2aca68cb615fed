"""Runs plain TVM modules without TVM's runtime libraries: ctypes, and one small C library of ours.

For boards that no libtvm_runtime exists for, 32-bit ARM above all. Functions only: a Relax VM executable, or a module
with constants or other modules inside, needs the real runtime and is refused with that reason. The library lies beside
the C source in a bundle; elsewhere it is built at first use (see cross.plain_runtime).
"""

from __future__ import annotations

import ctypes
import os
import platform
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NoReturn

from device_agents.evaluating import TimeRepeats, for_single_calls, run_schedule
from device_agents.filling import make_tile
from device_agents.plain_runtime_args import MOST_BYTES, Arguments
from device_agents.plain_runtime_native import BUNDLED, CALLBACK, NONE, Knobs, load_library, python_value
from device_agents.reference_work import CpuReference
from device_agents.runtimes import CandidateFailed, classify
from fleet.tvm_versions import tvm_version
from fleet.v1 import measurement_pb2, session_service_pb2
from fleet.wire import duration

PackedFunction = Callable[..., None]
"""Called with integers, floats, and addresses of data as integers."""

_WITH_WHEELS = ("x86_64", "aarch64")
_KEPT_MODULES = 8
_PUSHED_OUT_BYTES = 8 * 1024 * 1024
"""Written through instead of flushing arguments one by one, for which a program has no instruction on 32-bit ARM:
several times the last cache of such boards."""

_NEEDS_RUNTIME = (
    "needs TVM's runtime libraries, and this device has only the plain runtime; build plain functions for it"
)


def is_only_choice() -> bool:
    """Tell whether this one has to do: TVM is not here, and no wheel of it exists for this machine."""
    return tvm_version() is None and (BUNDLED.exists() or platform.machine() not in _WITH_WHEELS)


def preload() -> None:
    """Load the C library. Starts no thread.

    Raises:
        RuntimeError: it is not here, and cannot be built.
    """
    load_library()
    make_tile("float32")


class PlainRuntime:
    """Runs candidates on this machine's CPU."""

    def __init__(self, device_type: str = "cpu", device_index: int = 0) -> None:
        self._library = load_library()
        self._library.plain_set_threads(_threads())
        self._modules: OrderedDict[str, _Module] = OrderedDict()
        self._callbacks: list[Any] = []
        self._reference: CpuReference | None = None

    def register(self, name: str, function: PackedFunction) -> None:
        """Let artifacts call `function` by this name, as they call TVM's packed functions."""

        def called(_: int, args: Any, count: int, result: Any) -> int:
            try:
                function(*(python_value(args[index]) for index in range(count)))
            except Exception as error:  # noqa: BLE001 - outermost edge: compiled code is above, it takes a code only
                self._library.plain_set_error(str(error).encode())
                return -1
            result[0].type_index = NONE
            return 0

        callback = CALLBACK(called)
        self._callbacks.append(callback)  # called for as long as the process lives
        if self._library.plain_register(name.encode(), callback, len(self._callbacks)):
            raise RuntimeError(f"{name!r} cannot be registered: its name is too long, or there are too many")

    def measure(self, request: measurement_pb2.MeasureRequest, path: str) -> measurement_pb2.Measurement:
        """Time a function of the artifact."""
        started = time.perf_counter()
        function = self._function(request.artifact_digest, path, request.module_kind, request.function or "main")
        evaluator = _checked(request.evaluator)
        with Arguments(self._library, request.args) as arguments:
            loaded = time.perf_counter()
            repeats = self._make_time_repeats(function, arguments, for_single_calls(evaluator))
            run_secs = run_schedule(evaluator, repeats)
            ended = time.perf_counter()
        return measurement_pb2.Measurement(
            candidate_id=request.candidate_id,
            run_secs=run_secs,
            provenance=measurement_pb2.Provenance(flushed="cpu" if evaluator.cache_flush_bytes else ""),
            clocks=measurement_pb2.Clocks(load=duration(loaded - started), run=duration(ended - loaded)),
        )

    def call(self, request: session_service_pb2.CallRequest, path: str) -> session_service_pb2.CallResponse:
        """Run a function of the artifact once and return what it computed."""
        function = self._function(request.artifact_digest, path, request.module_kind, request.function or "main")
        with Arguments(self._library, request.args) as arguments:
            self._run(function, arguments)
            return session_service_pb2.CallResponse(outputs=arguments.written(request.args))

    def reference(self) -> list[float]:
        """Time the reference kernel of processors."""
        if self._reference is None:
            self._reference = CpuReference()
        return self._reference()

    def _run(self, function: int, arguments: Arguments) -> None:
        if self._library.plain_call(function, arguments.packed, arguments.count):
            self._fail()

    def _make_time_repeats(
        self, function: int, arguments: Arguments, evaluator: measurement_pb2.Evaluator
    ) -> TimeRepeats:
        def time_repeats(*, number: int, repeat: int, min_repeat_ms: int) -> list[float]:
            secs = (ctypes.c_double * repeat)()
            knobs = Knobs(
                number,
                repeat,
                min_repeat_ms,
                evaluator.limit_zero_time_iterations or 100,
                evaluator.cooldown_interval_ms,
                evaluator.repeats_to_cooldown or 1,
                evaluator.cache_flush_bytes,
            )
            if self._library.plain_time(function, arguments.packed, arguments.count, ctypes.byref(knobs), secs):
                self._fail()
            return list(secs)

        return time_repeats

    def _function(self, digest: str, path: str, kind: int, name: str) -> int:
        if kind == measurement_pb2.MODULE_KIND_RELAX_VM:
            raise CandidateFailed(measurement_pb2.ERROR_KIND_LOAD_FAILED, f"a Relax VM executable {_NEEDS_RUNTIME}")
        module = self._modules.get(digest)
        if module is None:
            while len(self._modules) >= _KEPT_MODULES:
                self._modules.popitem(last=False)[1].close()
            module = self._modules[digest] = _Module(self._library, path)
        self._modules.move_to_end(digest)
        return module.find(name)

    def _fail(self) -> NoReturn:
        message = self._library.plain_error().decode(errors="replace") or "the function failed without a message"
        kind, _, _ = message.partition(":")
        if kind in ("TypeError", "ValueError") and "Cannot find function" not in message:
            # Generated code raises these where it checks what it was called with, and nowhere else.
            raise CandidateFailed(measurement_pb2.ERROR_KIND_BAD_ARGUMENTS, message)
        raise classify(RuntimeError(message))


class _Module:
    """One loaded artifact."""

    def __init__(self, library: ctypes.CDLL, path: str) -> None:
        self._library = library
        self._handle = library.plain_load(path.encode())
        if not self._handle:
            message = library.plain_error().decode(errors="replace")
            raise CandidateFailed(measurement_pb2.ERROR_KIND_LOAD_FAILED, f"cannot load: {message}")
        if library.plain_find(self._handle, b"__tvm_ffi__library_bin"):
            self.close()
            raise CandidateFailed(
                measurement_pb2.ERROR_KIND_LOAD_FAILED, f"a module with constants or modules inside {_NEEDS_RUNTIME}"
            )

    def find(self, name: str) -> int:
        found: int | None = self._library.plain_find(self._handle, f"__tvm_ffi_{name}".encode())
        if not found:
            raise CandidateFailed(measurement_pb2.ERROR_KIND_LOAD_FAILED, f"the artifact has no function {name!r}")
        return found

    def close(self) -> None:
        self._library.plain_close(self._handle)


def _checked(evaluator: measurement_pb2.Evaluator) -> measurement_pb2.Evaluator:
    """Return the knobs as they are turned here."""
    if evaluator.f_preproc:
        raise CandidateFailed(
            measurement_pb2.ERROR_KIND_BAD_ARGUMENTS,
            f"the plain runtime has no global function {evaluator.f_preproc!r} for f_preproc",
        )
    if evaluator.cache_flush_bytes >= MOST_BYTES:
        raise CandidateFailed(
            measurement_pb2.ERROR_KIND_BAD_ARGUMENTS, f"cache_flush_bytes: at most {MOST_BYTES - 1} here"
        )
    if not evaluator.flush_cpu_cache:
        return evaluator
    pushed = measurement_pb2.Evaluator()
    pushed.CopyFrom(evaluator)
    pushed.flush_cpu_cache = False
    pushed.cache_flush_bytes = max(evaluator.cache_flush_bytes, _PUSHED_OUT_BYTES)
    return pushed


def _threads() -> int:
    given = os.environ.get("TVM_NUM_THREADS", "")
    return int(given) if given.isdigit() else len(os.sched_getaffinity(0))
