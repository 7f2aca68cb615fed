"""A fleet of devices for tuning tensor programs.

    import fleet
    with fleet.connect("127.0.0.1:9290") as client, client.acquire("cpu") as device:
        module = device.load("matmul.so")
        timing = module.time("main", args, min_repeat_ms=50)

`fleet.aio` has the same under the same names for asyncio. Names are imported when first used, so that `import fleet`
costs nothing and needs neither TVM nor numpy.
"""

from __future__ import annotations

import importlib
import os

TYPE_CHECKING = False  # instead of typing's: importing typing would delay the handling of Ctrl-C
if TYPE_CHECKING:
    from fleet import aio, errors, runtime
    from fleet.artifacts.artifact import Artifact
    from fleet.client.sync import Device, Fleet, RemoteModule, connect, held_device
    from fleet.domain.measuring import ErrorKind, Evaluator, Measurement, ModuleKind, TensorSpec, Trial
    from fleet.errors import FleetError
    from fleet.export.compiling import CompiledModel, compile  # noqa: A004 - the name that users look for
    from fleet.export.pipeline import pipeline, tir_pipeline
    from fleet.export.scheduling import design_space, schedule
    from fleet.optimizer.from_python import TunedJob, tune
    from fleet.reports.report import Report, report

# gRPC reads this when it is first imported. Otherwise its C code writes to stderr: a line for every failed connection,
# which is also raised as an error, and text of peers, which could look like our log.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

__all__ = [
    "Artifact",
    "CompiledModel",
    "Device",
    "ErrorKind",
    "Evaluator",
    "Fleet",
    "FleetError",
    "Measurement",
    "ModuleKind",
    "RemoteModule",
    "Report",
    "TensorSpec",
    "Trial",
    "TunedJob",
    "aio",
    "compile",
    "connect",
    "design_space",
    "errors",
    "held_device",
    "pipeline",
    "report",
    "runtime",
    "schedule",
    "tir_pipeline",
    "tune",
]

_HOMES = {
    "Artifact": "fleet.artifacts.artifact",
    "CompiledModel": "fleet.export.compiling",
    "Device": "fleet.client.sync",
    "ErrorKind": "fleet.domain.measuring",
    "Evaluator": "fleet.domain.measuring",
    "Fleet": "fleet.client.sync",
    "FleetError": "fleet.errors",
    "Measurement": "fleet.domain.measuring",
    "ModuleKind": "fleet.domain.measuring",
    "RemoteModule": "fleet.client.sync",
    "TensorSpec": "fleet.domain.measuring",
    "Report": "fleet.reports.report",
    "Trial": "fleet.domain.measuring",
    "TunedJob": "fleet.optimizer.from_python",
    "compile": "fleet.export.compiling",
    "connect": "fleet.client.sync",
    "design_space": "fleet.export.scheduling",
    "held_device": "fleet.client.sync",
    "tune": "fleet.optimizer.from_python",
    "pipeline": "fleet.export.pipeline",
    "report": "fleet.reports.report",
    "schedule": "fleet.export.scheduling",
    "tir_pipeline": "fleet.export.pipeline",
}
_MODULES = ("aio", "errors", "runtime")


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return importlib.import_module(f"fleet.{name}")
    if name in _HOMES:
        try:
            return getattr(importlib.import_module(_HOMES[name]), name)
        except ModuleNotFoundError as error:
            from fleet.base.extras import advice_for
            from fleet.errors import ConfigError

            if advice := advice_for(error):
                raise ConfigError(f"fleet.{name} needs the package {error.name}; {advice}") from error
            raise
    raise AttributeError(f"module 'fleet' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
