"""Tolerances for right answers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.checking.numerics import InputStyle, answer_tolerances, compare, make_inputs
from fleet.domain.measuring import TensorSpec
from fleet.optimizer.model_comparison import blame
from fleet.runtime.agreement import agree


def product(terms: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return a matrix product in float32 and the exact one, rounded."""
    rng = np.random.default_rng(seed)
    left, right = rng.standard_normal((8, terms)).astype("float32"), rng.standard_normal((terms, 8)).astype("float32")
    one_by_one = np.zeros((8, 8), "float32")
    for k in range(terms):
        one_by_one += np.outer(left[:, k], right[k])
    return one_by_one, (left.astype("float64") @ right).astype("float32")


@pytest.mark.parametrize("terms", [1, 10, 1000, 20000])
def test_another_order_of_summing_is_right(terms: int) -> None:
    """A sum added up one by one agrees with the exact one, however long it is."""
    ours, exact = product(terms)

    assert compare([ours], [exact], reduction_size=terms) is None


def test_one_sum_after_the_other_is_right() -> None:
    """The tolerance of a model with many layers covers the rounding errors of all of its sums."""
    rng = np.random.default_rng(0)
    layers = rng.standard_normal((30, 128, 128)) / np.sqrt(128)
    ours, exact = np.ones((1, 128), "float32"), np.ones((1, 128))
    for layer in layers:
        one_by_one = np.zeros_like(ours)
        for term in range(128):
            one_by_one += ours[:, term : term + 1] * layer[term].astype("float32")
        ours, exact = one_by_one, exact @ layer.astype("float32")

    assert compare([ours], [exact.astype("float32")], reduction_size=30 * 128) is None


@given(st.integers(0, 63), st.integers(0, 2**16))
def test_one_swapped_element_is_wrong(index: int, seed: int) -> None:
    """One element in another's place is found, and named."""
    ours, exact = product(50, seed % 100)
    other = (index + 1 + seed % 63) % 64
    ours.flat[[index, other]] = ours.flat[[other, index]]

    mismatch = compare([ours], [exact], reduction_size=50)

    is_visible = abs(exact.flat[index] - exact.flat[other]) > 1e-2
    assert not is_visible or (mismatch is not None and "2 of 64" in mismatch.text)


def test_left_out_term_is_wrong() -> None:
    """A sum that stops one term early is found."""
    rng = np.random.default_rng(1)
    left, right = rng.standard_normal((2, 64, 64)).astype("float32")

    assert compare([left[:, :-1] @ right[:-1]], [left @ right], reduction_size=64) is not None


def test_scale_does_not_matter() -> None:
    """The same relative error is judged alike for tiny and for huge numbers."""
    ours, exact = product(100)
    for scale in (1e-20, 1.0, 1e20):
        factor = np.float32(scale)
        assert compare([ours * factor], [exact * factor]) is None
        assert compare([exact * factor * np.float32(1.01)], [exact * factor]) is not None


def test_not_a_number_has_to_meet_its_like() -> None:
    """NaN and infinities agree with themselves only."""
    special = np.array([math.nan, math.inf, -math.inf, 1.0], "float32")

    assert compare([special], [special.copy()]) is None
    for index, wrong in [(0, 1.0), (1, -math.inf), (2, 1.0), (3, math.nan)]:
        changed = special.copy()
        changed[index] = wrong
        mismatch = compare([changed], [special])
        assert mismatch is not None
        assert math.isinf(mismatch.max_abs_error)


def test_integers_have_to_be_equal() -> None:
    """There is no rounding in integers."""
    exact = np.arange(10, dtype="int32")

    assert compare([exact.copy()], [exact]) is None
    assert compare([exact + 1], [exact]) is not None


def test_a_few_codes_may_be_off_by_one() -> None:
    """A rounded float close to the middle goes either way, but only by one, and seldom."""
    exact = np.arange(10_000).astype("uint8")
    near, far, many = exact.copy(), exact.copy(), exact.copy()
    near[5:9] += 1
    far[5] += 2
    many[::100] += 1

    assert compare([near], [exact], are_codes=True) is None
    assert compare([near], [exact]) is not None
    assert compare([far], [exact], are_codes=True) is not None
    assert compare([many], [exact], are_codes=True) is not None


def test_quantized_models_may_differ_by_their_rounding() -> None:
    """Two answers that were each rounded 16 times agree; a third of the answer is too much, and so is a swap."""
    rng = np.random.default_rng(0)
    exact = rng.standard_normal(1000).astype("float32")
    ours, theirs = exact.copy(), exact.copy()
    for answer, seed in ((ours, 1), (theirs, 2)):
        lost = np.random.default_rng(seed)
        for _ in range(16):
            answer += lost.uniform(-0.5, 0.5, 1000).astype("float32") * np.float32(9 / 256)

    assert compare([ours], [theirs], roundings=16) is None
    assert compare([ours], [theirs]) is not None
    assert compare([ours[::-1]], [theirs], roundings=16) is not None
    assert compare([np.zeros_like(ours)], [theirs], roundings=16) is not None


def test_other_shape_type_or_count_is_wrong() -> None:
    """An answer of another form is wrong, not an error."""
    exact = np.ones((2, 3), "float32")

    for wrong in ([exact.T], [exact.astype("float64")], [], [exact, exact]):
        assert compare(wrong, [exact]) is not None


def test_all_zero_reference_allows_zero_only() -> None:
    """An all-zero reference leaves nothing to round."""
    zero = np.zeros(4, "float32")

    assert compare([zero.copy()], [zero]) is None
    assert compare([zero + np.float32(1e-6)], [zero]) is not None


def test_inputs_are_seeded_and_outputs_left_to_the_device() -> None:
    """The same seed gives the same arrays; an output stays a description."""
    args = [
        TensorSpec((4, 4), "float32"),
        TensorSpec((3,), "int8"),
        TensorSpec((3,), "uint8"),
        TensorSpec((8,), "bool"),
        TensorSpec((), "float16"),
        TensorSpec((4,), "float32", is_output=True),
    ]
    first, second = make_inputs(args, 1), make_inputs(args, 1)

    assert args[-1] is first[-1]
    for spec, left, right in zip(args[:-1], first, second, strict=False):
        assert isinstance(left, np.ndarray)
        assert (spec.shape, spec.dtype) == (left.shape, str(left.dtype))
        np.testing.assert_array_equal(left, right)
    assert not np.array_equal(np.asarray(first[0]), np.asarray(make_inputs(args, 2)[0]))


def test_a_wrong_model_is_put_down_to_a_schedule_or_to_the_import() -> None:
    """Both programs have the import in common."""
    assert "the import, and no schedule" in blame("")
    assert "a schedule: output 0 differs in 2 of 3 elements" in blame("output 0 differs in 2 of 3 elements")


def test_the_tolerance_is_reported_at_the_largest_difference() -> None:
    """A quantized model is allowed more; answers of other shapes are infinitely far apart."""
    reference = np.array([1, -1, 1, -1], "float32")
    off = reference + np.array([0, 0.05, 0, 0], "float32")
    strict, lenient = (
        answer_tolerances([reference], terms=4096, roundings=roundings, spread=None) for roundings in (0, 16)
    )

    found = agree([off], [reference], lenient)

    assert found.is_right
    assert found.max_abs_error == pytest.approx(0.05)
    assert found.max_abs_error < found.allowed < 1
    assert agree([off], [reference], strict).allowed < 0.05
    assert "(off by 0.05, allowed" in agree([off], [reference], strict).problem
    assert agree([off[:2]], [reference], strict).max_abs_error == math.inf


def test_wide_integers_are_indices() -> None:
    """Wide integers are token ids: PyTorch refuses a negative one, and a compiled gather reads before its table."""
    ids, positions, quantized = map(
        np.asarray, make_inputs([TensorSpec((64,), dtype) for dtype in ("int64", "int32", "int8")], 0)
    )

    assert (ids.min(), positions.min()) == (0, 0)
    assert quantized.min() < 0


@pytest.mark.parametrize("style", list(InputStyle))
def test_inputs_of_types_that_numpy_lacks_are_made(style: InputStyle) -> None:
    """Before, `fleet tune` of a model in bfloat16 ended with a TypeError of numpy."""
    array, number = make_inputs([TensorSpec((64, 4), "bfloat16"), TensorSpec((3,), "float8_e4m3fn")], 0, style)

    assert isinstance(array, np.ndarray)
    assert isinstance(number, np.ndarray)
    assert (array.dtype.name, number.dtype.name) == ("bfloat16", "float8_e4m3fn")
    assert np.unique(array.astype("float32")).size > 32
