"""A client as a process that holds leases while its tracker's machine is lost: one JSON line in, one out.

    python -m benchmarks.takeover_client TRACKER_ADDRESS DEVICES
    < {"hold": 50}
    > {"held": 50}

    < {"gone_at": 1234.5}
    > {"first_grant_sec": 7.2, "leases_lost": 0, "double_grants": 0}

`gone_at` is the moment of the loss [time.monotonic() of this machine].
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Sequence

import fleet.aio
from benchmarks.common import JsonObject
from fleet.client.aio import Fleet
from fleet.client.device import Device
from fleet.domain.devices import DeviceState

_WAIT_SEC = 120.0
_LOOK_SEC = 0.5
_SETTLE_SEC = 10.0
"""Time for leases to end that a tracker took for lost."""


async def main(address: str, devices: int) -> None:
    """Answer requests until stdin ends."""
    held: list[Device] = []
    async with await fleet.aio.connect(address, connect_timeout_sec=60) as client:
        async for free in _free_devices(client):
            if free >= devices:
                break
        print("ready", flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            request = json.loads(line)
            if "hold" in request:
                held += [await client.acquire_device("simulated") for _ in range(request["hold"])]
                answer: JsonObject = {"held": len(held)}
            else:
                answer = await _outlive(client, held, request["gone_at"])
            print(json.dumps(answer), flush=True)


async def _free_devices(client: Fleet) -> AsyncIterator[int]:
    """Yield the number of free devices again and again."""
    while True:
        yield sum(device.state is DeviceState.AVAILABLE for device in (await client.snapshot()).devices)
        await asyncio.sleep(_LOOK_SEC)


async def _outlive(client: Fleet, held: Sequence[Device], gone_at: float) -> JsonObject:
    """Request one device more, and compare all leases with those of the tracker that grants it."""
    new = await client.acquire_device("simulated", wait_timeout_sec=_WAIT_SEC)
    granted_at = time.monotonic()
    await asyncio.sleep(_SETTLE_SEC)
    known = {device.name: device.lease_name for device in (await client.snapshot()).devices}
    lost = [one for one in held if one.ended is not None]
    doubled = [one for one in (*held, new) if one.ended is None and known.get(one.name) != one.lease.name]
    return {
        "first_grant_sec": round(granted_at - gone_at, 2),
        "leases_lost": len(lost),
        "double_grants": len(doubled) + len({*map(_name, held), new.name}) - len(held) - 1,
    }


def _name(device: Device) -> str:
    return device.name


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
