"""Tiles of reductions by columns: the estimate's preference on each processor, and limits of every tile."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from cross.targets.target import parse_target
from fleet.spaces.column_tiles import ColumnSums, column_tiles
from fleet.spaces.facts import ProcessorFacts, processor_facts
from fleet.spaces.tiles import Order

DEPTHWISE = ColumnSums(columns=576, lanes=16, is_grouped=False, row=14, window=3, stride=1, steps=3, has_weights=True)
"""A depthwise convolution, 3x3, with AVX-512."""

TARGETS: dict[str, dict[str, object]] = {
    "avx512": {"kind": "llvm", "mcpu": "x86-64-v4"},
    "avx2": {"kind": "llvm", "mcpu": "x86-64-v3"},
    "aarch64": {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mattr": ["+neon"]},
    "armv7": {"kind": "llvm", "mtriple": "armv7l-linux-gnueabihf", "mattr": ["+neon"], "mfloat-abi": "hard"},
}


def facts_of(name: str) -> ProcessorFacts:
    facts = processor_facts(parse_target(json.dumps(TARGETS[name])))
    assert facts is not None
    return facts


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("row", [1, 7, 14, 56])
@pytest.mark.parametrize("is_grouped", [False, True])
def test_tiles_leave_registers_for_operands(name: str, row: int, is_grouped: bool) -> None:
    """A tile that spills is slower than any that does not; there is always one, and each is offered once."""
    facts = facts_of(name)
    tiles = column_tiles(replace(DEPTHWISE, lanes=facts.lanes, row=row, is_grouped=is_grouped), facts)

    assert tiles
    assert max(tile.row * tile.vectors for tile in tiles) < facts.registers - 2
    assert len(tiles) == len(set(tiles))


@pytest.mark.parametrize(("row", "expected"), [(7, 7), (14, 7)])
def test_a_row_is_cut_without_remainder(row: int, expected: int) -> None:
    """A remainder would be a loop of its own, hardly faster than a whole tile."""
    best = column_tiles(replace(DEPTHWISE, row=row), facts_of("avx512"))[0]

    assert (expected, 1, 16) == (best.row, best.vectors, best.lanes)


def test_blocks_of_columns_are_outermost_where_windows_overlap() -> None:
    """The next rows find the shared part of their windows in the nearest cache; row by row, all columns would pass."""
    assert column_tiles(DEPTHWISE, facts_of("avx512"))[0].order is Order.COLUMNS


def test_rows_are_outermost_where_a_block_is_less_than_a_line() -> None:
    """With four lanes, the next three blocks would fetch the same lines again."""
    tiles = column_tiles(replace(DEPTHWISE, lanes=4), facts_of("aarch64"))

    assert {Order.ROWS} == {next(tile.order for tile in tiles if tile.vectors == 1)}
    assert Order.COLUMNS is next(tile.order for tile in tiles if tile.vectors == 4)


def test_both_orders_are_one_where_there_is_a_single_block() -> None:
    """Otherwise the search would measure one program twice."""
    assert {Order.ROWS} == {tile.order for tile in column_tiles(replace(DEPTHWISE, columns=16), facts_of("avx512"))}


@pytest.mark.parametrize(("columns", "vectors", "lanes"), [(1000, 5, 8), (40, 5, 8), (96, 6, 16), (512, 4, 16)])
def test_means_over_pixels_have_several_sums(columns: int, vectors: int, lanes: int) -> None:
    """A single one waits for its own last addition: 40 columns took two and a half times as long."""
    [tile] = column_tiles(replace(DEPTHWISE, columns=columns, row=1, has_weights=False), facts_of("avx512"))

    assert (1, vectors, lanes) == (tile.row, tile.vectors, tile.lanes)


def test_columns_without_a_vector_have_no_tile() -> None:
    """Three columns are left to the compiler."""
    assert column_tiles(replace(DEPTHWISE, columns=3), facts_of("avx512")) == []
