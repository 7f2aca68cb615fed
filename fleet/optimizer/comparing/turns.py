"""Turns of a model's builds on the device and of its engine on this machine. The caller holds the cores."""

from __future__ import annotations

import logging
import math
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from fleet.artifacts.artifact import Artifact
from fleet.client.steady import SteadyDevice
from fleet.domain.measuring import ErrorKind, Evaluator, Measurement, ModuleKind, TensorSpec, Trial
from fleet.errors import BuildError
from fleet.optimizer.comparing.engine import Engine
from fleet.optimizer.comparing.rest import busy_ticks, rest
from fleet.optimizer.comparing.rounds import Rounds
from fleet.optimizer.core.progress import UNTUNED_BOUND

logger = logging.getLogger(__name__)

ENGINE = "engine"
"""Name of the engine among the programs of a comparison."""

_MIN_REPEAT_MS = 8
_RUN_TIMEOUT_SEC = 120.0
_LOAD_TIMEOUT_SEC = 2.0
_SLOWER_LOAD = 5.0
"""Time limit for loading an unscheduled program, as a multiple of the other programs' load time."""

_RUNS_OF_ONE = 2
"""Runs per timed run: TVM's evaluator makes a warm-up run first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Untuned:
    """Time of the unscheduled model, or the reason for a missing time."""

    sec: float = math.inf
    """Total time of one run per set of shapes [s]; infinite if it was stopped or failed."""

    above_sec: float = 0.0
    """Lower bound of its time if it was stopped [s], else 0."""

    problem: str = ""
    """Reason for a missing time; empty if it ran or was stopped."""


@dataclass(slots=True, kw_only=True)
class ModelTurns:
    """Builds of one model and its engine, with inputs for each set of shapes."""

    device: SteadyDevice
    builds: Mapping[str, Artifact]
    engine: Engine | None
    """None if no engine takes part."""

    inputs: Sequence[tuple[TensorSpec, ...]]
    """Arguments for each set of shapes."""

    load_sec: float = 0.0
    """Longest load time of a build [s]."""

    _cpus: tuple[int, ...] = ()
    """Cores of the device, as reported by its agent."""

    _last: str = ""

    async def run(self, rounds: Rounds) -> None:
        """Run blocks until the rounds are over.

        Raises:
            DeviceUnreachable: the device gives no result.
        """
        for name in self.builds:  # loads the build, and reports the device's cores
            if not math.isfinite(await self._time(name, 1)):
                rounds.names = tuple(other for other in rounds.names if other != name)
        rounds.pairs = tuple(pair for pair in rounds.pairs if set(pair) <= set(rounds.names))
        started = time.monotonic()
        while not rounds.is_over(time.monotonic() - started):
            rounds.add({name: await self._time(name, rounds.repeats(name)) for name in rounds.order()})

    async def time_untuned(self, artifact: Artifact, static_sec: float) -> Untuned:
        """Time one run of the unscheduled model; stop it at ten times the time with static schedules.

        Args:
            static_sec: time of the model with static schedules [s]; infinite if unknown.
        """
        sec, bound_sec = 0.0, UNTUNED_BOUND * static_sec / len(self.inputs)
        run_timeout_sec = min(_RUN_TIMEOUT_SEC, _RUNS_OF_ONE * bound_sec)
        timeout_sec = _LOAD_TIMEOUT_SEC + _SLOWER_LOAD * self.load_sec + run_timeout_sec
        for inputs in self.inputs:
            found = await self._measure(artifact, inputs, Evaluator(), timeout_sec)
            if found.error is ErrorKind.TIMEOUT and math.isfinite(static_sec):
                return Untuned(above_sec=UNTUNED_BOUND * static_sec)
            if found.error is not None:
                return Untuned(problem=found.error_message or str(found.error))
            sec += found.median_sec
        return Untuned(sec=sec)

    async def _time(self, name: str, repeat: int) -> float:
        """Return the total time of one run per set of shapes [s]; infinite if it failed."""
        if (name == ENGINE) is not (self._last == ENGINE):
            await rest(partial(busy_ticks, self._cpus))
        self._last = name
        if name == ENGINE:
            return await self._time_engine(repeat)
        sec = 0.0
        for inputs in self.inputs:
            evaluator = Evaluator(repeat=repeat, min_repeat_ms=_MIN_REPEAT_MS)
            found = await self._measure(self.builds[name], inputs, evaluator, _RUN_TIMEOUT_SEC)
            if not found.run_secs:
                logger.warning("the model was not timed", extra={"build": name, "reason": found.error_message})
            sec += min(found.run_secs, default=math.inf)
            self.load_sec = max(self.load_sec, found.clocks.load_sec)
            cpus = found.provenance.get("pinned_cpus")
            self._cpus = tuple(map(int, cpus)) if isinstance(cpus, list | tuple) else ()
        return sec

    async def _time_engine(self, repeat: int) -> float:
        if self.engine is None:
            return math.inf
        try:
            return await self.engine.time(repeat, _MIN_REPEAT_MS / 1e3, self._cpus)
        except BuildError as error:
            logger.warning("the engine was not timed", extra={"reason": str(error)})
            return math.inf

    async def _measure(
        self, artifact: Artifact, inputs: tuple[TensorSpec, ...], evaluator: Evaluator, timeout_sec: float
    ) -> Measurement:
        trial = Trial(
            candidate_id=uuid.uuid4().hex,
            artifact_digest=artifact.digest,
            args=inputs,
            evaluator=evaluator,
            timeout_sec=timeout_sec,
            module_kind=ModuleKind.RELAX_VM,
        )
        (found,) = [each async for each in self.device.measure([artifact], [trial])]
        return found
