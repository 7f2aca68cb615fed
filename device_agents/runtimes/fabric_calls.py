"""Calls of the fabric by artifacts, measured in its clock cycles, for all runtimes beside a fabric.

Time is `cycles / clock_hz` of the fabric's calls alone: the same candidate gives the same number each time, on a busy
board and on an emulated one. The CPU's work between the calls, including copies of tiles, does not count. A candidate
that never calls the fabric is timed by the host's clock, and says so.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from device_agents.fabric.program import FabricDead, FabricError, FabricProgram
from device_agents.fabric.reader import parse_description
from device_agents.fabric.window import MappedPlaces
from device_agents.runtimes.contract import CandidateFailed
from device_agents.runtimes.evaluating import TimeRepeats
from fleet.domain.measuring import ErrorKind, Evaluator, Measurement, Trial

T = TypeVar("T")

PREFIX = "fabric."
"""Prefix of the names of the description's functions, as artifacts call them."""

_NOTHING = (
    "The fabric holds nothing that artifacts can call: program a bitstream with its description of registers first, as "
    "`fleet program design.bit --registers registers.yaml` does."
)


class FabricCalls:
    """Calls of the fabric and their errors: an exception that crosses compiled code becomes text."""

    def __init__(self, registers_yaml: str, root: Path) -> None:
        """Args:
            registers_yaml: description of the fabric's content; empty: no functions for artifacts.
            root: where /dev and /sys are found.

        Raises:
            ConfigError: the description cannot be used.
        """
        self._program: FabricProgram | None = None
        self.names: tuple[str, ...] = ()
        self._clock_hz = 1.0
        self._failure: FabricError | None = None
        self._lock = threading.Lock()
        self._is_counted = False
        self._min_repeat_ms = 0
        if registers_yaml.strip():
            description = parse_description(registers_yaml)
            self._program = FabricProgram(description, MappedPlaces(description.window, root))
            self.names = tuple(description.functions)
            self._clock_hz = description.clock_hz

    def call(self, name: str, *values: object) -> None:
        """Run a function with an artifact's arguments: addresses and integers."""
        if self._program is None:
            raise FabricError(_NOTHING)
        try:
            # A schedule may run its tiles on several threads, but the fabric takes one call at a time.
            with self._lock:
                self._program.call(name, [_number(value) for value in values])
        except FabricError as error:
            self._failure = error
            raise

    def measure(self, trial: Trial, measure: Callable[[Trial], Measurement]) -> Measurement:
        """Measure a trial with a runtime that uses `count_repeats`: in cycles if it calls the fabric."""
        self._is_counted = False
        self._min_repeat_ms = trial.evaluator.min_repeat_ms
        plain = replace(trial, evaluator=_without_pointless_knobs(trial.evaluator))
        measurement = self.explain(lambda: measure(plain))
        if not self._is_counted:
            return measurement
        cycles = tuple(round(sec * self._clock_hz) for sec in measurement.run_secs)
        return replace(measurement, run_cycles=cycles, time_source="cycles")

    def count_repeats(self, run: Callable[[], object], by_host: TimeRepeats) -> TimeRepeats:
        """Return a timer of repeats of `run`: in cycles, or by the host's clock if the fabric is never called."""

        def time_repeats(*, number: int, repeat: int, min_repeat_ms: int) -> list[float]:
            # No warm-up run and no additional runs: cycles need neither.
            cycles = []
            for _ in range(repeat):
                before = self._cycles
                for _ in range(number):
                    run()
                cycles.append(round((self._cycles - before) / number))
            if not any(cycles):
                return by_host(number=number, repeat=repeat, min_repeat_ms=self._min_repeat_ms)
            self._is_counted = True
            return [count / self._clock_hz for count in cycles]

        return time_repeats

    def explain(self, run: Callable[[], T]) -> T:
        """Run a candidate; if it failed because of the fabric, raise the fabric's error message."""
        self._failure = None
        try:
            return run()
        except CandidateFailed as failure:
            if self._failure is not None:
                raise CandidateFailed(_kind_of(self._failure), str(self._failure)) from failure
            if PREFIX in str(failure):
                raise CandidateFailed(failure.kind, f"{failure}\n{self._offered()}") from failure
            raise

    @property
    def _cycles(self) -> int:
        """Clock cycles of all calls so far."""
        return self._program.cycles if self._program is not None else 0

    def _offered(self) -> str:
        if self._program is None:
            return _NOTHING
        offered = ", ".join(PREFIX + name for name in self.names)
        return f"The description of the fabric offers {offered}."


def _without_pointless_knobs(evaluator: Evaluator) -> Evaluator:
    """Remove settings that do not change the number of cycles: a warm cache, a warm core, a minimum duration."""
    return replace(
        evaluator,
        min_repeat_ms=0,
        flush_cache=False,
        flush_bytes=0,
        f_preproc="",
        cooldown_interval_ms=0,
        look_runs=0,
    )


def _kind_of(error: FabricError) -> ErrorKind:
    return ErrorKind.DEVICE_FAULTED if isinstance(error, FabricDead) else ErrorKind.RUN_FAILED


def _number(value: object) -> int:
    """Return an integer, or the address in a void pointer."""
    address = getattr(value, "value", value)
    if address is None:
        return 0
    if not isinstance(address, int):
        raise FabricError(f"functions of the fabric take addresses and integers, found a {type(value).__name__}")
    return address
