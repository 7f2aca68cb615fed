"""`fleet.tune`: tunes a model that exists in Python.

job = fleet.tune(module, (torch.randn(1, 3, 224, 224),), trials=64)
print(job.model.tuned_ms)
job.plot()      # in a notebook: the curves; `job` itself is the whole page
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Self

from fleet.base.scratch import scratch_dir
from fleet.jobs.options import UNTIL_GAIN, TuneOptions
from fleet.jobs.report import TuneReport
from fleet.models.from_python import model_file
from fleet.models.importing.shapes import Shapes
from fleet.optimizer.core.progress import JobProgress
from fleet.optimizer.tune import tune as run_job
from fleet.reports.plot import Svg
from fleet.reports.report import Report, report

if TYPE_CHECKING:
    from torch import Tensor

    from fleet.models.from_python import PythonModel


@dataclass(frozen=True, kw_only=True, repr=False)
class TunedJob(TuneReport):
    """Result of a job, with its curves. In a notebook it shows itself as a page."""

    report: Report = field(repr=False, compare=False)
    """The page: `html()`, `markdown()`, `text()`."""

    @classmethod
    def of(cls, ended: TuneReport, report: Report) -> Self:
        """Join a job's final report and its page."""
        return cls(report=report, **{each.name: getattr(ended, each.name) for each in fields(ended)})

    def plot(self) -> Svg:
        """Return the curves, see `fleet.Report.plot`."""
        return self.report.plot()

    def to_json(self) -> dict[str, object]:
        """Return plain values, with the keys of `fleet tune --json` and without the page."""
        return TuneReport(**{each.name: getattr(self, each.name) for each in fields(TuneReport)}).to_json()

    def _repr_html_(self) -> str:
        return self.report._repr_html_()


def tune(
    model: PythonModel,
    example_inputs: Sequence[Tensor] = (),
    *,
    on: str = "cpu",
    trials: int | None = None,
    minutes: float | None = None,
    until_gain: float = UNTIL_GAIN,
    tracker: str | None = None,
    library: str | os.PathLike[str] | None = None,
    shapes: Shapes | Sequence[Shapes] = (),
    batch_size: int | None = None,
    seed: int = 0,
) -> TunedJob:
    """Tune a model as `fleet tune` does, and return the result. Blocks; works inside a running event loop, too.

    Args:
        model: a model file, a model of the package onnx, or a PyTorch module (of Keras 3 on the torch backend, too).
        example_inputs: for a module, tensors of the shapes that it is tuned for.
        on: selector of the device.
        trials: candidates to measure; None: 32 for each workload; 0: only the static schedules.
        minutes: search time, with as many trials as fit unless `trials` limits them; None: no limit.
        until_gain: share of the latency; stop once the next tenth of the trials or minutes should gain less; 0: never.
        tracker: address of a running fleet; None: one for this machine, while it lasts.
        library: file or URL of the library; None: your own.
        shapes: shape by input name, for inputs with unknown dimensions; several of them: it is tuned for each.
        batch_size: size of every input's open first dimension.
        seed: the same one gives the same proposals.

    Raises:
        InvalidRequest: a module without example inputs; a shape that does not fit the model.
        FleetError: the job failed; all finished trials are in the library.
    """
    with scratch_dir("model") as folder:
        options = TuneOptions(
            model=model_file(model, example_inputs, folder),
            selector=on,
            trials=trials,
            minutes=minutes,
            until_gain=until_gain,
            tracker=tracker,
            library=None if library is None else os.fspath(library),
            shapes=[shapes] if isinstance(shapes, Mapping) else shapes,
            input_batch_size=batch_size,
            seed=seed,
        )
        job = run_job(options, JobProgress(), started_at=time.monotonic())
        with ThreadPoolExecutor(1) as executor:
            ended = executor.submit(asyncio.run, job).result()
    return TunedJob.of(ended, report(ended.job, library=library))
