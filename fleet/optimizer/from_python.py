"""`fleet.tune`: a model that exists in Python, tuned without a file in between.

report = fleet.tune(module, (torch.randn(1, 3, 224, 224),), trials=64)
print(report.model.tuned_ms)
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from fleet.base.scratch import scratch_dir
from fleet.models.from_python import model_file
from fleet.optimizer.core.progress import JobProgress
from fleet.optimizer.job import TuneOptions, TuneReport
from fleet.optimizer.service import tune as run_job

if TYPE_CHECKING:
    from torch import Tensor

    from fleet.models.from_python import PythonModel


def tune(
    model: PythonModel, example_inputs: Sequence[Tensor] = (), *, options: TuneOptions | None = None
) -> TuneReport:
    """Tune a model as `fleet tune` does, and return its report. Blocks; also where an event loop runs.

    Args:
        model: a model file, a model of the package onnx, or a PyTorch module (of Keras 3 on the torch backend, too).
        example_inputs: for a module, tensors of the shapes that it is tuned for.
        options: the device, trials and so on; their `model` is replaced. None: the defaults of `fleet tune`.

    Raises:
        InvalidRequest: a module without example inputs.
        FleetError: the job failed; all finished trials are in the library.
    """
    with scratch_dir("model") as folder:
        path = model_file(model, example_inputs, folder)
        wanted = replace(options, model=path) if options is not None else TuneOptions(model=path)
        job = run_job(wanted, JobProgress(), started_at=time.monotonic())
        with ThreadPoolExecutor(1) as executor:
            return executor.submit(asyncio.run, job).result()
