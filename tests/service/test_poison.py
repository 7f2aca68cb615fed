"""A program that kills a board goes through the tracker to all agents, which refuse it unasked."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import fleet.aio
from device_agents.agent import Agent, Home
from device_agents.config import make_drivers, parse_config
from fleet.artifacts.artifact import Artifact
from fleet.cli.main import app
from fleet.client.device import Device
from fleet.client.identity_calls import IdentityCalls
from fleet.domain.measuring import ErrorKind, Trial
from fleet.domain.poison import KEPT_SEC
from fleet.errors import InvalidRequest, LimitReached, MeasurementError, NotAllowed, NotFound
from fleet.identity.store import CredentialStore
from fleet.testing import FakeClock, ServedTracker, SimulatedAgent, eventually, serve_tracker
from fleet.testing.identity import account_proof
from tests.service.identity_parts import user
from tests.service.served_tracker import served as served

DIGEST = "sha256:" + 64 * "0"
OTHER = "sha256:" + 63 * "0" + "1"
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


async def test_an_admin_lists_poison_and_has_it_forgotten_by_all_agents(tmp_path: Path) -> None:
    """Attached agents drop it, later ones never get it, and the audit log and the journal have the removal."""
    async with (
        serve_tracker(state_dir=tmp_path) as served,
        SimulatedAgent(served.address, ["devices/a"], agent_id="one") as one,
        SimulatedAgent(served.address, ["devices/b"], agent_id="two") as two,
        fleet.aio.connect(served.address) as client,
    ):
        one.find_poison(DIGEST, OTHER, device_name="devices/a")
        await eventually(lambda: len(served.tracker.state.poison) == 2)
        listed = await client.poison()
        assert [(each.digest, each.device_name) for each in listed] == [(DIGEST, "devices/a"), (OTHER, "devices/a")]
        assert all(each.reported_by for each in listed)

        assert await client.forget_poison(DIGEST) == listed[0]
        assert await client.poison() == listed[1:]
        with pytest.raises(NotFound, match="fleet poison list"):
            await client.forget_poison(DIGEST)
        with pytest.raises(InvalidRequest, match="malformed"):
            await client.forget_poison("sha256:1")
        one.find_poison(DIGEST, device_name="devices/a")  # a report that was under way
        await eventually(lambda: one.forgotten_poison and two.forgotten_poison, timeout_sec=20.0)
        assert one.forgotten_poison == two.forgotten_poison == [DIGEST]
        async with IdentityCalls(served.address) as admin:
            (entry,) = [
                entry for entry in await admin.audit_entries(100) if entry.action == "PoisonService.ForgetPoison"
            ][:1]
        assert DIGEST in entry.subject
        await served.restart()
        await eventually(lambda: client.is_connected)
        assert await client.poison() == listed[1:]
        async with SimulatedAgent(served.address, ["devices/c"], agent_id="three") as three:
            assert three.poison == [OTHER]


async def test_a_user_lists_poison_and_may_not_forget_it(served: ServedTracker) -> None:
    async with SimulatedAgent(served.address, ["devices/a"]) as agent:
        agent.find_poison(DIGEST, device_name="devices/a")
        await eventually(lambda: served.tracker.state.poison)
        store, proof = CredentialStore(), account_proof(served.address)
        store.save(served.address, user())
        try:
            async with fleet.aio.connect(served.address) as client:
                assert [each.digest for each in await client.poison()] == [DIGEST]
                with pytest.raises(NotAllowed, match="forgetting poison takes the role admin"):
                    await client.forget_poison(DIGEST)
        finally:
            store.save(served.address, proof)
        assert served.tracker.state.poison


@pytest.mark.slow
async def test_a_forgotten_program_runs_again_on_a_real_agent(tmp_path: Path) -> None:
    """Within the next heartbeats."""
    bad = program(tmp_path, b"crash")
    async with (
        serve_tracker() as tracker,
        fleet.aio.connect(tracker.address) as client,
        SimulatedAgent(tracker.address, ["devices/x"]) as reporter,
        agent_of("a", tracker, tmp_path) as agent,
    ):
        assert await agent.wait_attached(60.0)
        reporter.find_poison(bad.digest, device_name="devices/x")
        async with client.acquire("name=a") as device, asyncio.timeout(30.0):
            while await error_of(device, bad) is not ErrorKind.POISONED:
                continue
            await client.forget_poison(bad.digest)
            while (error := await error_of(device, bad)) is ErrorKind.POISONED:
                continue

    assert error is ErrorKind.CRASHED


async def test_the_commands_list_and_forget_by_the_first_digits(served: ServedTracker) -> None:
    async with SimulatedAgent(served.address, ["devices/a"]) as agent:

        async def run(*words: str) -> tuple[int, str, str]:
            done = await asyncio.to_thread(CliRunner().invoke, app, ["--tracker", served.address, "poison", *words])
            return done.exit_code, done.stdout, done.stderr

        empty = await run("list")
        agent.find_poison(DIGEST, OTHER, device_name="devices/a")
        await eventually(lambda: len(served.tracker.state.poison) == 2)
        listed = await run("list")
        documents = await run("list", "--json")
        several, none, malformed = await run("forget", "00"), await run("forget", "ab"), await run("forget", "x" * 80)
        unnamed = await run("forget", " ")
        forgotten = await run("forget", OTHER.removeprefix("sha256:")[-64:])
        by_digits = await run("forget", "0000", "--json")

    assert empty[1] == "no program is refused\n"
    assert "000000000000  a" in listed[1]
    assert [each["digest"] for each in json.loads(documents[1])["programs"]] == [DIGEST, OTHER]
    assert (several[0], none[0], malformed[0], unnamed[0]) == (2, 1, 2, 2)
    assert "give more digits" in several[2]
    assert forgotten[2].startswith("forgot 000000000000, which ran when a faulted")
    assert [each["digest"] for each in json.loads(by_digits[1])["programs"]] == [DIGEST]
