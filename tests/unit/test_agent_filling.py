"""Values that fill a trial's arguments."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_agents.runtimes.filling import MAX_BYTES, random_content

DTYPES = {
    name: np.dtype(getattr(ml_dtypes, name, None) or name)
    for name in (
        *("float16", "float32", "float64", "bfloat16", "bool"),
        *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    )
}
dtypes = st.sampled_from(sorted(DTYPES))


@given(dtypes, st.integers(0, 50_000), st.integers(0, 40))
def test_numbers_fill_the_whole_tensor(name: str, count: int, index: int) -> None:
    """For any size and type, each number is in the promised range, and they vary."""
    dtype = DTYPES[name]

    content = random_content(name, count * dtype.itemsize, index)

    assert content is not None
    values = np.frombuffer(content, dtype).astype("float64")
    assert values.shape == (count,)
    assert count == 0 or 0 <= values.min() <= values.max() <= 10
    assert name == "bool" or count == 0 or values.min() >= 1
    assert len(set(values)) > 1 or count < 20


@given(dtypes, st.integers(1000, 50_000))
def test_arguments_differ_and_trials_do_not(name: str, count: int) -> None:
    """A kernel that subtracts two inputs gets no zeros; two candidates get the same inputs."""
    size_bytes = count * DTYPES[name].itemsize

    first, second = (random_content(name, size_bytes, index) for index in range(2))

    assert first != second
    assert random_content(name, size_bytes, 0) == first


def test_vectors_are_filled_like_their_elements() -> None:
    """Lanes only add a dimension."""
    assert random_content("float32x4", 64, 1) == random_content("float32", 64, 1)


@pytest.mark.parametrize(("name", "size_bytes"), [("int4", 16), ("float8_e4m3fn", 16), ("float32", MAX_BYTES + 4)])
def test_unsupported_fills_are_left_to_tvm(name: str, size_bytes: int) -> None:
    """The result is None instead of a wrong fill."""
    assert random_content(name, size_bytes, 0) is None
