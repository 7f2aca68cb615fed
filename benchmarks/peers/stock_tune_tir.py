"""The stock tuning script: `tune_tir` with `LocalBuilder`, `RPCRunner`, tracker and server, everything else by default.

    python -m benchmarks.peers.stock_tune_tir --size 256 --trials 64 --target '{"kind": "llvm"}' --work-dir DIR

With `--light` it skips stock TVM's preparation for GPUs (each of its processes parses their tensor intrinsics, which
takes 8 to 15 s), and searches a small population. That is the peer of a quick run, and its figures are not for quoting.
With `--tracker` it measures by a running tracker, with the key "cpu", instead of one of its own.

Leaves MetaSchedule's two JSON files in DIR and ends with one JSON line: `first_trial_at`, when the runner had its first
time (seconds since 1970; null: never).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from collections.abc import Iterator
from concurrent.futures import Future

import tvm
from tvm import te
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.testing.local_rpc import LocalRPC
from tvm.support.popen_pool import PopenPoolExecutor

from cross.targets.intrinsics import keep_package_light

_KEY = "cpu"
_LIGHT_POPULATION = 32


class StampedPool:
    """The runner's pool of workers, which notes the time of the first result. Changes nothing else."""

    def __init__(self, pool: PopenPoolExecutor) -> None:
        self.first_trial_at: float | None = None
        self._pool = pool

    def submit(self, *task: object) -> Future[object]:
        """Pass a task on."""
        future: Future[object] = self._pool.submit(*task)
        future.add_done_callback(self._stamp)
        return future

    def _stamp(self, future: Future[object]) -> None:
        if self.first_trial_at is None and future.exception() is None:
            self.first_trial_at = time.time()


def main() -> None:
    """Tune."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, required=True)
    parser.add_argument("--trials", type=int, required=True)
    parser.add_argument("--target", type=json.loads, required=True)
    parser.add_argument("--work-dir", required=True)
    parser.add_argument(
        "--light", action="store_true", help="no tensor intrinsics of GPUs, one builder, a short search"
    )
    parser.add_argument("--tracker", default="", help="address of a running tracker")
    options = parser.parse_args()
    if options.light:
        keep_package_light()
    with _tracker(options.tracker) as (host, port):
        runner = ms.runner.RPCRunner(
            rpc_config=ms.runner.RPCConfig(tracker_host=host, tracker_port=port, tracker_key=_KEY)
        )
        pool = StampedPool(runner._inst.pool)  # noqa: SLF001 - no callback tells when a trial ends
        runner._inst.pool = pool  # noqa: SLF001
        ms.tune_tir(
            mod=_matmul(options.size),
            target=tvm.target.Target(options.target),
            work_dir=options.work_dir,
            max_trials_global=options.trials,
            builder=ms.builder.LocalBuilder(max_workers=1, initializer=keep_package_light)
            if options.light
            else ms.builder.LocalBuilder(),
            runner=runner,
            strategy=ms.search_strategy.EvolutionarySearch(population_size=_LIGHT_POPULATION)
            if options.light
            else "evolutionary",
        )
    print(json.dumps({"first_trial_at": pool.first_trial_at}), flush=True)


@contextlib.contextmanager
def _tracker(address: str) -> Iterator[tuple[str, int]]:
    """Yield host and port of a running tracker, or of one with a server that ends with the block."""
    if address:
        host, _, port = address.rpartition(":")
        yield host, int(port)
        return
    with LocalRPC(tracker_key=_KEY) as servers:
        yield servers.tracker_host, servers.tracker_port


def _matmul(size: int) -> tvm.tirx.PrimFunc:
    left = te.placeholder((size, size), name="A", dtype="float32")
    right = te.placeholder((size, size), name="B", dtype="float32")
    k = te.reduce_axis((0, size), name="k")
    product = te.compute((size, size), lambda i, j: te.sum(left[i, k] * right[k, j], axis=k), name="C")
    return te.create_prim_func([left, right, product])


if __name__ == "__main__":
    main()
