"""Compile a matrix product with its static schedule, and compare it with numpy."""

import numpy as np
import tvm
from tvm import te

import fleet

data = te.placeholder((128, 256), name="data")
weights = te.placeholder((256, 512), name="weights")
k = te.reduce_axis((0, 256), name="k")
result = te.compute((128, 512), lambda i, j: te.sum(data[i, k] * weights[k, j], axis=k), name="result")
function = [data, weights, result]

print(fleet.design_space(function, "host"))
scheduled = fleet.schedule(function, "host", cores=1)

target = tvm.target.Target({"kind": "llvm", "mcpu": tvm.target.codegen.llvm_get_system_cpu()})
library = tvm.compile(scheduled, target, tir_pipeline=fleet.tir_pipeline(target))
rng = np.random.default_rng(0)
arrays = [rng.random(shape, dtype=np.float32) for shape in ((128, 256), (256, 512), (128, 512))]
given = [tvm.runtime.tensor(array) for array in arrays]
library["main"](*given)
np.testing.assert_allclose(given[2].numpy(), arrays[0] @ arrays[1], rtol=1e-4)
print("right")
