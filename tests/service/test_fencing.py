"""No device runs for two holders, whatever is lost: the journal, the clock, the agent."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

import fleet.aio
from device_agents.agent import Agent, Home
from device_agents.config import make_drivers, parse_config
from fleet.domain.tokens import EPOCHS_END
from fleet.errors import DeviceUnreachable, LeaseRevoked, NotFound
from fleet.identity.roles import Role
from fleet.testing import FakeClock, LeaseStream, ServedTracker, SimulatedAgent, eventually, serve_tracker
from fleet.testing.identity import credentials
from fleet.v1 import lease_pb2
from tests.programs import is_alive
from tests.service.agent_bench import DEVICE, SIMULATED, Holder, admit

pytestmark = pytest.mark.slow
NOW_SEC = 1_800_000_000.0
HOUR_SEC = 3600.0


class ClockThatIsSet(FakeClock):
    """Goes back, too."""

    def set(self, now_sec: float) -> None:
        self._now_sec = now_sec


class Fleet:
    """A tracker with a state and a clock that can be replaced while its agent and holders live on."""

    def __init__(self, tracker: ServedTracker, clock: ClockThatIsSet, folder: Path, stack: AsyncExitStack) -> None:
        self.tracker = tracker
        self.clock = clock
        self.state_dir = folder / "tracker"
        self._folder = folder
        self._stack = stack
        self._agent: Agent | None = None

    async def start_agent(self) -> Agent:
        config = parse_config(SIMULATED)
        home = Home(tracker=self.tracker.address, state_dir=self._folder / "agent")
        admit(home.state_dir)
        agent = self._agent = Agent(config, make_drivers(config), home)
        await self._stack.enter_async_context(agent)
        assert await agent.wait_attached(60.0)
        return agent

    async def stop_agent(self) -> None:
        assert self._agent is not None
        await self._agent.close()

    async def hold(self, client_id: str) -> tuple[LeaseStream, lease_pb2.Granted, Holder]:
        """Acquire the device with a client of its own; return its stream, the grant and a holder."""
        stream = await self._stack.enter_async_context(
            LeaseStream(self.tracker.address, client_id, proof=credentials(Role.USER))
        )
        assert self._agent is not None
        await eventually(lambda: DEVICE in self.tracker.tracker.state.matching.free_devices(), 30.0)
        granted = await stream.grant("r", "simulated", ttl_sec=300.0)
        return stream, granted, self.holder(granted.token)

    def holder(self, token: lease_pb2.Token) -> Holder:
        assert self._agent is not None
        holder = Holder(self._agent.port, token.SerializeToString())
        self._stack.push_async_callback(holder.close)
        return holder


@asynccontextmanager
async def fleet_of_one(folder: Path) -> AsyncIterator[Fleet]:
    clock = ClockThatIsSet(NOW_SEC)
    async with (
        serve_tracker(clock=clock, state_dir=folder / "tracker") as tracker,
        AsyncExitStack() as stack,
    ):
        made = Fleet(tracker, clock, folder, stack)
        await made.start_agent()
        yield made


@pytest.mark.parametrize(
    ("is_copied", "clock_sec", "is_used"),
    [
        pytest.param(True, 0.0, True, id="restored"),
        pytest.param(False, 0.0, False, id="wiped"),
        pytest.param(False, -HOUR_SEC, True, id="wiped-clock-back"),
        pytest.param(True, -HOUR_SEC, False, id="restored-clock-back-unused"),
    ],
)
async def test_a_lost_journal_fences_the_former_holder(
    tmp_path: Path, *, is_copied: bool, clock_sec: float, is_used: bool
) -> None:
    """A tracker without the journal grants the device again, and the former holder is refused for good, with any clock,
    and whether it had used its token or not.
    """
    async with fleet_of_one(tmp_path) as held:
        copy = tmp_path / "copy"
        await held.tracker.stop()
        shutil.copytree(held.state_dir, copy)
        await held.tracker.start()
        _, old_grant, old = await held.hold("old")
        pid = await old.open() if is_used else 0
        await held.tracker.stop()
        for path in held.state_dir.glob("journal.sqlite*"):
            path.unlink()
        if is_copied:
            shutil.copytree(copy, held.state_dir, dirs_exist_ok=True)
        held.clock.set(NOW_SEC + clock_sec)
        await held.tracker.start()

        _, grant, new = await held.hold("new")

        assert await new.open() > 0
        with pytest.raises(LeaseRevoked):
            await old.open()
        assert not (pid and is_alive(pid))
        assert grant.lease.name != old_grant.lease.name
        assert not is_used or grant.lease.epoch > old_grant.lease.epoch


async def test_a_lease_outlives_its_agent(tmp_path: Path) -> None:
    """The agent killed and back: same lease, same token, a new worker."""
    async with fleet_of_one(tmp_path) as held:
        stream, grant, holder = await held.hold("client")
        pid = await holder.open()

        await held.stop_agent()
        assert not is_alive(pid)
        await held.start_agent()

        assert await held.holder(grant.token).open() > 0
        stream.renew(grant.lease.name)
        renewed = await eventually(lambda: stream.renewed.get(grant.lease.name))
        assert await held.holder(renewed.token).open() > 0
        assert not stream.ended


async def test_a_forged_epoch_does_not_lock_the_device(tmp_path: Path) -> None:
    """Epochs continue from above an agent's ledger; if that is impossible, the device shows the remedy, and one command
    heals it.
    """
    async with serve_tracker(state_dir=tmp_path) as served, fleet.aio.connect(served.address) as client:
        async with SimulatedAgent(served.address, ["devices/a"]) as agent:
            agent.report("devices/a", is_healthy=True, highest_epoch=EPOCHS_END + 5)
            await eventually(lambda: not served.tracker.state.devices["devices/a"].is_healthy)
            assert "fleet devices reset-epochs a" in served.tracker.state.devices["devices/a"].reason

            epoch = await client.reset_epochs("devices/a")

            await eventually(lambda: agent.resets.get("devices/a") == epoch)
        async with SimulatedAgent(served.address, ["devices/a"]), client.acquire("name=a") as device:
            assert device.lease.epoch > epoch


async def test_only_an_attached_device_is_reset(tmp_path: Path) -> None:
    """The reset must reach its agent."""
    async with serve_tracker(state_dir=tmp_path) as served, fleet.aio.connect(served.address) as client:
        with pytest.raises(NotFound, match="fleet devices"):
            await client.reset_epochs("devices/a")
        async with SimulatedAgent(served.address, ["devices/a"]):
            pass
        await eventually(lambda: not served.tracker.state.devices["devices/a"].is_attached)
        with pytest.raises(DeviceUnreachable, match="not attached"):
            await client.reset_epochs("devices/a")


async def test_after_a_reset_no_earlier_holder_comes_back(tmp_path: Path) -> None:
    """The lease of that moment ends, its token is refused although its epoch is larger, and a new one works."""
    async with fleet_of_one(tmp_path) as held, fleet.aio.connect(held.tracker.address) as client:
        stream, _, old = await held.hold("old")
        await old.open()

        await client.reset_epochs(DEVICE)

        assert await eventually(lambda: list(stream.ended.values()))

        async def is_refused() -> bool:
            try:
                await old.open()
            except LeaseRevoked:
                return True
            return False

        await eventually(is_refused)  # the agent learns of it on a stream of its own
        _, _, new = await held.hold("new")
        assert await new.open() > 0
        with pytest.raises(LeaseRevoked):
            await old.open()
