"""`FleetRunner`: stock MetaSchedule measures on leased devices.

from fleet.metaschedule import FleetBuilder, FleetRunner
ms.tune_tir(mod, target, ..., builder=FleetBuilder(), runner=FleetRunner("127.0.0.1:9290", "cpu"))
"""

from __future__ import annotations

import uuid
import weakref
from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING

from tvm.ir.utils import derived_object
from tvm.s_tir.meta_schedule.runner import EvaluatorConfig, PyRunner, PyRunnerFuture, RunnerInput, RunnerResult

from fleet.artifacts.artifact import Artifact
from fleet.domain.leases import LeaseClass, make_terms
from fleet.domain.measuring import Evaluator, Measurement, TensorSpec, Trial
from fleet.errors import DeviceClosed
from fleet.metaschedule.lanes import LanePlan, Lanes

if TYPE_CHECKING:
    from tvm.s_tir.meta_schedule.arg_info import ArgInfo


@derived_object
class FleetRunner(PyRunner):  # type: ignore[misc]
    """Measures candidates on devices of a fleet.

    A device is leased when there is something to measure, kept between the rounds of a search, and given back after
    `idle_sec` without work, by `close`, and when the process ends. A candidate that fails costs only itself: its
    result says how, "CRASHED: ...". When no device can be had at all, the tuning run ends with the fleet's error.
    """

    def __init__(
        self,
        address: str | None,
        selector: str,
        *,
        evaluator_config: EvaluatorConfig | Evaluator | None = None,
        priority: int = 0,
        timeout_sec: float = 30.0,
        max_workers: int = 1,
        idle_sec: float = 10.0,
        wait_timeout_sec: float | None = None,
        connect_timeout_sec: float = 10.0,
    ) -> None:
        """Store the arguments: the first candidate connects to the tracker.

        Args:
            address: "host:port" of the tracker; as configured, else 127.0.0.1:9290, when None.
            selector: which devices will do: "cpu", "kind=cpu,arch=x86_64"; see `fleet.domain.selectors`.
            evaluator_config: MetaSchedule's EvaluatorConfig, or fleet.Evaluator, which has more fields.
            priority: among the requests of this account, a larger one goes first.
            timeout_sec: a candidate that loads and runs longer is killed.
            max_workers: how many devices are used at once.
            idle_sec: a device is given back when there was nothing to measure for this long.
            wait_timeout_sec: give up when no device came free for this long; None = never.
            connect_timeout_sec: the same for the tracker.
        """
        super().__init__()
        self.evaluator = _evaluator(evaluator_config)
        self.timeout_sec = timeout_sec
        plan = LanePlan(
            address=address,
            terms=make_terms(
                selector,
                lease_class=LeaseClass.BATCH,
                priority=priority,
                wait_timeout_sec=wait_timeout_sec,
                purpose="MetaSchedule",
            ),
            devices=max_workers,
            idle_sec=idle_sec,
            connect_timeout_sec=connect_timeout_sec,
        )
        self._lanes = Lanes(plan)
        self.close = weakref.finalize(self, self._lanes.close)
        """Give the devices back now. Idempotent."""

    def run(self, runner_inputs: Sequence[RunnerInput]) -> list[PyRunnerFuture]:
        """Queue the candidates; return a future for each, in order."""
        return [_FleetRunnerFuture(self._submit(given)) for given in runner_inputs]

    def _submit(self, given: RunnerInput) -> Future[Measurement]:
        try:
            artifact = Artifact.of_file(str(given.artifact_path))
        except OSError as error:
            failed: Future[Measurement] = Future()
            failed.set_exception(error)
            return failed
        trial = Trial(
            candidate_id=uuid.uuid4().hex,
            artifact_digest=artifact.digest,
            function=artifact.function,
            args=artifact.args or argument_specs(given.args_info),
            evaluator=self.evaluator,
            timeout_sec=self.timeout_sec,
        )
        return self._lanes.submit(artifact, trial)


@derived_object
class _FleetRunnerFuture(PyRunnerFuture):  # type: ignore[misc]
    def __init__(self, measurement: Future[Measurement]) -> None:
        super().__init__()
        self._measurement = measurement

    def done(self) -> bool:
        return self._measurement.done()

    def result(self) -> RunnerResult:
        try:
            return runner_result(self._measurement.result())
        except (OSError, DeviceClosed) as error:
            return RunnerResult(None, str(error))


def runner_result(measurement: Measurement) -> RunnerResult:
    """Return a measurement in MetaSchedule's form; an error starts with its kind."""
    if measurement.error is None:
        return RunnerResult(list(measurement.run_secs), None)
    return RunnerResult(None, f"{measurement.error.value}: {measurement.error_message}")


def argument_specs(args_info: Sequence[ArgInfo]) -> tuple[TensorSpec, ...]:
    """Return a function's arguments as MetaSchedule describes them, without marking outputs."""
    return tuple(TensorSpec(tuple(int(extent) for extent in info.shape), str(info.dtype)) for info in args_info)


def _evaluator(given: EvaluatorConfig | Evaluator | None) -> Evaluator:
    if isinstance(given, Evaluator):
        return given
    config = given or EvaluatorConfig()
    return Evaluator(
        number=config.number,
        repeat=config.repeat,
        min_repeat_ms=config.min_repeat_ms,
        flush_cache=config.enable_cpu_cache_flush,
    )
