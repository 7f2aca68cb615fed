"""A program that kills a board goes through the tracker to all agents, which refuse it unasked."""

from __future__ import annotations

from pathlib import Path

import pytest

import fleet.aio
from device_agents.agent import Agent, Home
from device_agents.config import make_drivers, parse_config
from fleet.artifacts.artifact import Artifact
from fleet.client.device import Device
from fleet.domain.measuring import ErrorKind, Trial
from fleet.domain.poison import KEPT_SEC
from fleet.errors import InvalidRequest, LimitReached, MeasurementError
from fleet.testing import FakeClock, ServedTracker, SimulatedAgent, eventually, serve_tracker
from tests.service.served_tracker import served as served

DIGEST = "sha256:" + 64 * "0"
FAULTY = {"disconnect_after": 1, "reconnect_sec": 3600.0}


def agent_of(name: str, tracker: ServedTracker, folder: Path, **settings: object) -> Agent:
    entry = {"driver": "simulated", "name": name, "time_scale": 0.0, **settings}
    config = parse_config({"devices": [entry]})
    return Agent(config, make_drivers(config), Home(tracker=tracker.address, state_dir=folder / name))


def program(folder: Path, content: bytes) -> Artifact:
    path = folder / "program.so"
    path.write_bytes(content)
    return Artifact.of_file(path)


async def error_of(device: Device, artifact: Artifact, *, allow_poison: bool = False) -> ErrorKind | None:
    """Measure a program; return its error."""
    await device.ensure([artifact])
    trial = Trial(candidate_id="c", artifact_digest=artifact.digest, allow_poison=allow_poison)
    (found,) = [measurement async for measurement in device.measure([trial])]
    return found.error


@pytest.mark.slow
async def test_a_program_that_killed_a_board_is_refused_by_all_agents_unless_asked(tmp_path: Path) -> None:
    """Also after a restart of the tracker, by agents that come later."""
    bad = program(tmp_path, b"crash")
    async with serve_tracker() as tracker, fleet.aio.connect(tracker.address) as client:
        async with agent_of("a", tracker, tmp_path, **FAULTY) as agent:
            assert await agent.wait_attached(60.0)
            async with client.acquire("name=a") as device:
                assert await error_of(device, bad) is ErrorKind.CRASHED
                await eventually(lambda: bad.digest in tracker.tracker.state.poison)
        await tracker.restart()
        async with agent_of("b", tracker, tmp_path) as agent:
            assert await agent.wait_attached(60.0)
            async with client.acquire("name=b") as device:
                assert await error_of(device, bad) is ErrorKind.POISONED
                with pytest.raises(MeasurementError, match="allow_poison runs it all the same") as raised:
                    await device.call(bad, [])
                assert raised.value.kind is ErrorKind.POISONED
                proof = await device.prove(bad, [], 1e-3)
                assert (proof.verdict, "a device faulted" in proof.message) == ("IMPOSSIBLE", True)

                assert await error_of(device, bad, allow_poison=True) is ErrorKind.CRASHED
                with pytest.raises(MeasurementError) as raised:
                    await device.call(bad, [], allow_poison=True)
                assert raised.value.kind is ErrorKind.CRASHED


@pytest.mark.slow
async def test_a_program_that_fails_on_a_board_that_stays_well_is_no_poison(tmp_path: Path) -> None:
    """It may be tried again."""
    bad = program(tmp_path, b"crash")
    async with (
        serve_tracker() as tracker,
        fleet.aio.connect(tracker.address) as client,
        agent_of("a", tracker, tmp_path) as agent,
    ):
        assert await agent.wait_attached(60.0)
        async with client.acquire("name=a") as device:
            errors = [await error_of(device, bad) for _ in range(2)]

    assert errors == [ErrorKind.CRASHED, ErrorKind.CRASHED]


async def test_agents_are_sent_poison_when_they_attach_and_when_it_is_new(served: ServedTracker) -> None:
    """Each program once."""
    async with (
        SimulatedAgent(served.address, ["devices/a"], agent_id="one") as one,
        SimulatedAgent(served.address, ["devices/b"], agent_id="two") as two,
    ):
        one.find_poison(DIGEST, device_name="devices/a")
        one.find_poison(DIGEST, device_name="devices/a")
        await eventually(lambda: one.poison and two.poison, timeout_sec=20.0)
        async with SimulatedAgent(served.address, ["devices/c"], agent_id="three") as three:
            await eventually(lambda: three.poison)

            assert [agent.poison for agent in (one, two, three)] == [[DIGEST]] * 3


async def test_poison_that_was_forgotten_is_not_sent(tmp_path: Path) -> None:
    clock = FakeClock()
    async with serve_tracker(clock=clock) as served:
        async with SimulatedAgent(served.address, ["devices/a"]) as agent:
            agent.find_poison(DIGEST, device_name="devices/a")
            await eventually(lambda: served.tracker.state.poison)
        clock.advance(KEPT_SEC + 1.0)
        async with SimulatedAgent(served.address, ["devices/b"]) as agent:
            assert agent.poison == []


@pytest.mark.parametrize(
    ("digests", "error", "message"),
    [
        ((DIGEST, "sha256:\x1b[31m"), InvalidRequest, r"the digest 'sha256:\\x1b\[31m' is malformed"),
        ((DIGEST,) * 1001, LimitReached, "1001 programs in one message; a fleet remembers 1000"),
    ],
)
async def test_a_bad_report_of_poison_ends_the_stream(
    served: ServedTracker, digests: tuple[str, ...], error: type[Exception], message: str
) -> None:
    """Nothing of it is kept."""
    async with SimulatedAgent(served.address, ["devices/a"]) as agent:
        agent.find_poison(*digests, device_name="devices/a")
        await eventually(lambda: agent.error)

        with pytest.raises(error, match=message):
            raise agent.error or AssertionError
        assert not served.tracker.state.poison
