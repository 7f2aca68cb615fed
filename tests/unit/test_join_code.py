"""The code that an agent and an admin compare."""

from __future__ import annotations

import re
from itertools import combinations

import pytest

from fleet.identity.join_code import commitment_to, grouped, join_code, make_number

_PIN, _KEY_ID, _AGENT, _TRACKER = bytes(32), 40 * "a", b"a" * 16, b"t" * 16


def test_a_code_is_three_groups_of_base32() -> None:
    """60 bits: 12 characters of 5 bits."""
    assert re.fullmatch(r"([A-Z2-7]{4}-){2}[A-Z2-7]{4}", join_code(_PIN, _KEY_ID, make_number(), make_number()))


def test_a_code_depends_on_both_sides_and_both_numbers() -> None:
    """A peer in the middle differs in at least one of the four."""
    codes = [
        join_code(_PIN, _KEY_ID, _AGENT, _TRACKER),
        join_code(b"p" * 32, _KEY_ID, _AGENT, _TRACKER),
        join_code(_PIN, 40 * "b", _AGENT, _TRACKER),
        join_code(_PIN, _KEY_ID, b"b" * 16, _TRACKER),
        join_code(_PIN, _KEY_ID, _AGENT, b"u" * 16),
    ]

    assert all(one != other for one, other in combinations(codes, 2))


@pytest.mark.parametrize("typed", ["k7qx-2m4d-pz5a", "K7QX2M4DPZ5A", " k7qx 2m4d pz5a\n"])
def test_a_code_may_be_typed_in_several_ways(typed: str) -> None:
    """Case, spaces and hyphens do not matter."""
    assert grouped(typed) == "K7QX-2M4D-PZ5A"


def test_commitments_differ() -> None:
    """Different numbers have different commitments."""
    assert commitment_to(_AGENT) != commitment_to(_TRACKER)
