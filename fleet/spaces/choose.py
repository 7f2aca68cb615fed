"""Chooses schedules for a function: the static one without any trial, and the others in the order worth trying.

A function has at most one product that counts; its tile is the choice. Everything else has one good schedule.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from fleet.graph.marking import ATTRIBUTE as CONSTANTS
from fleet.spaces.blocks import Product, Role, child_blocks, find_product
from fleet.spaces.facts import ProcessorFacts, processor_facts
from fleet.spaces.functions import with_arithmetic_functions
from fleet.spaces.indices import with_narrow_indices
from fleet.spaces.inlining import inline_all
from fleet.spaces.product import schedule_product
from fleet.spaces.simple import schedule_rest
from fleet.spaces.tiles import Tile, tiles

if TYPE_CHECKING:
    from tvm.ir import IRModule
    from tvm.s_tir import Schedule
    from tvm.s_tir.schedule import SBlockRV


def static_schedule(mod: IRModule, target_json: str) -> Schedule | None:
    """Return the best schedule that can be told without a measurement; None if there is none for this target.

    Args:
        mod: one function, "main".
        target_json: None of the GPUs has schedules here; TVM's own rules serve them.
    """
    return next(schedules(mod, target_json), None)


def schedules(mod: IRModule, target_json: str) -> Iterator[Schedule]:
    """Return all schedules of a function's space, the most promising first. The first is the static one."""
    facts = processor_facts(target_json)
    if facts is None or not _is_plain(mod):
        return
    choices: list[Tile | None] = [*_choices(mod, facts)]
    for tile in choices or [None]:
        yield _apply(mod, facts, tile)


def finished(scheduled: IRModule, target_json: str) -> IRModule:
    """Return a scheduled module as it is compiled: functions become vectors' arithmetic, loops split at borders.

    No step of a schedule can say this, and a schedule that is kept must mean the same program when it is replayed. So
    everyone who compiles one finishes it; references stay as they are.
    """
    if processor_facts(target_json) is None:
        return scheduled
    return with_narrow_indices(with_arithmetic_functions(scheduled))


def _choices(mod: IRModule, facts: ProcessorFacts) -> list[Tile]:
    from tvm.s_tir import Schedule

    schedule = Schedule(mod)
    products = [find_product(schedule.get(block)) for block in child_blocks(schedule)]
    return max((_tiles(product, facts) for product in products if product is not None), key=len, default=[])


def _tiles(product: Product, facts: ProcessorFacts) -> list[Tile]:
    has_columns = bool(product.axes) and any(axis.role is Role.COLUMN for axis in product.axes)
    is_last = [axis.role for axis in product.axes if axis.role is not Role.SUM][-1:] == [Role.COLUMN]
    return tiles(product, facts) if has_columns and is_last and product.extent(Role.SUM) > 1 else []


def _apply(mod: IRModule, facts: ProcessorFacts, tile: Tile | None) -> Schedule:
    from tvm.s_tir import Schedule

    schedule = Schedule(mod)
    blocks = [schedule.get(block) for block in child_blocks(schedule)]
    products = {block.name_hint: find_product(block) for block in blocks}
    tiled = {name: _tiles(product, facts) for name, product in products.items() if product is not None}
    main = max(tiled, key=lambda name: len(tiled[name]), default="")
    inline_all(schedule, frozenset(name for name, choices in tiled.items() if choices))
    constants = _constants(mod)
    for block in child_blocks(schedule):
        name = schedule.get(block).name_hint
        product = products.get(name)
        if product is not None and tiled.get(name):
            choice = tile if name == main and tile is not None else tiled[name][0]
            packs = _weights_parameter(schedule, block, product, mod) in constants
            schedule_product(schedule, block, product, choice, packs=packs)
    return schedule_rest(schedule, facts)


def _is_plain(mod: IRModule) -> bool:
    """Tell whether a function consists of blocks with loops of fixed size, as a compiler made them."""
    from tvm.s_tir import SBlockRealize, Schedule
    from tvm.tirx import IntImm

    schedule = Schedule(mod)
    if not isinstance(mod["main"].body, SBlockRealize) or mod["main"].body.block.name_hint != "root":
        return False  # an opaque function, such as a scan
    blocks = child_blocks(schedule)
    return bool(blocks) and all(
        isinstance(iterator.dom.extent, IntImm) for block in blocks for iterator in schedule.get(block).iter_vars
    )


def _constants(mod: IRModule) -> frozenset[int]:
    attributes = mod["main"].attrs
    return frozenset(int(index) for index in (attributes[CONSTANTS] if attributes and CONSTANTS in attributes else ()))


def _weights_parameter(schedule: Schedule, block: SBlockRV, product: Product, mod: IRModule) -> int | None:
    """Return which parameter a product's weights are; None if they are computed within the function."""
    weights = schedule.get(block).reads[product.weights].source
    return next((i for i, param in enumerate(mod["main"].params) if param.name == weights.name), None)
