"""A device in batches for a refresh in idle time, at a real tracker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import fleet.aio
from fleet.base.clock import SystemClock
from fleet.base.tasks import started
from fleet.client.aio import Fleet
from fleet.domain.leases import Lease, LeaseClass
from fleet.errors import ErrorKind, MeasurementError
from fleet.optimizer.refreshing.idle import DAY_SEC, DayUse, IdleRules, Interest
from fleet.optimizer.refreshing.idle_device import NOTE, IdleDevice, follow
from fleet.optimizer.refreshing.idle_files import IdleFiles
from fleet.testing import SimulatedAgent, eventually, serve_tracker
from fleet.v1 import measurement_pb2
from tests.service.client_fakes import serving
from tests.service.odd_agent import OddAgent, artifact, measured

pytestmark = pytest.mark.slow

_DEVICE = "devices/odd"
_RULES = IdleRules(share=0.5, quiet_sec=0.2, batch_sec=1.0)


class SlowAgent(OddAgent):
    """Each trial takes 30 ms."""

    async def measure(self, requests: Any, context: Any) -> AsyncIterator[measurement_pb2.MeasureResponse]:
        async for answer in super().measure(requests, context):
            await asyncio.sleep(0.03)
            yield answer


@dataclass(kw_only=True)
class Bench:
    """One device in batches, and a client of somebody else."""

    idle: IdleDevice
    other: Fleet
    agent: OddAgent
    files: IdleFiles
    blocked: list[bool] = field(default_factory=list)

    async def leases(self) -> tuple[Lease, ...]:
        return (await self.other.snapshot()).leases

    async def is_free(self) -> bool:
        return not await self.leases()

    def used_sec(self) -> float:
        return self.files.use(_DEVICE).used_sec(time.time())


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with opened(tmp_path, DayUse()) as found:
        yield found


@asynccontextmanager
async def opened(folder: Path, used: DayUse) -> AsyncIterator[Bench]:
    """Serve a tracker with one device, which was used before."""
    files, clock, agent, blocked = IdleFiles(folder=folder / "idle"), SystemClock(), SlowAgent(), list[bool]()
    files.write_use(_DEVICE, used)
    interest = Interest(device_name=_DEVICE, wanted_at_sec=clock.now_sec())
    async with (
        serving(session=agent) as address,
        serve_tracker() as tracker,
        SimulatedAgent(tracker.address, [_DEVICE], address=address),
        fleet.aio.connect(tracker.address, holder="somebody") as other,
        fleet.aio.connect(tracker.address, holder=NOTE) as client,
        started(follow(client, interest, clock), name="follow"),
        IdleDevice(
            client,
            interest,
            rules=_RULES,
            files=files,
            clock=clock,
            is_blocked=lambda: bool(blocked),
            notice=lambda _: None,
        ) as idle,
    ):
        yield Bench(idle=idle, other=other, agent=agent, files=files, blocked=blocked)


async def test_an_unused_device_is_given_back(bench: Bench) -> None:
    """Everybody sees the refresh as the holder; less than the whole batch counts in the end."""
    await bench.idle.device()
    [lease] = await bench.leases()
    assert "refresh" in lease.held_by
    assert bench.used_sec() == _RULES.batch_sec

    await eventually(bench.is_free)
    await eventually(lambda: 0 < bench.used_sec() < _RULES.batch_sec)


@pytest.mark.parametrize("lease_class", [LeaseClass.INTERACTIVE, LeaseClass.BATCH])
async def test_every_request_goes_before(bench: Bench, tmp_path: Path, lease_class: LeaseClass) -> None:
    """The device is given back between two trials. The others follow after a quiet time; none is lost."""
    measuring = asyncio.create_task(measured(bench.idle, artifact(tmp_path), 40))
    await eventually(lambda: len(bench.agent.measured) > 1)
    async with bench.other.acquire("name=odd", lease_class=lease_class) as device:
        assert [lease.name for lease in await bench.leases()] == [device.lease.name]
        assert not measuring.done()

    assert [found.candidate_id for found in await measuring] == [str(number) for number in range(40)]


async def test_long_series_take_several_batches(bench: Bench, tmp_path: Path) -> None:
    """No lease outlasts a batch."""
    found = await measured(bench.idle, artifact(tmp_path), 60)

    assert len(found) == 60
    assert bench.agent.opens > 1


async def test_no_batch_begins_while_a_job_wants_the_device(bench: Bench) -> None:
    """It begins when the job has ended."""
    bench.blocked.append(True)
    async with started(bench.idle.device(), name="device") as waiting:
        await eventually(lambda: bench.idle.waits_since_sec is not None)
        await asyncio.sleep(_RULES.quiet_sec)
        assert await bench.is_free()
        bench.blocked.clear()
        assert (await waiting).name == _DEVICE


async def test_no_batch_begins_without_a_share(tmp_path: Path) -> None:
    """The use before a restart counts."""
    used = DayUse().with_batch(time.time(), _RULES.share * DAY_SEC)
    async with opened(tmp_path, used) as bench, started(bench.idle.device(), name="device") as waiting:
        await eventually(lambda: bench.idle.waits_since_sec is not None)
        await asyncio.sleep(2 * _RULES.quiet_sec)
        assert not waiting.done()
        assert await bench.is_free()


async def test_a_call_that_does_not_fit_into_a_batch_is_counted(bench: Bench, tmp_path: Path) -> None:
    """The lease ends meanwhile, so a long program does not hold the device."""
    never: Callable[[], Awaitable[object]] = asyncio.Event().wait
    bench.agent.before_call = never

    with pytest.raises(MeasurementError, match="does not fit into a batch") as raised:
        await bench.idle.call(artifact(tmp_path), [])

    assert (raised.value.kind, bench.idle.cut_count) == (ErrorKind.TIMEOUT, 1)
