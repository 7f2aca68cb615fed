"""Adapters for MetaSchedule users: a stock script changes one argument.

    from fleet.metaschedule import FleetBuilder, FleetRunner, load_intrinsics

    load_intrinsics(target)   # optional: saves the 8-15 s in which TVM parses the intrinsics of every GPU
    ms.tune_tir(mod, target, ..., builder=FleetBuilder(), runner=FleetRunner("127.0.0.1:9290", "cpu"))

`space=FleetSpace(target)` adds the fleet's own schedules to the search.

Importing this does not import TVM; using one of its names does.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tvm.target import Target

    from fleet.metaschedule.builder import FleetBuilder
    from fleet.metaschedule.cost_model import FleetCostModel
    from fleet.metaschedule.database import FleetDatabase
    from fleet.metaschedule.runner import FleetRunner
    from fleet.metaschedule.space import FleetSpace

__all__ = [
    "FleetBuilder",
    "FleetCostModel",
    "FleetDatabase",
    "FleetRunner",
    "FleetSpace",
    "host_target",
    "load_intrinsics",
]

_HOMES = {
    "FleetBuilder": "fleet.metaschedule.builder",
    "FleetCostModel": "fleet.metaschedule.cost_model",
    "FleetDatabase": "fleet.metaschedule.database",
    "FleetRunner": "fleet.metaschedule.runner",
    "FleetSpace": "fleet.metaschedule.space",
}


def host_target() -> Target:
    """Return the target of this machine as `fleet tune` and `fleet build` use it, so that records match."""
    from cross.targets.target import host_target, make_target

    return make_target(host_target())


def load_intrinsics(target: object) -> None:
    """Load the tensor intrinsics of one target, so that TVM does not load those of all targets.

    Call it before the first tuning run of the process. Later runs in the same process for another family of targets
    need a call of their own.
    """
    from tvm.target import Target

    from cross.targets import intrinsics
    from cross.targets.target import parse_target

    intrinsics.load_intrinsics(parse_target(str(Target(target))))


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'fleet.metaschedule' has no attribute {name!r}")
