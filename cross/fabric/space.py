"""MetaSchedule's design space of int8 products on a fabric: one design for each tile that fits the core.

    ms.tune_tir(mod, target, ..., space=tiles_space(), builder=FleetBuilder(), runner=FleetRunner(ADDRESS, "kind=zynq"))

Which order the tiles are multiplied in costs the fabric nothing, so there is nothing else to decide. Imports TVM.
"""

from __future__ import annotations

from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.schedule import SBlockRV, Schedule, ScheduleError

from cross.fabric.tiles import tile_product, tiles_for

_OPERANDS = ["int8", "int8"]
_SUMS = "int32"
_LOOPS = 3


@derived_object
class FabricTiles(ms.schedule_rule.PyScheduleRule):  # type: ignore[misc]
    """Offers, for a block that is an int8 product, every tiling; leaves other blocks as they are."""

    def _initialize_with_tune_context(self, context: ms.TuneContext) -> None:
        """Do nothing: the rule is the same in every context."""

    def apply(self, schedule: Schedule, block: SBlockRV) -> list[Schedule]:
        """Return one schedule per tiling."""
        extents = _product_extents(schedule, block)
        designs = []
        for tile in tiles_for(*extents) if extents is not None else ():
            design = schedule.copy()
            try:
                tile_product(design, design.get_sblock(schedule.get(block).name_hint), tile)
            # a product in another form, such as with transposed operands: the fabric has no call for it
            except ScheduleError:
                break
            designs.append(design)
        return designs or [schedule]

    def clone(self) -> FabricTiles:
        """Return a copy."""
        return FabricTiles()


def tiles_space() -> ms.SpaceGenerator:
    """Return the design space as the argument `space` of `tune_tir` and `TuneContext`."""
    return ms.space_generator.PostOrderApply(sch_rules=[FabricTiles()], postprocs=[], mutator_probs={})


def _product_extents(schedule: Schedule, block: SBlockRV) -> tuple[int, int, int] | None:
    """Return m, n, k of a block that sums products of two int8 matrices into int32, else None."""
    found = schedule.get(block)
    if found.init is None or [str(region.source.dtype) for region in found.writes] != [_SUMS]:
        return None
    if [str(region.source.dtype) for region in found.reads] != _OPERANDS:
        return None
    loops = [schedule.get(loop) for loop in schedule.get_loops(block)]
    if len(loops) != _LOOPS or any(len(region.source.shape) != 2 for region in (*found.reads, *found.writes)):
        return None
    m, n, k = (int(loop.extent) for loop in loops)
    return m, n, k
