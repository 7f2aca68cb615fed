"""The design space of functions with products: matrix products, convolutions, and products of 8-bit integers.

A function has at most one product that counts. Its tile is the choice; other products have their best.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tvm.ir import IRModule
from tvm.s_tir import Schedule

from cross.targets.integer_units import IntegerUnit
from fleet.spaces.blocks import Product, Role, child_blocks, find_product, has_constant_weights
from fleet.spaces.design_space import Space
from fleet.spaces.facts import ProcessorFacts
from fleet.spaces.fallback_rules import schedule_rest
from fleet.spaces.inlining import inline_all
from fleet.spaces.int8 import dot_tiles, schedule_dot_product, use_instruction
from fleet.spaces.product import Placed, finish_product, place_product, schedule_product
from fleet.spaces.tiles import Tile, tiles


def product_space(mod: IRModule, facts: ProcessorFacts) -> Space | None:
    """Return the tiles of a function's main product; None if it has no product that can be tiled."""
    tiled = _tiled_products(mod, facts)
    if not tiled:
        return None
    main = max(tiled, key=lambda name: len(tiled[name].tiles))
    found = tiled[main].tiles
    return Space(
        rule="product",
        choices=tuple(found),
        schedules_at=lambda places: _tiled_schedules(mod, facts, tiled, main, [found[place] for place in places]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tiled:
    """A product of a function, and its possible tiles."""

    product: Product
    tiles: list[Tile]
    unit: IntegerUnit | None
    """Instruction that computes a product of 8-bit integers; None for all others."""


def _tiled_products(mod: IRModule, facts: ProcessorFacts) -> dict[str, _Tiled]:
    """Return the products of a function that have tiles, by block name."""
    schedule, unit, found = Schedule(mod), facts.integer_unit, {}
    for block in child_blocks(schedule):
        product = find_product(schedule.get(block))
        if product is None or not _is_tiled(product):
            continue
        if unit is not None and has_constant_weights(schedule, block, product, mod):
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

    Tiles that differ only in how many steps are written out begin alike. That is done once, and copied: it takes most
    of a schedule's time.
    """
    begun = Schedule(mod)
    inline_all(begun, frozenset([name]))
    block = next(block for block in child_blocks(begun) if begun.get(block).name_hint == name)
    packs = has_constant_weights(begun, block, found.product, mod)
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
    """Return the schedule in which each product, by block name, has the chosen tile."""
    schedule = Schedule(mod)
    inline_all(schedule, frozenset(tiled))
    for block in child_blocks(schedule):
        name = schedule.get(block).name_hint
        if name not in tiled:
            continue
        found, choice = tiled[name], chosen[name]
        if found.unit is not None:
            schedule_dot_product(schedule, block, found.product, choice, found.unit)
        else:
            packs = has_constant_weights(schedule, block, found.product, mod)
            schedule_product(schedule, block, found.product, choice, packs=packs)
    schedule = schedule_rest(schedule, facts)
    for name, found in tiled.items():
        if found.unit is not None:
            use_instruction(schedule, name, chosen[name], found.unit)
    return schedule
