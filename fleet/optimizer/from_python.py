"""`fleet.tune`: a model that exists in Python, tuned without a file in between.

report = fleet.tune(module, (torch.randn(1, 3, 224, 224),), trials=64)
print(report.model.tuned_ms)
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from fleet.base.scratch import scratch_dir
from fleet.models.from_python import model_file
from fleet.models.importing.shapes import Shapes
from fleet.optimizer.core.progress import JobProgress
from fleet.optimizer.job import TuneOptions, TuneReport
from fleet.optimizer.service import tune as run_job

if TYPE_CHECKING:
    from torch import Tensor

    from fleet.models.from_python import PythonModel


def tune(
    model: PythonModel,
    example_inputs: Sequence[Tensor] = (),
    *,
    on: str = "cpu",
    trials: int | None = None,
    tracker: str | None = None,
    library: str | os.PathLike[str] | None = None,
    shapes: Shapes | Sequence[Shapes] = (),
    batch_size: int | None = None,
    seed: int = 0,
) -> TuneReport:
    """Tune a model as `fleet tune` does, and return its report. Blocks; also where an event loop runs.

    Args:
        model: a model file, a model of the package onnx, or a PyTorch module (of Keras 3 on the torch backend, too).
        example_inputs: for a module, tensors of the shapes that it is tuned for.
        on: selector of the device.
        trials: candidates to measure; None: 32 for each workload; 0: only the static schedules.
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
            tracker=tracker,
            library=None if library is None else os.fspath(library),
            shapes=[shapes] if isinstance(shapes, Mapping) else shapes,
            input_batch_size=batch_size,
            seed=seed,
        )
        job = run_job(options, JobProgress(), started_at=time.monotonic())
        with ThreadPoolExecutor(1) as executor:
            return executor.submit(asyncio.run, job).result()
