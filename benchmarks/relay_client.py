"""A client as a process: one JSON line in, one JSON line out. Each answer is of a new lease and a new connection.

    python -m benchmarks.relay_client TRACKER_ADDRESS
    < {"device": "direct", "upload_bytes": 100000000}
    > {"sec": 0.5}

    < {"device": "direct", "opens": 5}
    > {"open_secs": [0.01, ...]}

Uploaded bytes are random, and new each time. The connection is open before the upload.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path

import fleet.aio
from benchmarks.common import JsonObject
from fleet.artifacts.artifact import Artifact
from fleet.client.aio import Fleet


async def main(address: str) -> None:
    """Answer requests until stdin ends."""
    async with fleet.aio.connect(address, connect_timeout_sec=60) as client:
        print("ready", flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            request = json.loads(line)
            selector = f"name={request['device']}"
            answer = (
                {"open_secs": [await _open(client, selector) for _ in range(request["opens"])]}
                if "opens" in request
                else await _upload(client, selector, request["upload_bytes"])
            )
            print(json.dumps(answer), flush=True)


async def _open(client: Fleet, selector: str) -> float:
    async with client.acquire(selector, wait_timeout_sec=60) as device:
        started = time.perf_counter()
        await device.open()
        return time.perf_counter() - started


async def _upload(client: Fleet, selector: str, size_bytes: int) -> JsonObject:
    with tempfile.TemporaryDirectory() as folder:
        artifact = await asyncio.to_thread(_artifact, Path(folder, "artifact.so"), size_bytes)
        async with client.acquire(selector, wait_timeout_sec=60) as device:
            await device.open()
            started = time.perf_counter()
            await device.ensure([artifact])
            return {"sec": time.perf_counter() - started}


def _artifact(path: Path, size_bytes: int) -> Artifact:
    path.write_bytes(os.urandom(size_bytes))
    return Artifact.of_file(path)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
