"""Shuffles of channels end in the convolutions behind them, and every channel still meets its own weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from fleet.graph.cleaning import CLEANING
from fleet.graph.folding import FOLDING
from fleet.graph.rebuilding import rewrite
from fleet.graph.shuffles import SHUFFLES
from tests.unit.graph_models import function_of, operators, random_array, run

if TYPE_CHECKING:
    from tvm.relax import Expr

    from tests.unit.graph_models import Emit

pytestmark = pytest.mark.slow
CHANNELS = 12


def shuffled(x: Expr) -> Expr:
    """The channels, which come last, split in 3 parts of 4, swapped and joined again."""
    from tvm import relax

    parts = relax.op.permute_dims(relax.op.reshape(x, (1, 5, 5, 3, 4)), [0, 1, 2, 4, 3])
    return relax.op.reshape(parts, (1, 5, 5, CHANNELS))


def conv(x: Expr, groups: int) -> Expr:
    """A convolution with random weights."""
    from tvm import relax

    weights = relax.const(random_array(1, 1, CHANNELS // groups, CHANNELS))
    return relax.op.nn.conv2d(x, weights, groups=groups, data_layout="NHWC", kernel_layout="HWIO")


@pytest.mark.parametrize("groups", [1, 2])
def test_a_shuffle_ends_in_the_next_convolution(groups: int) -> None:
    """The shuffle moves behind a depthwise convolution, its bias and activation, then into weights or indices."""

    def body(x: Expr, emit: Emit) -> Expr:
        from tvm import relax

        depthwise = relax.op.add(conv(shuffled(x), CHANNELS), relax.const(random_array(1, 1, 1, CHANNELS, seed=1)))
        return conv(relax.op.nn.relu(relax.op.multiply(depthwise, relax.const(np.float32(2)))), groups)

    mod, x = function_of([(1, 5, 5, CHANNELS)], body), random_array(1, 5, 5, CHANNELS)

    found = rewrite(mod, FOLDING, SHUFFLES, CLEANING)

    assert not operators(found)["permute_dims"]
    assert not operators(found)["reshape"]
    np.testing.assert_allclose(run(mod, x), run(found, x), rtol=1e-4, atol=1e-5)


def test_a_shuffle_with_another_reader_is_kept() -> None:
    """A returned tensor is returned shuffled."""
    mod, x = function_of([(1, 5, 5, CHANNELS)], lambda x, emit: shuffled(x)), random_array(1, 5, 5, CHANNELS)

    found = rewrite(mod, FOLDING, SHUFFLES, CLEANING)

    np.testing.assert_array_equal(run(mod, x), run(found, x))
