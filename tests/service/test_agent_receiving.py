"""An agent receives uploads between the candidates that run on its own processors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from device_agents.driver import NoStrays
from device_agents.drivers.simulated import SimulatedDriver
from device_agents.serving import receiving
from device_agents.serving.admission import Claims
from device_agents.serving.device import ServedDevice
from device_agents.serving.receiving import receive
from device_agents.serving.session import Session
from device_agents.serving.store import ArtifactStore
from device_agents.workers.limits import WorkerLimits
from device_agents.workers.pool import WorkerPool
from fleet.base.digests import digest_of
from fleet.domain.devices import Inventory
from fleet.errors import InvalidRequest
from fleet.testing import eventually
from fleet.v1 import session_service_pb2 as pb

CONTENTS = [f"artifact {number}".encode() for number in range(8)]


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    made = ArtifactStore(tmp_path / "artifacts", 1_000_000)
    made.open()
    return made


@pytest.fixture
async def session(tmp_path: Path, store: ArtifactStore) -> Session:
    (driver,) = SimulatedDriver.from_config({"name": "sim"}, where="test", host_name="here")
    claims = Claims(lease_name="leases/1", device_name="devices/sim", epoch=1, holder="me", expires_at_sec=1e12)
    pool = WorkerPool(tmp_path / "workers", [], WorkerLimits(memory_bytes=2**30, disk_bytes=2**30))
    return Session(claims, ServedDevice(driver, asyncio.Lock()), pool, store)


class LateBoard(SimulatedDriver):
    """Its architecture is known only after the first contact, as with a phone."""

    is_there = False

    def _inventory(self) -> Inventory:
        found = super()._inventory()
        return replace(found, labels={**found.labels, "arch": "aarch64" if self.is_there else "unknown"})


class Upload:
    """Chunks that are available at once."""

    def __init__(self) -> None:
        self.is_read = False
        self.breaks_with: Exception | None = None

    async def chunks(self) -> AsyncIterator[pb.PutArtifactRequest]:
        for content in CONTENTS:
            yield pb.PutArtifactRequest(digest=digest_of(content), size_bytes=len(content), chunk=content)
        self.is_read = True
        if self.breaks_with is not None:
            raise self.breaks_with


async def test_artifacts_arriving_during_a_run_are_ready_for_the_next(
    session: Session, store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch of small artifacts does not wait for several candidates."""
    monkeypatch.setattr(receiving, "_WORK_SEC", 60.0)
    upload, digests = Upload(), list(map(digest_of, CONTENTS))
    async with session.device.quiet():  # a candidate runs
        receiving_all = asyncio.create_task(receive(upload.chunks(), session, store))
        await eventually(lambda: upload.is_read)
        there_meanwhile = [digest for digest in digests if await store.find(digest, session) is not None]
        next_candidate = asyncio.create_task(missing_when_it_runs(session, store, digests))

    assert there_meanwhile == []
    assert await next_candidate == 0
    assert await receiving_all == digests


async def test_candidates_run_between_the_moments_of_a_long_upload(
    session: Session, store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An upload holds the device for one chunk at a time, if a chunk takes long."""
    monkeypatch.setattr(receiving, "_WORK_SEC", 0.0)
    upload, digests = Upload(), list(map(digest_of, CONTENTS))
    async with session.device.quiet():
        receiving_all = asyncio.create_task(receive(upload.chunks(), session, store))
        await eventually(lambda: upload.is_read)
        next_candidate = asyncio.create_task(missing_when_it_runs(session, store, digests))

    assert await next_candidate > 0
    assert await receiving_all == digests


async def test_an_upload_that_breaks_leaves_the_device_to_candidates(session: Session, store: ArtifactStore) -> None:
    """Artifacts that arrived before the failure are kept, and the client gets its cause."""
    upload = Upload()
    upload.breaks_with = InvalidRequest("no chunk")

    with pytest.raises(InvalidRequest, match="no chunk"):
        await receive(upload.chunks(), session, store)

    async with asyncio.timeout(60):
        assert await missing_when_it_runs(session, store, list(map(digest_of, CONTENTS))) <= 1


async def missing_when_it_runs(session: Session, store: ArtifactStore, digests: list[str]) -> int:
    async with session.device.quiet():
        return sum([await store.find(digest, session) is None for digest in digests])


async def test_an_architecture_that_was_unknown_is_learnt() -> None:
    """Uploads may precede a board's first contact; later ones are checked against its real architecture."""
    (board,) = LateBoard.from_config({"name": "late"}, where="test", host_name="here")
    await board.open(NoStrays())
    device = ServedDevice(board, asyncio.Lock())
    assert device.arch == "unknown"

    board.is_there = True
    device.inventory()  # the tracker gets it

    assert device.arch == "aarch64"
