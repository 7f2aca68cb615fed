"""Fragments in their stored form: read as strictly as those of a file."""

from __future__ import annotations

import json
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.errors import InvalidRequest
from fleet.fragments.fragment import Call, Fragment, Shape, Tensor
from fleet.fragments.stored import from_stored, to_stored
from fleet.fragments.workload_file import plain_fragment

FRAGMENT = Fragment(
    inputs=(Tensor(shape=(1, 4, 8), dtype="float32"),),
    weights=(Tensor(shape=(8, 16), dtype="float32"), Tensor(shape=(1,), dtype="float32", values=(0.5,))),
    calls=(
        Call(operator="reshape", operands=("i0", Shape(shape=(4, 8)))),
        Call(operator="matmul", operands=("c0", "w0"), attributes={"out_dtype": None}),
        Call(operator="add", operands=("c1", "w1")),
    ),
)


def stored(content: object) -> bytes:
    return zlib.compress(json.dumps(content).encode())


def test_a_fragment_survives_its_stored_form() -> None:
    """It takes a few hundred bytes."""
    content = to_stored(FRAGMENT)

    assert content is not None
    assert (from_stored(content), len(content) < 300) == (FRAGMENT, True)


def test_a_fragment_that_no_reader_accepts_is_not_stored() -> None:
    """Its text would be larger than the limit."""
    many = Call(operator="add", operands=("i0", tuple(range(20_000))))

    assert to_stored(Fragment(inputs=FRAGMENT.inputs, weights=(), calls=(many,))) is None


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is cut off"),
        (b"no zlib", "is not compressed JSON"),
        (zlib.compress(b"{"), "is not compressed JSON"),
        (zlib.compress(b"[" * 60_000), "is not compressed JSON"),
        (zlib.compress(b" " * 10**8), "has more than 65536 bytes"),
        (zlib.compress(b"{}" + b" " * 60_000)[:-30], "is cut off"),
        (stored([]), "expected an object"),
        (stored({"format": 1}), "expected an object"),
        (stored({"format": 2, "fragment": {}}), "a newer version may read this one"),
        (stored({"format": 1, "fragment": []}), "expected a mapping"),
        (stored({"format": 1, "fragment": {**plain_fragment(FRAGMENT), "calls": []}}), "calls: expected a list"),
        (stored({"format": 1, "fragment": {"inputs": [], "weights": [], "calls": [{}]}}), "is missing"),
    ],
)
def test_other_content_is_refused_with_a_sentence(content: bytes, says: str) -> None:
    """It is malformed, too large, or of a newer version."""
    with pytest.raises(InvalidRequest, match=says):
        from_stored(content)


@given(st.binary(max_size=200) | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(stored))
def test_no_content_raises_another_error(content: bytes) -> None:
    """Anybody with write access may have stored it."""
    with pytest.raises(InvalidRequest):
        from_stored(content)
