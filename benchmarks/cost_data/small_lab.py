"""Collects the records of a small lab with a device that the packaged model does not know: SSE code, and no AVX.

    python -m benchmarks.cost_data.small_lab --work-dir build/small-lab

The workloads are of models that the package's data set has none of. Tests condition the packaged model on a few of
these records and judge it on the others. Each finished workload is a file of the work folder, as in
`benchmarks.collect`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from benchmarks import common
from benchmarks.collect import measure_workload
from benchmarks.cost_data import workloads
from benchmarks.cost_data.dataset import Dataset, Group, Program, load, save
from benchmarks.cost_data.prior import pack_samples
from benchmarks.cost_data.timer import Timer
from benchmarks.cost_model import samples_of, usable
from cross.pool.build_pool import BuildPool
from cross.targets.target import parse_target
from fleet.domain.observation import Observation
from fleet.domain.operators import workload_kind
from fleet.errors import BuildError
from fleet.workloads.workload import argument_specs, module_of

DATA = common.REPOSITORY / "benchmarks" / "data" / "x86_64_v2.npz"

TARGET = parse_target('{"kind": "llvm", "mcpu": "x86-64-v2", "num-cores": 1}')
_DEVICE_MODEL = "x86_64_v2"

_PARTS = (
    ("efficientnet", "conv2d 1x1 112->672 12x12"),
    ("segformer", "matmul 256x64x256"),
    ("efficientnet", "dwconv2d 3x3 32 96x96"),
    ("detector", "conv2d 3x3 s2 32->64 40x40"),
    ("efficientnet", "mean 48x48x96"),
    ("segformer", "layer_norm 1024x32"),
    ("detector", "conv2d 1x1 64->64 20x20"),
    ("segformer", "matmul 1024x32x128"),
    ("segformer", "dwconv2d 3x3 128 32x32"),
    ("detector", "conv2d 3x3 s2 64->128 20x20"),
    ("efficientnet", "mean 24x24x240"),
    ("segformer", "layer_norm 256x64"),
    ("keyword_spotting", "conv2d 1x1 64->64 25x6"),
    ("segformer", "matmul 64x64x64"),
    ("efficientnet", "dwconv2d 3x3 480 12x12"),
)
"""Five kinds of operators, and three workloads of most."""

_PREPARE_TIMEOUT_SEC = 300.0


def main(argv: Sequence[str] | None = None) -> int:
    """Collect."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cost_data.small_lab", description=__doc__)
    parser.add_argument("--work-dir", type=Path, required=True, help="keeps what is finished")
    parser.add_argument("--out", type=Path, default=DATA, help="samples, one .npz (default: %(default)s)")
    parser.add_argument("--candidates", type=int, default=32, help="by workload (default: %(default)s)")
    parser.add_argument("--prefix", default="", help="put before the measuring process: 'nice -n -12 taskset -c 1'")
    options = parser.parse_args(argv)
    options.work_dir.mkdir(parents=True, exist_ok=True)
    timer = Timer(options.prefix.split(), options.work_dir / "timing.log")
    with BuildPool(2, target=TARGET) as pool, ThreadPoolExecutor(2) as threads:

        def collect(part: tuple[str, str]) -> None:
            path = options.work_dir / f"{' '.join(part).replace('>', '')}.npz"
            if path.exists():
                return
            try:
                found = pool.submit_within(
                    _PREPARE_TIMEOUT_SEC, workloads.find_program, *part, TARGET, str(options.work_dir)
                )
                _measure(found.result(), pool, timer, options.candidates, path)
            except BuildError as error:
                common.say(f"{part}: {str(error)[:100]}")

        try:
            list(threads.map(collect, _PARTS))
        finally:
            timer.close()
    groups = [usable(group) for path in sorted(options.work_dir.glob("*.npz")) for group in load(path).groups]
    samples = [sample for group in groups for sample in _samples_of(group)]
    options.out.write_bytes(pack_samples(samples))
    common.say(f"{len(samples)} records of {len(groups)} workloads, {options.out.stat().st_size} bytes")
    return 0


def _samples_of(group: Group) -> list[Observation]:
    program = group.program
    kind = workload_kind(program.name, argument_specs(module_of(program.mod_json)))
    return [replace(sample, kind=kind) for sample in samples_of(group, _DEVICE_MODEL, TARGET.instruction_set)]


def _measure(program: Program, pool: BuildPool, timer: Timer, count: int, path: Path) -> None:
    group = measure_workload(program, pool, timer, count)
    save(path, Dataset(provenance=dict(common.machine()), groups=[group]))
    common.say(f"{program.operator}: {len(group)} candidates, {group.is_disturbed.sum()} disturbed")


if __name__ == "__main__":
    sys.exit(main())
