"""Default schedules of programs before tuning, for the untuned time and for reference outputs.

On GPUs a plain loop nest does not run, so TVM's default rules schedule it. On processors it runs, but a sum of products
in the order in which it was written takes up to a minute in a large model. So its loops are put into an order that
compilers vectorize, and shared among the cores; nothing is tiled, packed or fused. It stays independent of the design
spaces that it checks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cross.targets.intrinsics import load_intrinsics
from cross.targets.target import Target, make_target
from fleet.spaces.blocks import Role, child_blocks, find_product
from fleet.spaces.facts import gpu_facts
from fleet.spaces.gpu_defaults import default_rules

if TYPE_CHECKING:
    from tvm.ir import IRModule
    from tvm.s_tir import Schedule
    from tvm.s_tir.schedule import SBlockRV
    from tvm.tirx import PrimFunc


def needs_schedule(target: Target) -> bool:
    """Tell whether a target cannot run unscheduled programs."""
    return gpu_facts(target) is not None


def default_schedule(mod: IRModule, target: Target) -> IRModule:
    """Return a module whose functions run on the target. Functions with a schedule are unchanged."""
    return _on_gpu(mod, target) if needs_schedule(target) else _on_processor(mod)


def _on_gpu(mod: IRModule, target: Target) -> IRModule:
    load_intrinsics(target)
    from tvm.s_tir import dlight

    with make_target(target):  # the rules modify the given module
        return dlight.ApplyDefaultSchedule(*default_rules())(mod.clone())


def _on_processor(mod: IRModule) -> IRModule:
    from tvm.tirx import PrimFunc

    changed = mod.clone()
    for name, function in mod.functions.items():
        if isinstance(function, PrimFunc):
            changed[name] = reorder_products(function)
    return changed


def reorder_products(function: PrimFunc) -> PrimFunc:
    """Return a function whose sums of products have the columns innermost, in parallel over the other axes."""
    import tvm
    from tvm.s_tir import Schedule

    schedule = Schedule(tvm.IRModule({"main": function}))
    for block in child_blocks(schedule):
        _reorder(schedule, block)
    return schedule.mod["main"].with_attrs(function.attrs) if function.attrs else schedule.mod["main"]


def _reorder(schedule: Schedule, block: SBlockRV) -> None:
    product = find_product(schedule.get(block))
    loops = list(schedule.get_loops(block))
    if product is None or len(loops) != len(product.axes):
        return
    sums = [loop for loop, axis in zip(loops, product.axes, strict=True) if axis.role is Role.SUM]
    spatial = [loop for loop, axis in zip(loops, product.axes, strict=True) if axis.role is not Role.SUM]
    if len(spatial) < 2 or not sums:
        return
    schedule.reorder(*spatial[:-1], *sums, spatial[-1])
    schedule.parallel(schedule.fuse(*spatial[:-1]))
    schedule.decompose_reduction(block, sums[0])
