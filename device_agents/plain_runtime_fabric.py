"""The plain runtime with a fabric beside it: what device_agents.fabric_runtime is where TVM's runtime exists.

The functions of the bitstream's description are there for artifacts by the same names, and the time of an artifact that
calls them is the same cycles: see there.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from device_agents.evaluating import TimeRepeats
from device_agents.fabric_runtime import PREFIX, FabricCalls
from device_agents.plain_runtime import PlainRuntime
from fleet.v1 import measurement_pb2, session_service_pb2


class PlainFabricRuntime(PlainRuntime):
    """Runs candidates on a board's 32-bit CPU, beside its fabric."""

    def __init__(self, *, registers_yaml: str, root: str = "/") -> None:
        """Register the functions.

        Args:
            registers_yaml: description of what the fabric holds.
            root: where /dev and /sys are found.

        Raises:
            ConfigError: the description cannot be used.
        """
        super().__init__()
        self._calls = FabricCalls(registers_yaml, Path(root))
        for name in self._calls.names:
            self.register(f"{PREFIX}{name}", partial(self._calls.call, name))
        self._counted = False
        self._min_repeat_ms = 0

    def measure(self, request: measurement_pb2.MeasureRequest, path: str) -> measurement_pb2.Measurement:
        """Time a function of the artifact, in cycles where it calls the fabric."""
        self._counted = False
        self._min_repeat_ms = request.evaluator.min_repeat_ms
        plain = measurement_pb2.MeasureRequest()
        plain.CopyFrom(request)
        # Runs are not made more until they last long enough: the count of cycles is as exact for one.
        plain.evaluator.ClearField("min_repeat_ms")
        measurement = self._calls.explain(lambda: super(PlainFabricRuntime, self).measure(plain, path))
        if self._counted:
            measurement.run_cycles.extend(round(sec * self._calls.clock_hz) for sec in measurement.run_secs)
            measurement.time_source = "cycles"
        return measurement

    def call(self, request: session_service_pb2.CallRequest, path: str) -> session_service_pb2.CallResponse:
        """Run a function of the artifact once and return what it computed."""
        return self._calls.explain(lambda: super(PlainFabricRuntime, self).call(request, path))

    def _make_time_repeats(self, function: int, arguments: Any, evaluator: measurement_pb2.Evaluator) -> TimeRepeats:
        by_wall = super()._make_time_repeats(function, arguments, evaluator)

        def time_repeats(*, number: int, repeat: int, min_repeat_ms: int) -> list[float]:
            cycles = []
            for _ in range(repeat):
                before = self._calls.cycles
                for _ in range(number):
                    self._run(function, arguments)
                cycles.append(round((self._calls.cycles - before) / number))
            if not any(cycles):
                return by_wall(number=number, repeat=repeat, min_repeat_ms=self._min_repeat_ms)
            self._counted = True
            return [count / self._calls.clock_hz for count in cycles]

        return time_repeats
