"""Instruction sets, by which the cost model finds sibling device models."""

from __future__ import annotations

import json

import pytest

from cross.targets.boards import find_board
from cross.targets.target import parse_target

X86 = "x86_64-linux-gnu"


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ({"mtriple": X86, "mcpu": "x86-64-v4", "mattr": ["+avx512vnni"]}, "avx512 vnni"),
        ({"mtriple": X86, "mcpu": "x86-64-v4"}, "avx512"),
        ({"mtriple": X86, "mcpu": "znver3", "num-cores": 8}, "avx2"),
        ({"mtriple": X86, "mcpu": "x86-64-v3", "mattr": ["+avxvnni"]}, "avx2 vnni"),
        ({"mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a72"}, "neon"),
        ({"mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a76"}, "neon dotprod"),
        ({"mtriple": "riscv64-linux-gnu"}, "riscv64"),
        ({"kind": "cuda", "arch": "sm_86"}, "cuda sm_86"),
    ],
)
def test_a_target_lists_the_instructions_of_its_code(target: dict[str, object], name: str) -> None:
    """An instruction set is the widest vectors and dot products; cores and other details do not count."""
    assert parse_target(json.dumps({"kind": "llvm", **target})).instruction_set == name


def test_boards_with_the_same_core_are_siblings() -> None:
    """A Pi 3 and a Pi 4 differ in much, but not in their instructions; a Pi 5 has dot products."""
    boards = map(find_board, ("rpi3-64", "rpi4-64", "rpi5-64"))
    pi3, pi4, pi5 = (parse_target(board.target_json).instruction_set for board in boards)

    assert pi3 == pi4 != pi5
