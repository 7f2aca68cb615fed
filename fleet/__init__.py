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
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fleet import aio, errors
    from fleet.artifacts import Artifact
    from fleet.client.sync import Device, Fleet, RemoteModule, connect, held_device
    from fleet.errors import FleetError
    from fleet.measuring import ErrorKind, Evaluator, Measurement, ModuleKind, TensorSpec, Trial

__all__ = [
    "Artifact",
    "Device",
    "ErrorKind",
    "Evaluator",
    "Fleet",
    "FleetError",
    "Measurement",
    "ModuleKind",
    "RemoteModule",
    "TensorSpec",
    "Trial",
    "aio",
    "connect",
    "errors",
    "held_device",
]

_HOMES = {
    "Artifact": "fleet.artifacts",
    "Device": "fleet.client.sync",
    "ErrorKind": "fleet.measuring",
    "Evaluator": "fleet.measuring",
    "Fleet": "fleet.client.sync",
    "FleetError": "fleet.errors",
    "Measurement": "fleet.measuring",
    "ModuleKind": "fleet.measuring",
    "RemoteModule": "fleet.client.sync",
    "TensorSpec": "fleet.measuring",
    "Trial": "fleet.measuring",
    "connect": "fleet.client.sync",
    "held_device": "fleet.client.sync",
}
_MODULES = ("aio", "errors")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"fleet.{name}")
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'fleet' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
