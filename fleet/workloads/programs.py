"""Small stand-alone programs for benchmarks, examples and tests."""

from __future__ import annotations

from fleet.domain.workload import Workload
from fleet.workloads.workload import workload_of


def matmul(size: int, dtype: str = "float32") -> Workload:
    """Return the product of two square matrices."""
    from tvm import te

    left = te.placeholder((size, size), name="A", dtype=dtype)
    right = te.placeholder((size, size), name="B", dtype=dtype)
    k = te.reduce_axis((0, size), name="k")
    product = te.compute((size, size), lambda i, j: te.sum(left[i, k] * right[k, j], axis=k), name="C")
    return workload_of(te.create_prim_func([left, right, product]), name=f"matmul_{size}")
