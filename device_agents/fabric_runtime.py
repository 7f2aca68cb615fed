"""Runs TVM modules whose inner loops call the fabric, and measures them in the fabric's clock cycles.

Each function of the description becomes the packed function "fabric.<name>" of this process. A module's extern call of
it (`T.call_packed("fabric.gemm_i8", ...)`) finds it by that name; device_agents.fabric explains the description.

Time is `cycles / clock_hz` of the fabric's calls alone: the same candidate gives the same number each time, on a busy
board and on an emulated one. What the CPU does between the calls, copying tiles included, does not count. A candidate
that never calls the fabric is timed by the host's clock, and says so.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from device_agents.evaluating import TimeRepeats
from device_agents.fabric import parse_description
from device_agents.fabric_program import FabricDead, FabricError, FabricProgram
from device_agents.fabric_window import MappedPlaces
from device_agents.runtimes import CandidateFailed
from device_agents.tvm_runtime import TvmRuntime, preload
from fleet.v1 import measurement_pb2, session_service_pb2

__all__ = ["PREFIX", "FabricCalls", "FabricRuntime", "preload"]

T = TypeVar("T")

PREFIX = "fabric."
_POINTLESS_KNOBS = ("min_repeat_ms", "flush_cpu_cache", "cache_flush_bytes", "f_preproc", "cooldown_interval_ms")
"""Of time_evaluator: neither a warm cache, nor a warm core, nor a short run changes how many cycles there are."""


class FabricRuntime(TvmRuntime):
    """Runs candidates on a board's CPU, beside its fabric."""

    def __init__(self, *, registers_yaml: str = "", root: str = "/") -> None:
        """Register the functions.

        Args:
            registers_yaml: description of what the fabric holds; empty: nothing that artifacts could call.
            root: where /dev and /sys are found.

        Raises:
            ConfigError: the description cannot be used.
        """
        super().__init__()
        self._calls = FabricCalls(registers_yaml, Path(root))
        for name in self._calls.names:
            function = partial(self._calls.call, name)
            self._ffi.register_global_func(f"{PREFIX}{name}", lambda *v, f=function: f(*v), override=True)
        self._counted = False
        self._min_repeat_ms = 0

    def measure(self, request: measurement_pb2.MeasureRequest, path: str) -> measurement_pb2.Measurement:
        """Time a function of the artifact, in cycles where it calls the fabric."""
        self._counted = False
        plain = measurement_pb2.MeasureRequest()
        plain.CopyFrom(request)
        for knob in _POINTLESS_KNOBS:
            plain.evaluator.ClearField(knob)
        self._min_repeat_ms = request.evaluator.min_repeat_ms
        measurement = self._calls.explain(lambda: super(FabricRuntime, self).measure(plain, path))
        if self._counted:
            measurement.run_cycles.extend(round(sec * self._calls.clock_hz) for sec in measurement.run_secs)
            measurement.time_source = "cycles"
        return measurement

    def call(self, request: session_service_pb2.CallRequest, path: str) -> session_service_pb2.CallResponse:
        """Run a function of the artifact once and return what it computed."""
        return self._calls.explain(lambda: super(FabricRuntime, self).call(request, path))

    def _make_time_repeats(
        self, module: Any, function: str, arguments: list[Any], evaluator: measurement_pb2.Evaluator
    ) -> TimeRepeats:
        by_wall = super()._make_time_repeats(module, function, arguments, evaluator)
        run = module.get_function(function)

        def time_repeats(*, number: int, repeat: int, min_repeat_ms: int) -> list[float]:
            # No run that does not count first, and no more runs than asked for: cycles need neither.
            cycles = []
            for _ in range(repeat):
                before = self._calls.cycles
                for _ in range(number):
                    run(*arguments)
                cycles.append(round((self._calls.cycles - before) / number))
            if not any(cycles):
                return by_wall(number=number, repeat=repeat, min_repeat_ms=self._min_repeat_ms)
            self._counted = True
            return [count / self._calls.clock_hz for count in cycles]

        return time_repeats


class FabricCalls:
    """Calls of the fabric, and why they failed: an exception that crosses compiled code is text afterwards."""

    def __init__(self, registers_yaml: str, root: Path) -> None:
        self._program: FabricProgram | None = None
        self.names: tuple[str, ...] = ()
        self.clock_hz = 1.0
        self._failure: FabricError | None = None
        self._lock = threading.Lock()
        if registers_yaml.strip():
            description = parse_description(registers_yaml)
            self._program = FabricProgram(description, MappedPlaces(description.window, root))
            self.names = tuple(description.functions)
            self.clock_hz = description.clock_hz

    @property
    def cycles(self) -> int:
        """Of all calls so far."""
        return self._program.cycles if self._program is not None else 0

    def call(self, name: str, *values: Any) -> None:
        """Run a function with what an artifact passed: addresses and integers."""
        if self._program is None:
            raise FabricError(_NOTHING)
        try:
            # A schedule may run its tiles on several threads; the fabric takes one call at a time.
            with self._lock:
                self._program.call(name, [_number(value) for value in values])
        except FabricError as error:
            self._failure = error
            raise

    def explain(self, run: Callable[[], T]) -> T:
        """Run a candidate; where it failed for the fabric's sake, say that in the fabric's words."""
        self._failure = None
        try:
            return run()
        except CandidateFailed as failure:
            if self._failure is not None:
                raise CandidateFailed(_kind_of(self._failure), str(self._failure)) from failure
            if PREFIX in str(failure):
                raise CandidateFailed(failure.kind, f"{failure}\n{self._offered()}") from failure
            raise

    def _offered(self) -> str:
        if self._program is None:
            return _NOTHING
        offered = ", ".join(PREFIX + name for name in self.names)
        return f"The description of what the fabric holds offers {offered}."


_NOTHING = (
    "The fabric holds nothing that artifacts can call: program a bitstream with its description of registers first, as "
    "`fleet program design.bit --registers registers.yaml` does."
)


def _kind_of(error: FabricError) -> measurement_pb2.ErrorKind:
    if isinstance(error, FabricDead):
        return measurement_pb2.ERROR_KIND_DEVICE_FAULTED
    return measurement_pb2.ERROR_KIND_RUN_FAILED


def _number(value: Any) -> int:
    """Return an integer, or the address that a void pointer holds."""
    address = getattr(value, "value", value)
    if address is None:
        return 0
    if not isinstance(address, int):
        raise FabricError(f"functions of the fabric take addresses and integers, found a {type(value).__name__}")
    return address
