"""A convolution of 8-bit integers for emulated boards with dot products, with inputs and answer as files beside it.

python -m tests.emulated.integer_kernels FOLDER # on the board: prints the digest of the program's result
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from device_agents.runtimes.tvm import TvmRuntime
from fleet.domain.measuring import Call, Tensor, TensorSpec

if TYPE_CHECKING:
    from cross.targets.target import Target

SHAPE = (7, 8, 32)
"""Side of the image, channels of data and of result."""


def build_integers(target: Target, folder: Path) -> None:
    """Write the convolution into a new folder, with its static schedule for a target that has the instruction."""
    import numpy as np

    from cross.compile.library import build
    from cross.targets.integer_units import integer_unit
    from cross.targets.intrinsics import load_intrinsics
    from fleet.spaces.packing import pack_all, packings_of
    from fleet.spaces.space import finished, static_schedule
    from tests.unit.spaces.test_int8_schedules import conv, operands

    load_intrinsics(target)
    unit = integer_unit(target)
    if unit is None:
        raise ValueError(f"{target} has no instruction for integers")
    mod, [*inputs, expected] = conv(unit, *SHAPE), operands(unit, *SHAPE)
    schedule = static_schedule(mod, target)
    if schedule is None:
        raise ValueError(f"no schedule for {target}")
    arrays = [np.ascontiguousarray(array) for array in pack_all(inputs, packings_of(schedule, mod))]
    specs = [TensorSpec(array.shape, str(array.dtype)) for array in arrays]
    specs.append(TensorSpec(expected.shape, str(expected.dtype), True))
    folder.mkdir()
    built = build(finished(schedule.mod, target), target, folder, args=tuple(specs))
    (folder / "program.so").write_bytes(built.path.read_bytes())
    (folder / "args.json").write_text(json.dumps([[spec.shape, spec.dtype, spec.is_output] for spec in specs]))
    for place, array in enumerate(arrays):
        (folder / f"{place}.bin").write_bytes(array.tobytes())
    (folder / "digest").write_text(hashlib.sha256(expected.tobytes()).hexdigest())


def answer(folder: Path) -> str:
    """Run the program on its inputs and return the digest of its result. Needs only TVM's runtime."""
    args: list[Tensor | TensorSpec] = []
    for place, (shape, dtype, is_output) in enumerate(json.loads((folder / "args.json").read_text())):
        spec = TensorSpec(tuple(shape), dtype, is_output)
        args.append(spec if is_output else Tensor(spec, (folder / f"{place}.bin").read_bytes()))
    [result] = TvmRuntime().call(Call(artifact_digest="", args=tuple(args)), str(folder / "program.so"))
    return hashlib.sha256(result.content).hexdigest()


if __name__ == "__main__":
    print(answer(Path(sys.argv[1])))
