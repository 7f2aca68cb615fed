"""Programs for GPUs before they are tuned: a plain loop nest does not run there, so TVM's default rules schedule it.

The result is what an untuned operator costs, and the reference that candidates are compared with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cross.targets.intrinsics import load_intrinsics
from cross.targets.target import make_target

if TYPE_CHECKING:
    from tvm.ir import IRModule

_GPU = "gpu"
"""Key of every target whose kernels run in blocks of threads: cuda, rocm, opencl, vulkan, metal."""


def needs_schedule(target_json: str) -> bool:
    """Tell whether a target cannot run unscheduled programs."""
    return _GPU in make_target(target_json).keys


def default_schedule(mod: IRModule, target_json: str) -> IRModule:
    """Return a module whose functions run on the target: scheduled by TVM's default rules where it is a GPU.

    Functions that are scheduled already, and modules for CPUs, stay as they are.
    """
    if not needs_schedule(target_json):
        return mod
    load_intrinsics(target_json)
    from tvm.s_tir import dlight

    rules = dlight.gpu
    with make_target(target_json):
        return dlight.ApplyDefaultSchedule(
            rules.Matmul(), rules.GEMV(), rules.Reduction(), rules.GeneralReduction(), rules.Fallback()
        )(mod.clone())  # the rules modify the module that they are given
