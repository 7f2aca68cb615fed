"""Logs of leases: real agents and trackers, their holders, admins and others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

import fleet.aio
from device_agents.serving import log_service
from device_agents.serving.lease_logs import LEASE_BYTES
from fleet.aio import Fleet
from fleet.artifacts.artifact import Artifact
from fleet.client.device import Device
from fleet.client.identity_calls import IdentityCalls
from fleet.client.lease_logs import read_log
from fleet.domain.measuring import Evaluator, Trial
from fleet.errors import KeyRevoked, LimitReached, NotAllowed, NotFound, TrackerUnavailable
from fleet.identity.certificates import make_key, own_key_id
from fleet.identity.credentials import Credentials
from fleet.identity.roles import Role
from fleet.testing import ServedTracker, eventually, serve_tracker
from fleet.testing.identity import account_proof, credentials
from fleet.wire.rpc import make_channel
from tests.service.identity_parts import get_fleet, serve_agent, user

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Site:
    """A tracker, an agent with a simulated device, and a client of another user than the admin's account."""

    served: ServedTracker
    client: Fleet
    folder: Path

    async def run(self, device: Device, content: str, timeout_sec: float = 10.0) -> None:
        """Measure a simulated candidate."""
        path = self.folder / "candidate"
        path.write_text(content)
        artifact = Artifact.of_file(path)
        await device.ensure([artifact])
        trial = Trial(
            candidate_id="c",
            artifact_digest=artifact.digest,
            evaluator=Evaluator(number=1, repeat=1),
            timeout_sec=timeout_sec,
        )
        async for _ in device.measure([trial]):
            pass

    async def log(self, name: str, proof: Credentials, *, follow: bool = False) -> str:
        """Read a log with these credentials."""
        snapshot = await self.client.snapshot()
        return "".join([text async for text in read_log(snapshot, name, proof, follow=follow)])


@asynccontextmanager
async def serve_site(folder: Path) -> AsyncIterator[Site]:
    async with (
        serve_tracker() as served,
        serve_agent(served.address, folder / "agent") as agent,
        fleet.aio.connect(served.address) as client,
    ):
        assert await agent.wait_attached(60.0)
        yield Site(served, client, folder)


async def test_holder_and_admins_read_the_output_after_the_end(tmp_path: Path) -> None:
    """Others are refused, and terminal escapes are removed."""
    async with serve_site(tmp_path) as site:
        async with site.client.acquire("simulated") as device:
            name = device.lease.name
            await site.run(device, "say:\x1b[31mred\x07 \u202ehello")

        own = [text async for text in site.client.lease_log(name)]
        assert "".join(own) == "[31mred hello\n"
        assert await site.log(name, credentials(Role.ADMIN, make_key())) == "[31mred hello\n"
        with pytest.raises(NotAllowed, match=r"the output of leases/.* is another's"):
            await site.log(name, user())
        with pytest.raises(NotAllowed):
            await site.log(name, credentials(Role.AGENT, make_key()))


async def test_a_follower_reads_until_the_session_ends(tmp_path: Path) -> None:
    """Output of before and of meanwhile, once each."""
    async with serve_site(tmp_path) as site:
        texts: list[str] = []

        async def follow(name: str) -> None:
            async for text in site.client.lease_log(name, follow=True):
                texts.append(text)  # noqa: PERF401 - read while it grows

        async with site.client.acquire("simulated") as device:
            await site.run(device, "say:before")
            following = asyncio.create_task(follow(device.lease.name))
            await eventually(lambda: "".join(texts) == "before\n")
            await site.run(device, "say:meanwhile")
            await eventually(lambda: "".join(texts) == "before\nmeanwhile\n")
        await asyncio.wait_for(following, 60)

        assert "".join(texts) == "before\nmeanwhile\n"


async def test_a_worker_that_writes_without_end_fills_one_mebibyte(tmp_path: Path) -> None:
    """The device serves its next candidate meanwhile as usual."""
    async with serve_site(tmp_path) as site, site.client.acquire("simulated") as device:
        await site.run(device, "chatter", timeout_sec=3.0)
        await site.run(device, "say:hello")

        text = "".join([text async for text in site.client.lease_log(device.lease.name)])
        assert LEASE_BYTES <= len(text) < LEASE_BYTES + 100
        assert text.endswith("(later output was not kept)\n")


async def test_unknown_leases_have_no_log(tmp_path: Path) -> None:
    """The message says why that may be."""
    async with serve_site(tmp_path) as site:
        with pytest.raises(NotFound, match="no agent keeps output of leases/none: its workers wrote nothing"):
            await site.log("leases/none", credentials(Role.ADMIN, make_key()))


async def test_a_revoked_key_reads_nothing(tmp_path: Path) -> None:
    """Agents ask the tracker, since no token of it vouches for the caller; they refuse all while it is away."""
    lost = credentials(Role.ADMIN, make_key())
    async with serve_site(tmp_path) as site:
        async with site.client.acquire("simulated") as device:
            name = device.lease.name
            await site.run(device, "say:hello")
        snapshot = await site.client.snapshot()
        assert [text async for text in read_log(snapshot, name, lost, follow=False)] == ["hello\n"]
        async with make_channel(site.served.address, lost) as channel:
            await get_fleet(channel)  # known to the tracker
        async with IdentityCalls(site.served.address) as calls:
            await calls.revoke(own_key_id(lost.key_pem), "lost")

        async def is_refused() -> bool:
            try:
                await site.log(name, lost)
            except KeyRevoked:
                return True
            return False

        await eventually(is_refused)
        await site.served.stop()
        await asyncio.sleep(2.1)  # an answer of the tracker serves for two seconds
        with pytest.raises(TrackerUnavailable):
            _ = [text async for text in read_log(snapshot, name, lost, follow=False)]


async def test_readers_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One member cannot hold an agent's streams."""
    monkeypatch.setattr(log_service, "_MOST_OF_ONE", 2)
    async with serve_site(tmp_path) as site, site.client.acquire("simulated") as device:
        name, proof = device.lease.name, account_proof(site.served.address)
        await site.run(device, "say:hello")
        followers = [asyncio.create_task(site.log(name, proof, follow=True)) for _ in range(3)]
        done, _ = await asyncio.wait(followers, timeout=60, return_when=asyncio.FIRST_COMPLETED)

        (refused,) = done
        assert isinstance(refused.exception(), LimitReached)
        for task in followers:
            task.cancel()
        await asyncio.gather(*followers, return_exceptions=True)
