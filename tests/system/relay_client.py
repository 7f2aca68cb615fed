"""A client as a process of its own, which holds one device at a time: a number in, one JSON line out.

python -m tests.system.relay_client TRACKER_ADDRESS
< 2000000               lease a device, unless one is held, upload a new artifact of this size, and time it
> {"latency_us": 100.0, "lease": "leases/1"}
< 0                     give the device back
> {}
"""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import fleet.aio
from fleet.aio import Device
from fleet.artifacts.artifact import Artifact
from fleet.errors import FleetError


async def main(address: str) -> None:
    """Answer requests until stdin ends."""
    async with fleet.aio.connect(address, connect_timeout_sec=60) as client, AsyncExitStack() as stack:
        device: Device | None = None
        while line := await asyncio.to_thread(sys.stdin.readline):
            size_bytes, answer = int(line), {}
            if device is not None and (device.ended is not None or not size_bytes):
                await stack.aclose()
                device = None
            if size_bytes:
                if device is None:
                    device = await stack.enter_async_context(client.acquire("simulated", wait_timeout_sec=60))
                answer = await _use(device, size_bytes)
            print(json.dumps(answer), flush=True)


async def _use(device: Device, size_bytes: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        artifact = await asyncio.to_thread(_artifact, Path(folder, "artifact.so"), size_bytes)
        try:
            found = await device.time(artifact, [], timeout_sec=60)
        except FleetError as error:
            return {"error": type(error).__name__, "message": str(error)}
    return {"latency_us": found.median_sec * 1e6, "lease": device.lease.name}


def _artifact(path: Path, size_bytes: int) -> Artifact:
    path.write_bytes(b"latency_us:100\n" + secrets.token_hex(size_bytes // 2).encode())
    return Artifact.of_file(path)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
