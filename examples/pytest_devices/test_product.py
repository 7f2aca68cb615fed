"""A kernel of ours on whichever devices the run names:

pytest --fleet-tracker 127.0.0.1:9290 --fleet-on kind=cpu
"""

import subprocess
import sys

import numpy as np
import pytest


@pytest.fixture
def kernel(fleet_device, tmp_path):
    """The kernel, built for the device at hand."""
    file = tmp_path / "product.so"
    target = fleet_device.inventory.target_json
    subprocess.run(
        [sys.executable, "-m", "fleet", "build", "matmul-64", "--target", target, "-o", str(file)], check=True
    )
    return fleet_device.load(file)


def test_the_product_is_right(kernel):
    left, right = np.random.default_rng(0).random((2, 64, 64), np.float32)

    product = kernel(left, right)

    np.testing.assert_allclose(product, left @ right, rtol=1e-4)


def test_it_is_not_slow(kernel):
    timing = kernel.time("main", [((64, 64), "float32")] * 3, min_repeat_ms=5)

    assert timing.median_sec < 50e-3
