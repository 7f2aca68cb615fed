"""Grant + release cycles per second and grant latency of the tracker, beside TVM's own tracker in the same run.

The tracker runs in a process of its own; simulated agents and clients are in this one, so every figure has gRPC over
TLS, authorisation, the journal and the load generator's own cost in it. Closed loop: each of `concurrency` borrowers
requests, is granted, releases, and requests again. Latency is from request to grant as the client sees it.
A standby that follows is a third process on the same cores.
"""

from __future__ import annotations

import asyncio
import json
import socket
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

if not __package__:  # run as a file: python benchmarks/tracker_load.py
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import common
from benchmarks.processes import Process, python
from fleet.base.network import is_answered
from fleet.testing import SimulatedAgent, eventually
from fleet.testing.identity import account_channel, join_user
from fleet.v1 import fleet_service_pb2, lease_pb2, lease_service_pb2
from fleet.wire.rpc import make_channel
from fleet.wire.stubs import FleetServiceStub, LeaseServiceStub, fleet_service_stub, lease_service_stub

CONCURRENCY = 12
"""Concurrent borrowers, spread over STREAMS clients; a fleet's optimizers hold leases for minutes, so this is a
storm.
"""
STREAMS = 2
DEVICES_PER_AGENT = 1_000
_WAITING, _QUICK_WAITING = 100_000, 5_000
_BUDGET = 5_000.0
"""Cycles a second with 10,000 devices and _WAITING requests waiting."""
_EXPLAINED = 9
_ALONE, _FOLLOWED = "fleet, 1,000 devices", "fleet, 1,000 devices, a standby follows"
REQUESTS_PER_CLIENT = 1_000
"""Requests that a tracker lets one client have waiting."""
_ACCOUNTS = 300
"""Accounts that the waiting requests belong to, in turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One measured situation."""

    devices: int
    waiting: int
    concurrency: int
    cycles_per_sec: float
    p50_ms: float
    p99_ms: float
    explain_ms: float | None = None
    """Median time of a call that explains why one of the requests waits."""

    @classmethod
    def of(cls, cycles: int, took_sec: float, latencies_sec: Sequence[float], **situation: int) -> Load:
        """Return the figures of a situation."""
        latencies_ms = sorted(1e3 * sec for sec in latencies_sec)
        return cls(
            cycles_per_sec=cycles / took_sec,
            p50_ms=latencies_ms[len(latencies_ms) // 2],
            p99_ms=latencies_ms[len(latencies_ms) * 99 // 100],
            **situation,
        )


class Borrower:
    """One client stream that keeps some requests in flight."""

    def __init__(self, stub: LeaseServiceStub, client_id: str) -> None:
        self._stub = stub
        self._client_id = client_id
        self._outgoing: list[lease_service_pb2.ClientEvent] = []
        self._has_outgoing = asyncio.Event()
        self._asked_at: dict[str, float] = {}
        self._count = 0
        self._ends_at = 0.0
        self.latencies_sec: list[float] = []
        self.cycles = 0
        self.held = 0
        self.in_flight = 0
        self._task = asyncio.create_task(self._run(), name=client_id)

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def cycle(self, selector: str, concurrency: int, duration_sec: float) -> None:
        """Acquire and release for a while."""
        self.latencies_sec.clear()
        self.cycles = 0
        self._ends_at = time.perf_counter() + duration_sec
        self._selector = selector
        for _ in range(concurrency):
            self._ask()
        await asyncio.sleep(duration_sec)
        await eventually(lambda: self.in_flight == 0, 30.0)

    def ask_many(self, selector: str, count: int, accounts: int = 0) -> None:
        """Send requests and release nothing.

        Args:
            accounts: number of accounts that the requests name in turn; 0: they name none.
        """
        self._ends_at = 0.0
        self._selector = selector
        for _ in range(count):
            self._ask(keeps=True, accounts=accounts)

    def _ask(self, *, keeps: bool = False, accounts: int = 0) -> None:
        self._count += 1
        request_id = f"{'k' if keeps else 'r'}{self._count}"
        self.in_flight += not keeps
        self._asked_at[request_id] = time.perf_counter()
        account = f"account-{self._count % accounts}" if accounts else ""
        acquire = lease_pb2.Acquire(request_id=request_id, selector=self._selector, account=account)
        acquire.ttl.seconds = 300
        self._say(lease_service_pb2.ClientEvent(acquire=acquire))

    def _say(self, event: lease_service_pb2.ClientEvent) -> None:
        self._outgoing.append(event)
        self._has_outgoing.set()

    async def _messages(self) -> AsyncIterator[lease_service_pb2.OpenLeasesRequest]:
        hello = lease_service_pb2.ClientHello(client_id=self._client_id, holder=f"{self._client_id}@bench")
        yield lease_service_pb2.OpenLeasesRequest(hello=hello)
        while True:
            await self._has_outgoing.wait()
            self._has_outgoing.clear()
            events, self._outgoing = self._outgoing[:1000], self._outgoing[1000:]
            if self._outgoing:
                self._has_outgoing.set()
            yield lease_service_pb2.OpenLeasesRequest(events=events)

    async def _run(self) -> None:
        async for response in self._stub.open_leases(self._messages()):
            now = time.perf_counter()
            for event in response.events:
                self._take(event, now)

    def _take(self, event: lease_service_pb2.TrackerEvent, now: float) -> None:
        match event.WhichOneof("kind"):
            case "granted" if event.granted.request_id.startswith("k"):
                self.held += 1
            case "granted":
                self.latencies_sec.append(now - self._asked_at.pop(event.granted.request_id))
                release = lease_service_pb2.Release(lease_name=event.granted.lease.name)
                self._say(lease_service_pb2.ClientEvent(release=release))
            case "lease_ended":
                self.cycles += 1
                self.in_flight -= 1
                if now < self._ends_at:
                    self._ask()
            case "refused":
                raise RuntimeError(f"refused: {event.refused.message}")


async def measure_fleet(
    devices: int,
    waiting: int,
    duration_sec: float,
    *,
    program: Sequence[str] = (),
    beside: Callable[[str], AbstractAsyncContextManager[None]] | None = None,
) -> Load:
    """Measure our tracker with `devices` free devices and `waiting` requests for busy ones.

    Args:
        program: command that runs in the tracker's place, with its options.
        beside: other load on the tracker with this address.
    """
    async with AsyncExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fleet-bench-")))
        words = ["--port=0", f"--state-dir={scratch / 'tracker'}", "--no-discovery", "--log-level=WARNING"]
        command = [*(program or python("fleet.tracker", "--devices-per-agent", 20_000)), *words]
        tracker = stack.enter_context(Process(command, scratch / "tracker.log"))
        address = tracker.wait_for(r"tracker listening on (\S+)")[1]
        if beside is not None:
            await stack.enter_async_context(beside(address))
        for start in range(0, devices, DEVICES_PER_AGENT):
            names = [f"devices/sim-{i}" for i in range(start, min(start + DEVICES_PER_AGENT, devices))]
            await stack.enter_async_context(SimulatedAgent(address, names, agent_id=f"agent-{start}"))
        channel = await stack.enter_async_context(account_channel(address))
        stub = lease_service_stub(channel)
        if waiting:
            busy = [f"devices/busy-{i}" for i in range(10)]
            await stack.enter_async_context(SimulatedAgent(address, busy, agent_id="busy", kind="busy"))
            await _let_wait(address, busy, waiting, stack)
        borrowers = [Borrower(stub, f"bench-{i}") for i in range(STREAMS)]
        for borrower in borrowers:
            stack.push_async_callback(borrower.close)
        concurrency = min(CONCURRENCY, devices)
        shares = [concurrency // STREAMS + (i < concurrency % STREAMS) for i in range(STREAMS)]
        await asyncio.gather(*(b.cycle("simulated", share, 0.5) for b, share in zip(borrowers, shares, strict=True)))
        started = time.perf_counter()
        await asyncio.gather(
            *(b.cycle("simulated", share, duration_sec) for b, share in zip(borrowers, shares, strict=True))
        )
        took_sec = time.perf_counter() - started
        latencies_sec = [sec for borrower in borrowers for sec in borrower.latencies_sec]
        cycles = sum(borrower.cycles for borrower in borrowers)
        load = Load.of(cycles, took_sec, latencies_sec, devices=devices, waiting=waiting, concurrency=concurrency)
        return replace(load, explain_ms=await _explain(stub)) if waiting else load


@asynccontextmanager
async def _standby(address: str) -> AsyncIterator[None]:
    """A standby of a tracker, as a process."""
    with tempfile.TemporaryDirectory(prefix="fleet-bench-") as folder:
        words = ("--port=0", f"--state-dir={folder}/standby", "--no-discovery", f"--standby-of={address}")
        with Process(python("fleet.tracker", *words), Path(folder) / "standby.log") as standby:
            await asyncio.to_thread(standby.wait_for, r"standby listening on \S+")
            yield


async def _explain(stub: LeaseServiceStub) -> float:
    """Return the median time of explaining a waiting request [ms]."""
    took_sec = []
    for number in range(_EXPLAINED):
        request = lease_service_pb2.ExplainRequestRequest(request_id=f"k{REQUESTS_PER_CLIENT - number}")
        started = time.perf_counter()
        await stub.explain_request(request)
        took_sec.append(time.perf_counter() - started)
    return 1e3 * statistics.median(took_sec)


async def _let_wait(address: str, busy: list[str], waiting: int, stack: AsyncExitStack) -> None:
    """Lease the busy devices, then queue requests of many accounts for them, by kind and by name."""
    gateway = await join_user(address, "gateway", may_ask_for_others=True)
    stub = lease_service_stub(await stack.enter_async_context(make_channel(address, gateway)))
    crowd = [Borrower(stub, f"crowd-{start}") for start in range(0, waiting, REQUESTS_PER_CLIENT)]
    for borrower in crowd:
        stack.push_async_callback(borrower.close)
    crowd[0].ask_many("busy", len(busy))
    await eventually(lambda: crowd[0].held == len(busy))
    for index, borrower in enumerate(crowd):
        selector = "busy" if index % 2 else f"name={busy[index % len(busy)]}"
        borrower.ask_many(selector, REQUESTS_PER_CLIENT, _ACCOUNTS)
    async with account_channel(address) as channel:
        fleet = fleet_service_stub(channel)
        waits_until = time.monotonic() + 120.0
        while (count := await _count_waiting(fleet)) < waiting:
            assert time.monotonic() < waits_until, f"{count} of {waiting} requests wait after 120 s"
            await asyncio.sleep(0.5)


async def _count_waiting(fleet: FleetServiceStub) -> int:
    response = await fleet.get_fleet(fleet_service_pb2.GetFleetRequest())
    return response.snapshot.request_count


# TVM's tracker, spoken to as its own servers and clients do

_MAGIC = struct.pack("<i", 0x2F271)


class PeerConnection:
    """One connection to TVM's tracker. `writes` 2: length and text are sent apart, as TVM's own code does."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, writes: int) -> None:
        self._reader, self._writer, self._writes = reader, writer, writes

    @classmethod
    async def open(cls, port: int, writes: int) -> PeerConnection:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        # asyncio turns Nagle's algorithm off, TVM leaves it on.
        nodelay = 0 if writes == 2 else 1
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, nodelay)
        writer.write(_MAGIC)
        assert await reader.readexactly(4) == _MAGIC
        return cls(reader, writer, writes)

    async def ask(self, request: list[object]) -> object:
        text = json.dumps(request).encode()
        length = struct.pack("<i", len(text))
        if self._writes == 2:
            self._writer.write(length)
            self._writer.write(text)
        else:
            self._writer.write(length + text)
        (size,) = struct.unpack("<i", await self._reader.readexactly(4))
        return json.loads(await self._reader.readexactly(size))

    def close(self) -> None:
        self._writer.close()


async def measure_tvm(servers: int, duration_sec: float, *, writes: int) -> Load:
    """Measure TVM's tracker: a server registers, a client gets it, the server registers again as after a session."""
    latencies_sec: list[float] = []

    async def connect(index: int, port: int) -> tuple[PeerConnection, PeerConnection]:
        server, client = await PeerConnection.open(port, writes), await PeerConnection.open(port, 1)
        await server.ask([5, {"key": f"server:key{index}", "addr": [None, 9999]}])
        return server, client

    async def cycle(index: int, server: PeerConnection, client: PeerConnection, ends_at: float) -> None:
        key = f"key{index}"
        count = 0
        while time.perf_counter() < ends_at:
            count += 1
            assert await server.ask([3, key, [9999, f"{key}:{count}"], None]) == 0
            asked_at = time.perf_counter()
            answer = await client.ask([4, key, "bench", 0])
            assert isinstance(answer, list)
            assert answer[0] == 0
            latencies_sec.append(time.perf_counter() - asked_at)

    port = common.free_port()
    words = ("--host", "127.0.0.1", "--port", port, "--port-end", port + 1)
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fleet-bench-")))
        stack.enter_context(Process(python("tvm.exec.rpc_tracker", *words), scratch / "tracker.log"))
        await eventually(lambda: is_answered(f"127.0.0.1:{port}"), 60.0)
        pairs = [await connect(index, port) for index in range(servers)]
        started = time.perf_counter()
        ends_at = started + duration_sec
        await asyncio.gather(*(cycle(index, *pair, ends_at) for index, pair in enumerate(pairs)))
        took_sec = time.perf_counter() - started
        for server, client in pairs:
            server.close()
            client.close()
    return Load.of(len(latencies_sec), took_sec, latencies_sec, devices=servers, waiting=0, concurrency=servers)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    options = common.make_parser("tracker_load", __doc__ or "", rounds=3).parse_args(argv)
    rounds = options.rounds or (1 if options.quick else 3)
    waiting, duration_sec = (_QUICK_WAITING, 1.0) if options.quick else (_WAITING, 4.0)
    machine = common.machine()
    situations = _situations(waiting, duration_sec)
    loads = {name: _median(found) for name, found in common.alternate(situations, rounds).items()}
    *peers, ours = (load for name, load in loads.items() if name.startswith("tvm") or "waiting" in name)
    peer = max(peers, key=lambda load: load.cycles_per_sec)
    columns = ("tracker", "borrowers", "cycles/s", "grant p50 [ms]", "grant p99 [ms]")
    rows = [
        (name, str(load.concurrency), f"{load.cycles_per_sec:,.0f}", f"{load.p50_ms:.2f}", f"{load.p99_ms:.2f}")
        for name, load in loads.items()
    ]
    common.print_table("grants with their release", columns, rows, common.doubts(machine, quick=options.quick))
    figures = {
        "name": "tracker_load",
        "unit": "cycles/s",
        "budget": _BUDGET,
        "peer": round(peer.cycles_per_sec, 1),
        "ours": round(ours.cycles_per_sec, 1),
        "ratio": round(ours.cycles_per_sec / peer.cycles_per_sec, 2),
        "explain_ms": ours.explain_ms,
        "standby_ratio": round(loads[_FOLLOWED].cycles_per_sec / loads[_ALONE].cycles_per_sec, 2),
        "loads": {name: asdict(load) for name, load in loads.items()},
        "rounds": rounds,
        "quick": options.quick,
        "machine": machine,
    }
    common.print_json(figures, wanted=options.json)
    return 0


def _situations(waiting: int, duration_sec: float) -> dict[str, Callable[[int], Load]]:
    def ours(devices: int, waiting: int = 0) -> Callable[[int], Load]:
        return lambda _: asyncio.run(measure_fleet(devices, waiting, duration_sec))

    def followed(devices: int) -> Callable[[int], Load]:
        return lambda _: asyncio.run(measure_fleet(devices, 0, duration_sec, beside=_standby))

    def peer(writes: int) -> Callable[[int], Load]:
        return lambda _: asyncio.run(measure_tvm(CONCURRENCY, duration_sec, writes=writes))

    return {
        "tvm tracker, as its servers speak": peer(writes=2),
        "tvm tracker, one write a message": peer(writes=1),
        "fleet, 1 device": ours(1),
        _ALONE: ours(1_000),
        _FOLLOWED: followed(1_000),
        "fleet, 10,000 devices": ours(10_000),
        f"fleet, 10,000 devices, {waiting:,} waiting": ours(10_000, waiting),
    }


def _median(rounds: Sequence[Load]) -> Load:
    """Return the round that lies in the middle by its cycles."""
    return sorted(rounds, key=lambda load: load.cycles_per_sec)[len(rounds) // 2]


if __name__ == "__main__":
    sys.exit(main())
