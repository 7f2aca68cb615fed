"""Runs plain TVM modules without TVM's runtime libraries: ctypes, and one small C library of ours.

For boards that no libtvm_runtime exists for, 32-bit ARM above all. Functions only: a Relax VM executable, or a module
with constants or other modules inside, needs the real runtime and is refused with that reason. The library lies beside
the C source in a bundle; elsewhere it is built at first use (see cross.compile.plain_runtime).
"""

from __future__ import annotations

import ctypes
import os
import platform
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from device_agents.runtimes.contract import CandidateFailed
from device_agents.runtimes.evaluating import TimeRepeats, for_single_calls, push_out, run_schedule
from device_agents.runtimes.filling import make_tile
from device_agents.runtimes.kept_modules import KeptModules
from device_agents.runtimes.plain.arguments import MOST_BYTES, PackedArguments
from device_agents.runtimes.plain.native import BUNDLED, CALLBACK, NONE, AnyValue, Knobs, load_library, python_value
from device_agents.runtimes.proving import ProofParts, check_banks
from device_agents.runtimes.reference_kernels import CpuReferenceKernel
from fleet.domain.measuring import (
    Call,
    Clocks,
    ErrorKind,
    Evaluator,
    Measurement,
    ModuleKind,
    Tensor,
    TensorSpec,
    Trial,
)
from fleet.domain.proving import ProofArgument, ProofOrder
from fleet.domain.tvm_versions import tvm_version

if TYPE_CHECKING:
    from _ctypes import _Pointer  # type of arguments of a callback; exists for type checkers only

PackedFunction = Callable[..., None]
"""Called with integers, floats, and addresses of data as integers."""

_KINDS_BY_CLASS = {
    "TypeError": ErrorKind.BAD_ARGUMENTS,
    "ValueError": ErrorKind.BAD_ARGUMENTS,
    "MemoryError": ErrorKind.OUT_OF_MEMORY,
}
"""Kinds by the class that precedes an error's message. Generated code raises the first two only in argument checks."""

_WITH_WHEELS = ("x86_64", "aarch64")
_KEPT_MODULES = 8
_PUSHED_OUT_BYTES = 8 * 1024 * 1024
"""Written through instead of flushing arguments one by one, for which programs have no instruction on 32-bit ARM;
several times the last-level cache of such boards."""

_NEEDS_RUNTIME = (
    "needs TVM's runtime libraries, and this device has only the plain runtime; build plain functions for it"
)


def is_only_choice() -> bool:
    """Tell whether TVM's runtime is unavailable: not installed, and without a wheel for this machine."""
    return tvm_version() is None and (BUNDLED.exists() or platform.machine() not in _WITH_WHEELS)


def preload() -> None:
    """Load the C library. Starts no thread.

    Raises:
        RuntimeError: it is missing and cannot be built.
    """
    load_library()
    make_tile("float32")


class PlainRuntime:
    """Runs candidates on this machine's CPU."""

    def __init__(self, device_type: str = "cpu", device_index: int = 0) -> None:
        self._library = load_library()
        self._library.plain_set_threads(_threads())
        self._modules: KeptModules[_Module] = KeptModules(_KEPT_MODULES, _Module.close)
        self._callbacks: list[object] = []
        self._reference = CpuReferenceKernel()

    def register(self, name: str, function: PackedFunction) -> None:
        """Let artifacts call `function` by this name, as they call TVM's packed functions."""

        def called(_: int, args: _Pointer[AnyValue], count: int, result: _Pointer[AnyValue]) -> int:
            try:
                function(*(python_value(args[index]) for index in range(count)))
            except Exception as error:  # noqa: BLE001 - outermost edge: compiled code is above, it takes a code only
                self._library.plain_set_error(str(error).encode())
                return -1
            result[0].type_index = NONE
            return 0

        callback = CALLBACK(called)
        self._callbacks.append(callback)  # must stay alive as long as the process
        if self._library.plain_register(name.encode(), callback, len(self._callbacks)):
            raise RuntimeError(f"{name!r} cannot be registered: its name is too long, or there are too many")

    def measure(self, trial: Trial, path: str) -> Measurement:
        started = time.perf_counter()
        function = self._function(trial, path)
        evaluator = _checked(trial.evaluator)
        with PackedArguments(self._library, trial.args) as arguments:
            loaded = time.perf_counter()
            repeats = self._make_time_repeats(function, arguments, for_single_calls(evaluator))
            timing = run_schedule(evaluator, repeats)
            ended = time.perf_counter()
        return Measurement(
            candidate_id=trial.candidate_id,
            run_secs=tuple(timing.secs),
            stopped=timing.stopped,
            provenance={"flushed": "cpu" if evaluator.flush_bytes else ""},
            clocks=Clocks(load_sec=loaded - started, run_sec=ended - loaded),
        )

    def call(self, call: Call, path: str) -> list[Tensor]:
        function = self._function(call, path)
        with PackedArguments(self._library, call.args) as arguments:
            self._run(function, arguments)
            return arguments.written()

    def reference(self) -> list[float]:
        return self._reference()

    def prepare_proof(self, order: ProofOrder) -> ProofParts:
        arguments = PackedArguments(self._library, [_as_argument(arg) for arg in order.args])
        contents = arguments.contents()
        check_banks(order, [len(content) for content in contents])

        def load(path: str) -> Callable[[], object]:
            call = Call(artifact_digest=order.artifact_digest, function=order.function)
            return partial(self._run, self._function(call, path), arguments)

        return ProofParts(contents=contents, load=load, call_nothing=self._library.plain_error)

    def _run(self, function: int, arguments: PackedArguments) -> None:
        if self._library.plain_call(function, arguments.packed, arguments.count):
            self._fail()

    def _make_time_repeats(self, function: int, arguments: PackedArguments, evaluator: Evaluator) -> TimeRepeats:
        def time_repeats(*, number: int, repeat: int, min_repeat_ms: int) -> list[float]:
            secs = (ctypes.c_double * repeat)()
            knobs = Knobs(
                number,
                repeat,
                min_repeat_ms,
                evaluator.limit_zero_time_iterations,
                evaluator.cooldown_interval_ms,
                evaluator.repeats_to_cooldown,
                evaluator.flush_bytes,
            )
            if self._library.plain_time(function, arguments.packed, arguments.count, ctypes.byref(knobs), secs):
                self._fail()
            return list(secs)

        return time_repeats

    def _function(self, wanted: Trial | Call, path: str) -> int:
        if wanted.module_kind is ModuleKind.RELAX_VM:
            raise CandidateFailed(ErrorKind.LOAD_FAILED, f"a Relax VM executable {_NEEDS_RUNTIME}")
        module = self._modules.get(wanted.artifact_digest, lambda: _Module(self._library, path))
        return module.find(wanted.function)

    def _fail(self) -> NoReturn:
        message = self._library.plain_error().decode(errors="replace") or "the function failed without a message"
        raise CandidateFailed(_KINDS_BY_CLASS.get(message.partition(":")[0], ErrorKind.RUN_FAILED), message)


class _Module:
    """Loaded artifact."""

    def __init__(self, library: ctypes.CDLL, path: str) -> None:
        self._library = library
        self._handle = library.plain_load(path.encode())
        if not self._handle:
            message = library.plain_error().decode(errors="replace")
            raise CandidateFailed(ErrorKind.LOAD_FAILED, f"cannot load: {message}")
        if library.plain_find(self._handle, b"__tvm_ffi__library_bin"):
            self.close()
            raise CandidateFailed(ErrorKind.LOAD_FAILED, f"a module with constants or modules inside {_NEEDS_RUNTIME}")

    def find(self, name: str) -> int:
        found: int | None = self._library.plain_find(self._handle, f"__tvm_ffi_{name}".encode())
        if not found:
            raise CandidateFailed(ErrorKind.LOAD_FAILED, f"the artifact has no function {name!r}")
        return found

    def close(self) -> None:
        self._library.plain_close(self._handle)


def _checked(evaluator: Evaluator) -> Evaluator:
    """Return the evaluator with the settings that this runtime supports."""
    if evaluator.f_preproc:
        raise CandidateFailed(
            ErrorKind.BAD_ARGUMENTS,
            f"the plain runtime has no global function {evaluator.f_preproc!r} for f_preproc",
        )
    if evaluator.flush_bytes >= MOST_BYTES:
        raise CandidateFailed(ErrorKind.BAD_ARGUMENTS, f"flush_bytes: at most {MOST_BYTES - 1} here")
    return push_out(evaluator, _PUSHED_OUT_BYTES) if evaluator.flush_cache else evaluator


def _as_argument(arg: ProofArgument) -> TensorSpec:
    """Return the specification as an output's, so that its memory is allocated but not filled."""
    return replace(arg.spec, is_output=True)


def _threads() -> int:
    given = os.environ.get("TVM_NUM_THREADS", "")
    return int(given) if given.isdigit() else len(os.sched_getaffinity(0))
