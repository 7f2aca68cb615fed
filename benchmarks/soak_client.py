"""A client of the soak: it requests devices for ever, and connects and disconnects."""

from __future__ import annotations

import asyncio
import random
import time

import grpc.aio

from fleet.testing.identity import account_channel
from fleet.v1 import lease_pb2
from fleet.v1 import lease_service_pb2 as pb
from fleet.wire.rpc import Channel
from fleet.wire.stubs import lease_service_stub

_ASK_EACH_SEC = 0.4
_STAY_SEC = 120.0
_HOLD_SEC = 0.2
_LONG_SHARE, _LONG_HOLD_SEC = 0.01, 60.0
_TTL_SEC, _RENEW_SEC = 20.0, 7.0
_PICKY_SHARE = 0.05
"""Share of the requests for one certain device, which many clients want."""
_PICKED = 10
_PATIENCE_SEC = 5.0


class Client:
    """One client after the other, under one name and a number."""

    def __init__(self, address: str, name: str, rng: random.Random, devices: int, latencies: list[float]) -> None:
        """Args:
        latencies: receives the duration of each request for any device [s].
        """
        self._address = address
        self._name = name
        self._rng = rng
        self._devices = devices
        self._latencies = latencies
        self._asked_at: dict[str, float] = {}
        self._outgoing: asyncio.Queue[pb.ClientEvent] = asyncio.Queue()
        self._holding: set[asyncio.Task[None]] = set()
        self.broken = 0
        """Number of its streams that ended by themselves, as when the machine was too busy to connect in time."""

    async def run(self) -> None:
        """Send requests until cancelled."""
        visits = 0
        try:
            while True:
                visits += 1
                try:
                    async with account_channel(self._address) as channel:
                        await self._visit(channel, f"{self._name}-{visits}")
                except (grpc.aio.AioRpcError, asyncio.InvalidStateError):  # the latter where it is written to
                    self.broken += 1
        finally:
            for task in self._holding:
                task.cancel()

    async def _visit(self, channel: Channel, client_id: str) -> None:
        self._asked_at.clear()
        self._outgoing = asyncio.Queue()
        call = lease_service_stub(channel).open_leases(None)
        await call.write(pb.OpenLeasesRequest(hello=pb.ClientHello(client_id=client_id, holder=f"{self._name}@soak")))
        jobs = (self._ask(client_id), self._write(call.write), self._read(call))
        tasks = [asyncio.create_task(job, name=client_id) for job in jobs]
        try:
            done, _ = await asyncio.wait(
                tasks, timeout=self._rng.expovariate(1 / _STAY_SEC), return_when=asyncio.FIRST_EXCEPTION
            )
            for task in done:
                task.result()
            if self._rng.random() < 0.5:  # release all leases; else the tracker has to detect the end
                tasks[0].cancel()
                await asyncio.gather(*self._holding, return_exceptions=True)
        finally:
            for task in (*tasks, *self._holding):
                task.cancel()
            await asyncio.gather(*tasks, *self._holding, return_exceptions=True)
            self._holding.clear()
            call.cancel()

    async def _ask(self, client_id: str) -> None:
        count = 0
        while True:
            await asyncio.sleep(self._rng.expovariate(1 / _ASK_EACH_SEC))
            count += 1
            acquire = lease_pb2.Acquire(request_id=f"{client_id}-{count}", selector="simulated")
            acquire.ttl.seconds = int(_TTL_SEC)
            if self._rng.random() < _PICKY_SHARE:
                acquire.selector = f"name=sim-{self._rng.randrange(min(_PICKED, self._devices))}"
                acquire.wait_timeout.seconds = int(_PATIENCE_SEC)
            else:
                self._asked_at[acquire.request_id] = time.perf_counter()
            self._outgoing.put_nowait(pb.ClientEvent(acquire=acquire))

    async def _write(self, write: object) -> None:
        while True:
            events = [await self._outgoing.get()]
            while not self._outgoing.empty():
                events.append(self._outgoing.get_nowait())
            await write(pb.OpenLeasesRequest(events=events))  # type: ignore[operator] # gRPC's stubs lack it

    async def _read(self, call: object) -> None:
        async for response in call:  # type: ignore[attr-defined] # gRPC's stubs lack it
            now = time.perf_counter()
            for event in response.events:
                if event.HasField("granted"):
                    self._granted(event.granted, now)

    def _granted(self, granted: lease_pb2.Granted, now: float) -> None:
        asked_at = self._asked_at.pop(granted.request_id, None)
        if asked_at is not None:
            self._latencies.append(now - asked_at)
        holding = asyncio.create_task(self._hold(granted.lease.name), name=granted.lease.name)
        self._holding.add(holding)
        holding.add_done_callback(self._holding.discard)

    async def _hold(self, lease_name: str) -> None:
        is_long = self._rng.random() < _LONG_SHARE
        left_sec = self._rng.expovariate(1 / (_LONG_HOLD_SEC if is_long else _HOLD_SEC))
        while left_sec > _RENEW_SEC:
            await asyncio.sleep(_RENEW_SEC)
            left_sec -= _RENEW_SEC
            self._outgoing.put_nowait(pb.ClientEvent(renew=pb.Renew(lease_name=lease_name)))
        await asyncio.sleep(left_sec)
        self._outgoing.put_nowait(pb.ClientEvent(release=pb.Release(lease_name=lease_name)))
