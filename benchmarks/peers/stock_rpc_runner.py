"""Stock `RPCRunner` as a process: one JSON line in, a batch of artifacts measured, one JSON line out.

    python -m benchmarks.peers.stock_rpc_runner HOST PORT KEY DEVICE
    < {"artifacts": [{"path": "/tmp/x.so", ...}, ...], "args": [[[64, 64], "float32", false], ...]}
    > {"wall_sec": 6.5, "run_secs": [0.0002, ...]}

The runner and its worker process exist before the first batch, as they do in a tuning run.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from tvm import rpc
from tvm.runtime import ShapeTuple
from tvm.s_tir import meta_schedule as ms

_READY_TIMEOUT_SEC = 60.0
_POLL_SEC = 0.1


def main(host: str, port: int, key: str, device: str) -> None:
    """Answer requests until stdin ends."""
    _wait_for_server(host, port, key)
    runner = ms.runner.RPCRunner(
        rpc_config=ms.runner.RPCConfig(tracker_host=host, tracker_port=port, tracker_key=key),
        evaluator_config=ms.runner.EvaluatorConfig(number=1, repeat=1, min_repeat_ms=0),
    )
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(_run(runner, device, json.loads(line))), flush=True)


def _run(runner: ms.runner.RPCRunner, device: str, request: dict[str, list[Any]]) -> dict[str, object]:
    args = [ms.arg_info.TensorInfo(dtype, ShapeTuple(shape)) for shape, dtype, _ in request["args"]]
    inputs = [ms.runner.RunnerInput(artifact["path"], device, args) for artifact in request["artifacts"]]
    started = time.perf_counter()
    results = [future.result() for future in runner.run(inputs)]
    wall_sec = time.perf_counter() - started
    for result in results:
        if result.error_msg is not None:
            raise SystemExit(f"a trial failed: {result.error_msg}")
    return {"wall_sec": wall_sec, "run_secs": [float(result.run_secs[0]) for result in results]}


def _wait_for_server(host: str, port: int, key: str) -> None:
    """Wait until the tracker has a free server; a probed server would hang up on its next client."""
    deadline = time.monotonic() + _READY_TIMEOUT_SEC
    while time.monotonic() < deadline:
        try:
            queues = rpc.connect_tracker(host, port).summary()["queue_info"]
        except (OSError, RuntimeError):
            queues = {}
        if queues.get(key, {}).get("free", 0):
            return
        time.sleep(_POLL_SEC)
    raise SystemExit(f"no server with the key {key} at the tracker {host}:{port} within {_READY_TIMEOUT_SEC:g} s")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4])
