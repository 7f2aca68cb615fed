"""Our client as a process: one JSON line in, a batch of artifacts measured under a new lease, one JSON line out.

    python -m benchmarks.trial_client TRACKER_ADDRESS KIND
    < {"artifacts": [{"path": "/tmp/x.so", "digest": "sha256:..."}, ...], "args": [[[64, 64], "float32", false], ...]}
    > {"wall_sec": 0.1, "run_secs": [0.0002, ...], "parts_sec": {"acquire": 0.001, "upload": 0.05, "measure": 0.05}}

    < {"opens": 10}
    > {"open_secs": [0.01, ...]}

The second opens that many sessions, one after the other: each from the lease to a worker that is ready.

The connection to the tracker exists before the first batch; the wait for the lease, the connection to the agent, its
session, and the uploads are part of every batch.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path

import fleet.aio
from benchmarks.common import JsonObject
from fleet.artifacts.artifact import Artifact
from fleet.client.aio import Fleet
from fleet.domain.measuring import Evaluator, Measurement, TensorSpec, Trial

_READY_TIMEOUT_SEC = 60.0
_POLL_SEC = 0.1
_EVALUATOR = Evaluator(number=1, repeat=1, min_repeat_ms=0)


async def main(address: str, kind: str) -> None:
    """Answer requests until stdin ends."""
    async with fleet.aio.connect(address) as client:
        async with asyncio.timeout(_READY_TIMEOUT_SEC):
            while not (await client.snapshot()).devices:  # noqa: ASYNC110 - no event crosses processes
                await asyncio.sleep(_POLL_SEC)
        print("ready", flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            request = json.loads(line)
            answer = await _open(client, request["opens"]) if "opens" in request else await _run(client, kind, request)
            print(json.dumps(answer), flush=True)


async def _run(client: Fleet, kind: str, request: JsonObject) -> JsonObject:
    args = tuple(TensorSpec(tuple(shape), dtype, is_output) for shape, dtype, is_output in request["args"])
    artifacts = [Artifact(path=Path(a["path"]), digest=a["digest"], args=args) for a in request["artifacts"]]
    trials = [
        Trial(candidate_id=str(number), artifact_digest=artifact.digest, args=args, evaluator=_EVALUATOR)
        for number, artifact in enumerate(artifacts)
    ]
    started = time.perf_counter()
    async with client.acquire(f"kind={kind}", purpose="trial overhead") as device:
        acquired = time.perf_counter()
        await device.ensure(artifacts)
        uploaded = time.perf_counter()
        measurements = [measurement async for measurement in device.measure(trials)]
        ended = time.perf_counter()
    return {
        "wall_sec": ended - started,
        "run_secs": [_run_sec(measurement) for measurement in measurements],
        "parts_sec": {"acquire": acquired - started, "upload": uploaded - acquired, "measure": ended - uploaded},
    }


async def _open(client: Fleet, count: int) -> JsonObject:
    secs = []
    for _ in range(count):
        async with client.acquire("cpu", purpose="session start") as device:
            acquired = time.perf_counter()
            await device.open()
            secs.append(time.perf_counter() - acquired)
    return {"open_secs": secs}


def _run_sec(measurement: Measurement) -> float:
    if measurement.error is not None:
        raise SystemExit(f"a trial failed: {measurement.error} {measurement.error_message}")
    return measurement.run_secs[0]


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
