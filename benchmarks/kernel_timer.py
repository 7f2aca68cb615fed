"""Times kernels as agents do, in a process of its own: one JSON line in, one out.

    python -m benchmarks.kernel_timer
    < {"path": "/tmp/x.so", "args": [[[64, 64], "float32", false], ...], "evaluator": {"repeat": 3}}
    > {"run_secs": [0.0002, ...], "stopped": "BEHIND", "device_sec": 0.004}

It is the agent's runtime and its schedule of repeats, on one thread, by that thread's processor time: whatever else
runs on the machine does not count, and on an idle one it is the time by the clock.
"""

from __future__ import annotations

import json
import math
import sys
import time
from typing import TYPE_CHECKING

from benchmarks.common import JsonObject
from device_agents.runtimes.tvm import TvmRuntime
from fleet.domain.measuring import Evaluator, TensorSpec, Trial

if TYPE_CHECKING:
    import tvm_ffi

    from device_agents.runtimes.evaluating import TimeRepeats
    from device_agents.runtimes.tvm import PackedArgument


class _ThreadTimeRuntime(TvmRuntime):
    """The agent's runtime by another clock."""

    def _make_time_repeats(
        self, module: tvm_ffi.Module, function: str, arguments: list[PackedArgument], evaluator: Evaluator
    ) -> TimeRepeats:
        kernel = module.get_function(function)

        def took_sec(number: int) -> float:
            started = time.thread_time()
            for _ in range(number):
                kernel(*arguments)
            return time.thread_time() - started

        def time_repeats(*, number: int, repeat: int, min_repeat_ms: int) -> list[float]:
            kernel(*arguments)
            found: list[float] = []
            while len(found) < repeat:
                sec = took_sec(number)
                if sec * 1000 < min_repeat_ms:  # grow as TVM does
                    number = max(math.ceil(number * 1.618), math.ceil(number * min_repeat_ms / 1000 / max(sec, 1e-9)))
                    continue
                found.append(sec / number)
            return found

        return time_repeats


def main() -> None:
    """Answer requests until stdin ends."""
    runtime = _ThreadTimeRuntime()
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(_measure(runtime, json.loads(line))), flush=True)


def _measure(runtime: TvmRuntime, request: JsonObject) -> JsonObject:
    trial = Trial(
        candidate_id="",
        artifact_digest=request["path"],
        args=tuple(TensorSpec(tuple(shape), dtype, is_output) for shape, dtype, is_output in request["args"]),
        evaluator=Evaluator(**request["evaluator"]),
    )
    started = time.thread_time()
    measured = runtime.measure(trial, request["path"])
    return {
        "run_secs": measured.run_secs,
        "stopped": measured.stopped,
        "device_sec": time.thread_time() - started,
    }


if __name__ == "__main__":
    main()
