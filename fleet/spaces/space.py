"""Chooses schedules for a function: the static one without any trial, and the others in the order worth trying.

A function has at most one product that counts; its tile is the choice, with that of the stages around it where it is a
Winograd convolution's. Without a product, the tile of its rows, or of its largest reduction by columns, is. Everything
else has one good schedule.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cross.targets.integer_units import IntegerUnit
from cross.targets.target import Target
from fleet.graph.marking import ATTRIBUTE as CONSTANTS
from fleet.graph.winograd import WinogradStage
from fleet.spaces.attention import attention_choices, attention_schedules, is_attention
from fleet.spaces.blocks import Product, Role, child_blocks, find_product
from fleet.spaces.design_space import Space
from fleet.spaces.facts import ProcessorFacts, processor_facts
from fleet.spaces.fallback_rules import main_reduction, schedule_rest
from fleet.spaces.indices import with_narrow_indices
from fleet.spaces.inlining import inline_all
from fleet.spaces.int8 import dot_tiles, schedule_dot_product, use_instruction
from fleet.spaces.loops import add_missing_loops
from fleet.spaces.padding import padded_columns
from fleet.spaces.product import Placed, finish_product, place_product, schedule_product
from fleet.spaces.recurrent import is_recurrence, recurrence_schedule
from fleet.spaces.tiles import Tile, tiles
from fleet.spaces.vector_math.rewriting import with_arithmetic_functions
from fleet.spaces.winograd import cuts, winograd_schedules, winograd_stages

if TYPE_CHECKING:
    from tvm.ir import IRModule
    from tvm.s_tir import Schedule
    from tvm.s_tir.schedule import SBlockRV


def static_schedule(mod: IRModule, target: Target) -> Schedule | None:
    """Return the best schedule that can be told without a measurement; None if there is none for this target.

    Args:
        mod: one function, "main".
        target: None of the GPUs has schedules here; TVM's own rules serve them.
    """
    return next(schedules(mod, target), None)


def schedules(mod: IRModule, target: Target) -> Iterator[Schedule]:
    """Yield all schedules of a function's space, the most promising first. The first is the static one."""
    space = space_of(mod, target)
    if space is not None:
        yield from space.schedules_at(range(len(space.choices)))


def space_of(mod: IRModule, target: Target) -> Space | None:
    """Return a function's space; None if there is none for this target."""
    facts = processor_facts(target)
    return None if facts is None else space_on(mod, facts)


def space_on(mod: IRModule, facts: ProcessorFacts) -> Space | None:
    """Return a function's space on a processor; None for an opaque function or one with open sizes."""
    from tvm.s_tir import Schedule

    if not _is_plain(mod):
        return None
    if is_attention(mod):
        of_attention = attention_choices(mod, facts)
        return Space(
            rule="attention",
            choices=tuple(of_attention),
            schedules_at=lambda places: attention_schedules(mod, facts, [of_attention[place] for place in places]),
        )
    if is_recurrence(mod):
        return Space(rule="recurrence", choices=(), schedules_at=lambda _: iter([recurrence_schedule(mod, facts)]))
    stages = winograd_stages(Schedule(mod))
    if stages:
        return _winograd_space(mod, facts, stages)
    tiled = _tiled_products(mod, facts, facts.integer_unit)
    if not tiled:
        return _rest_space(mod, facts)
    main = max(tiled, key=lambda name: len(tiled[name].tiles))
    found = tiled[main].tiles
    return Space(
        rule="product",
        choices=tuple(found),
        schedules_at=lambda places: _tiled_schedules(mod, facts, tiled, main, [found[place] for place in places]),
    )


def finished(scheduled: IRModule, target: Target) -> IRModule:
    """Return a scheduled module as it is compiled: functions become vectors' arithmetic, loops split at borders.

    No step of a schedule can say this, and a schedule that is kept must mean the same program when it is replayed. So
    everyone who compiles one finishes it; references stay as they are.
    """
    if processor_facts(target) is None:
        return scheduled
    return with_narrow_indices(with_arithmetic_functions(scheduled))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tiled:
    """A product of a function, and what it can be cut into."""

    product: Product
    tiles: list[Tile]
    unit: IntegerUnit | None
    """The instruction that computes it, where that is one of 8-bit integers."""


def _tiled_products(mod: IRModule, facts: ProcessorFacts, unit: IntegerUnit | None) -> dict[str, _Tiled]:
    """Return the products of a function that have tiles, by the name of their block."""
    from tvm.s_tir import Schedule

    schedule, constants = Schedule(mod), _constants(mod)
    found = {}
    for block in child_blocks(schedule):
        product = find_product(schedule.get(block))
        if product is None or not _is_tiled(product):
            continue
        if unit is not None and _weights_parameter(schedule, block, product, mod) in constants:
            dots = dot_tiles(product, facts, unit)
        else:
            dots = []
        choices = dots or tiles(product, facts)
        if choices:
            name = schedule.get(block).name_hint
            found[name] = _Tiled(product=product, tiles=choices, unit=unit if dots else None)
    return found


def _is_tiled(product: Product) -> bool:
    last = [axis.role for axis in product.axes if axis.role is not Role.SUM][-1:]
    return last == [Role.COLUMN] and product.extent(Role.SUM) > 1


def _tiled_schedules(
    mod: IRModule, facts: ProcessorFacts, tiled: Mapping[str, _Tiled], main: str, wanted: Sequence[Tile]
) -> Iterator[Schedule]:
    """Yield the schedules in which one product has each of some tiles, and the others have their best."""
    if len(tiled) == 1 and tiled[main].unit is None:
        yield from _product_schedules(mod, facts, main, replace(tiled[main], tiles=list(wanted)))
        return
    first = {name: found.tiles[0] for name, found in tiled.items()}
    for tile in wanted:
        yield _apply(mod, facts, tiled, {**first, main: tile})


def _product_schedules(mod: IRModule, facts: ProcessorFacts, name: str, found: _Tiled) -> Iterator[Schedule]:
    """Yield the schedules of a function's only product, one for each tile.

    Tiles that differ only in how many steps are written out begin alike. That is done once, and copied: it is most of
    what a schedule takes.
    """
    from tvm.s_tir import Schedule

    begun = Schedule(mod)
    inline_all(begun, frozenset([name]))
    block = next(block for block in child_blocks(begun) if begun.get(block).name_hint == name)
    packs = _weights_parameter(begun, block, found.product, mod) in _constants(mod)
    left = Counter(map(_without_unrolling, found.tiles))
    placed: dict[Tile, tuple[Schedule, Placed]] = {}
    for tile in found.tiles:
        alike = _without_unrolling(tile)
        if tile.depth:
            schedule = begun.copy()
            schedule_product(schedule, block, found.product, tile, packs=packs)
        else:
            if alike not in placed:
                schedule = begun.copy()
                placed[alike] = schedule, place_product(schedule, block, found.product, tile, packs=packs)
            left[alike] -= 1
            common, where = placed[alike] if left[alike] else placed.pop(alike)
            schedule = common.copy()
            finish_product(schedule, where, found.product, tile)
        yield schedule_rest(schedule, facts)


def _without_unrolling(tile: Tile) -> Tile:
    return replace(tile, unroll=1)


def _apply(mod: IRModule, facts: ProcessorFacts, tiled: Mapping[str, _Tiled], chosen: Mapping[str, Tile]) -> Schedule:
    """Return the schedule in which each product, by the name of its block, has the chosen tile."""
    from tvm.s_tir import Schedule

    schedule = Schedule(mod)
    inline_all(schedule, frozenset(tiled))
    constants = _constants(mod)
    for block in child_blocks(schedule):
        name = schedule.get(block).name_hint
        if name not in tiled:
            continue
        found, choice = tiled[name], chosen[name]
        if found.unit is not None:
            schedule_dot_product(schedule, block, found.product, choice, found.unit)
        else:
            packs = _weights_parameter(schedule, block, found.product, mod) in constants
            schedule_product(schedule, block, found.product, choice, packs=packs)
    schedule = schedule_rest(schedule, facts)
    for name, found in tiled.items():
        if found.unit is not None:
            use_instruction(schedule, name, chosen[name], found.unit)
    return schedule


def _winograd_space(mod: IRModule, facts: ProcessorFacts, stages: Mapping[WinogradStage, str]) -> Space | None:
    from tvm.s_tir import Schedule

    schedule = Schedule(mod)
    block = schedule.get_sblock(stages[WinogradStage.PRODUCT])
    product = find_product(schedule.get(block))
    if product is None:
        return None
    packs = _weights_parameter(schedule, block, product, mod) in _constants(mod)
    choices = cuts(product, facts)

    def schedules_at(places: Sequence[int]) -> Iterator[Schedule]:
        wanted = [choices[place] for place in places]
        for found in winograd_schedules(Schedule(mod), stages, product, wanted, facts, packs=packs):
            yield schedule_rest(found, facts)

    return Space(rule="winograd", choices=tuple(choices), schedules_at=schedules_at)


def _rest_space(mod: IRModule, facts: ProcessorFacts) -> Space:
    """Return the space of a function without tiled products: the tiles of its main reduction."""
    from tvm.s_tir import Schedule

    schedule = Schedule(mod)
    inline_all(schedule, frozenset(), kept=padded_columns(schedule))
    add_missing_loops(schedule)
    main, tiles = main_reduction(schedule.copy(), facts)

    def schedules_at(places: Sequence[int]) -> Iterator[Schedule]:
        for chosen in [{main: tiles[place]} for place in places] if tiles else [{}]:
            yield schedule_rest(schedule.copy(), facts, chosen)  # even a look at its blocks is a step of a trace

    return Space(rule="reduction" if tiles else "elementwise", choices=tuple(tiles), schedules_at=schedules_at)


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
