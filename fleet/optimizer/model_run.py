"""The whole model on the device: untuned, tuned, and what the user would run otherwise."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from cross.targets import parse_target
from fleet.artifacts import Artifact
from fleet.errors import MeasurementError
from fleet.measuring import Evaluator, ModuleKind, Trial
from fleet.optimizer.candidates import Pool
from fleet.optimizer.job import ModelReport
from fleet.optimizer.numerics import compare, make_inputs, max_abs_error
from fleet.optimizer.repeats import Repeats
from fleet.optimizer.seat import Seat
from fleet.optimizer.turns import Turns
from fleet.workloads.extract import Model, compile_model
from fleet.workloads.reference import reference_outputs

T = TypeVar("T")

_COMPILE_TIMEOUT_SEC = 600.0
_RUN_TIMEOUT_SEC = 120.0
_EVALUATOR = Evaluator(number=1, repeat=5, min_repeat_ms=20)
_REFERENCE_RUNS = 20


async def run_model(
    model: Model,
    schedules: Mapping[str, str],
    *,
    target_json: str,
    out_dir: Path,
    seat: Seat,
    repeats: Repeats,
    pool: Pool,
    turns: Turns,
    seed: int,
    threads: int,
    is_local: bool,
    say: Callable[[str], None],
) -> ModelReport:
    """Compile, time and check the model.

    Args:
        schedules: trace JSON by structural hash; workloads without one stay unscheduled.
        threads: the device's core count; what ONNX Runtime may use where the device is a processor; else all.
        is_local: the device is this machine, so that ONNX Runtime's time here compares with the device's.
    """
    say("compiling the whole model, untuned and tuned")
    async with turns.building():
        untuned, tuned = await asyncio.gather(
            _in_pool(pool, compile_model, model, target_json, {}, str(out_dir)),
            _in_pool(pool, compile_model, model, target_json, dict(schedules), str(out_dir)),
        )
    say("running the whole model, untuned and tuned")
    inputs = list(make_inputs(model.inputs, seed))
    async with turns.measuring():
        untuned_sec, tuned_sec = [await _time(repeats, model, artifact) for artifact in (untuned, tuned)]
        try:
            outputs = await seat.call(tuned, inputs, timeout_sec=_RUN_TIMEOUT_SEC)
            untuned_outputs = await seat.call(untuned, inputs, timeout_sec=_RUN_TIMEOUT_SEC)
        except MeasurementError as error:
            return ModelReport(is_right=False, message=f"the model does not run on the device: {error}")
        reference = await _in_pool(
            pool,
            reference_outputs,
            model,
            inputs,
            threads=threads if parse_target(target_json)["kind"] == "llvm" else os.cpu_count() or 1,
            repeat=_REFERENCE_RUNS if is_local else 0,
        )
    expected = list(reference.outputs) if reference is not None else untuned_outputs
    mismatch = compare(outputs, expected)
    return ModelReport(
        untuned_ms=_ms(untuned_sec),
        tuned_ms=_ms(tuned_sec),
        onnxruntime_ms=_ms(reference.median_sec) if reference is not None and is_local else None,
        max_abs_error=max_abs_error(outputs, expected),
        reference="onnxruntime" if reference is not None else "untuned",
        is_right=mismatch is None,
        message=mismatch.text if mismatch else "",
    )


async def _time(repeats: Repeats, model: Model, artifact: Artifact) -> float:
    trial = Trial(
        candidate_id=artifact.digest,
        artifact_digest=artifact.digest,
        args=model.inputs,
        evaluator=_EVALUATOR,
        timeout_sec=_RUN_TIMEOUT_SEC,
        module_kind=ModuleKind.RELAX_VM,
    )
    median_sec = math.inf
    async for measurement in repeats.measure([artifact], [trial]):
        if measurement.error is None or not math.isfinite(median_sec):
            median_sec = measurement.median_sec
    return median_sec


def _ms(sec: float | None) -> float | None:
    return sec * 1e3 if sec is not None and math.isfinite(sec) else None


async def _in_pool(pool: Pool, fn: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    return await asyncio.wrap_future(pool.submit_within(_COMPILE_TIMEOUT_SEC, fn, *args, **kwargs))
