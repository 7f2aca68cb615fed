"""A standby in this process: it has all that its tracker has, keeps nobody waiting, and takes over."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path

import grpc
import grpc.aio
import pytest

import fleet.aio
from fleet.client import stream as stream_module
from fleet.client.aio import Fleet
from fleet.client.identity_calls import IdentityCalls
from fleet.domain.terms import make_proof
from fleet.domain.tokens import load_or_make_key
from fleet.errors import (
    ConfigError,
    InvalidRequest,
    JournalDamaged,
    KeyRevoked,
    NotAllowed,
    NotJoined,
    TrackerStandsBy,
    TrackerUnavailable,
)
from fleet.identity.certificates import make_key, own_key_id
from fleet.identity.credentials import Proof
from fleet.identity.roles import Role
from fleet.identity.store import CredentialStore
from fleet.testing import LeaseStream, ServedTracker, SimulatedAgent, eventually, serve_tracker
from fleet.testing.identity import account_channel, account_proof, agent_credentials, join_user
from fleet.tracker.journal.checking import Chain
from fleet.tracker.journal.codec import Row, sum_of
from fleet.tracker.journal.commits import Commit
from fleet.tracker.journal.copy import reader
from fleet.tracker.journal.file import Journal
from fleet.tracker.journal.replica import ReplicaJournal
from fleet.tracker.options import TrackerOptions
from fleet.tracker.replica import gate as gate_module
from fleet.tracker.replica.membership import join_as_standby, standby_credentials
from fleet.tracker.replica.replica_state import ReplicaState
from fleet.tracker.replica.standby import Standby
from fleet.tracker.replica.standing import Duty, Standing, read_standing, write_standing
from fleet.tracker.server import Tracker
from fleet.v1 import agent_service_pb2, fleet_service_pb2
from fleet.v1 import replica_service_pb2 as pb
from fleet.wire import replicas
from fleet.wire.rpc import make_channel, read_next
from fleet.wire.stubs import agent_service_stub, fleet_service_stub, replica_service_stub

pytestmark = pytest.mark.slow
DEVICES = ["devices/a", "devices/b"]


def are_equal(folder: Path) -> bool:
    """Tell whether the standby has every row; not while it replaces its journal."""
    try:
        return rows_of(folder / "first/journal.sqlite") == rows_of(folder / "second/journal.sqlite")
    except sqlite3.Error:
        return False


def rows_of(journal: Path) -> tuple[list[Row], list[tuple[int, ...]]]:
    """Return the entries of a journal and its chain."""
    with closing(reader(journal)) as connection:
        entries = connection.execute("SELECT key, content, sum FROM entries ORDER BY key").fetchall()
        return entries, connection.execute("SELECT boot, commits, sum FROM chain").fetchall()


def standby_of(served: ServedTracker, folder: Path) -> Standby:
    return Standby(TrackerOptions(port=0, state_dir=folder, is_discoverable=False), served.address)


@asynccontextmanager
async def followed(folder: Path) -> AsyncIterator[tuple[ServedTracker, Standby]]:
    """A tracker in "first", and its standby in "second", which keeps up."""
    async with serve_tracker(state_dir=folder / "first") as served, standby_of(served, folder / "second") as standby:
        await eventually(lambda: served.tracker.engine.gate.is_followed)
        yield served, standby


async def test_a_standby_has_every_row(tmp_path: Path) -> None:
    """Those of the snapshot and those of later commits; removed ones are gone."""
    async with (
        serve_tracker(state_dir=tmp_path / "first") as served,
        SimulatedAgent(served.address, DEVICES),
        fleet.aio.connect(served.address) as client,
    ):
        await client.acquire_device("name=a")
        async with standby_of(served, tmp_path / "second"):
            await eventually(lambda: served.tracker.engine.gate.is_followed)
            now_sec = served.tracker.engine.clock.now_sec()
            booking = await client.book("name=a", now_sec + 30 * 86400.0, 3600.0)
            await client.book("name=b", now_sec + 30 * 86400.0, 3600.0)
            await client.cancel_booking(booking.name)
            for _ in range(20):
                async with client.acquire("name=b"):
                    pass
            await eventually(lambda: are_equal(tmp_path))
    entries, _ = rows_of(tmp_path / "second/journal.sqlite")
    assert {key.partition(" ")[0] for key, _, _ in entries} >= {"device", "lease", "booking", "use"}


async def test_a_grant_waits_for_the_standby(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Releases go at once. Nothing waits for a standby that is silent for too long."""
    monkeypatch.setattr(gate_module, "PATIENCE_SEC", 600.0)
    disk = threading.Event()
    write = ReplicaJournal.write

    def slow_write(journal: ReplicaJournal, commits: Sequence[Commit]) -> Chain:
        assert disk.wait(60)
        return write(journal, commits)

    async with (
        serve_tracker(state_dir=tmp_path / "first") as served,
        SimulatedAgent(served.address, DEVICES),
        LeaseStream(served.address, "holder") as holder,
        standby_of(served, tmp_path / "second"),
    ):
        engine = served.tracker.engine
        await eventually(lambda: engine.gate.is_followed)
        monkeypatch.setattr(ReplicaJournal, "write", slow_write)
        try:
            holder.acquire("first", "name=a")
            await eventually(lambda: is_leased(served, "devices/a"))
            await asyncio.sleep(0.05)
            assert "first" not in holder.granted
            disk.set()
            await eventually(lambda: "first" in holder.granted)
            disk.clear()
            holder.acquire("second", "name=b")
            await eventually(lambda: is_leased(served, "devices/b"))
            first = holder.granted["first"].lease.name
            holder.release(first)
            await eventually(lambda: first in holder.ended)
            assert "second" not in holder.granted
            monkeypatch.setattr(gate_module, "PATIENCE_SEC", 0.0)
            engine._watch_gate()  # noqa: SLF001 - its timer was set for the longer patience
            await eventually(lambda: "second" in holder.granted)
        finally:
            disk.set()


def test_of_many_commits_the_newest_row_stays(tmp_path: Path) -> None:
    """A row is written once for a message, also if it was removed in between."""
    journal = Journal(tmp_path / "journal.sqlite")
    boot = journal.open(0.0).boot
    journal.close()
    replica = ReplicaJournal(journal.path)
    states = ({"a": "1", "b": "1"}, {"a": "2", "c": "3"}, {"b": "4"})
    removed: tuple[tuple[str, ...], ...] = ((), ("b",), ("c",))
    commits = [
        Commit(
            chain=Chain(boot=boot, commits=replica.chain.commits + number),
            rows=tuple((key, content, sum_of(key, content)) for key, content in state.items()),
            removed=gone,
        )
        for number, (state, gone) in enumerate(zip(states, removed, strict=True), start=1)
    ]
    assert replica.write(commits) == commits[-1].chain
    replica.close()
    entries, _ = rows_of(journal.path)
    assert [(key, content) for key, content, _ in entries] == [("a", "2"), ("b", "4")]


def is_leased(served: ServedTracker, name: str) -> bool:
    device = served.tracker.engine.queries.device(name)
    return device is not None and device.lease is not None


async def test_a_standby_grants_nothing_and_names_its_tracker(tmp_path: Path) -> None:
    async with followed(tmp_path) as (served, standby), account_channel(standby.address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await fleet_service_stub(channel).get_fleet(fleet_service_pb2.GetFleetRequest())
        assert ("fleet-error", TrackerStandsBy.__name__) in tuple(refused.value.trailing_metadata() or ())
        assert served.address in str(refused.value.details())
        answer = await replica_service_stub(channel).get_tracker(pb.GetTrackerRequest())
        assert (answer.is_standby, answer.other_address) == (True, served.address)


async def test_clients_and_agents_learn_the_standbys_address(tmp_path: Path) -> None:
    """The next process of the account knows it, too."""
    async with followed(tmp_path) as (served, standby), fleet.aio.connect(served.address):
        kept = CredentialStore().path_of(served.address).with_suffix(".other")
        await eventually(kept.exists)
        assert kept.read_text() == standby.address


async def test_a_standby_takes_over_with_bookings_members_and_leases(tmp_path: Path) -> None:
    """Join tokens end, since some may have been used a moment ago; the revoked stay out."""
    async with (
        serve_tracker(state_dir=tmp_path / "first") as served,
        SimulatedAgent(served.address, DEVICES),
        fleet.aio.connect(served.address) as client,
        IdentityCalls(served.address) as calls,
        standby_of(served, tmp_path / "second") as standby,
    ):
        await eventually(lambda: served.tracker.engine.gate.is_followed)
        expelled = own_key_id((await join_user(served.address, "ann")).key_pem)
        await calls.revoke(expelled)
        await eventually(lambda: expelled in standby._state.revoked)  # noqa: SLF001
        lease = (await client.acquire_device("name=b")).lease
        before = served.tracker.state.boot
        term = await standby.promote()
        await standby.close()
        await eventually(served.tracker.superseded.is_set)
    options = TrackerOptions(port=0, state_dir=tmp_path / "second", is_discoverable=False)
    async with Tracker(options) as second:
        assert second.state.boot > before
        assert second.replica_servicer.standing.term == term
        assert second.members.is_revoked(expelled)
        entry = second.engine.queries.device("devices/b")
        assert entry is not None
        assert entry.lease is not None
        assert entry.lease.name == lease.name
        assert second.members.tokens(0.0) == []


async def test_a_superseded_tracker_grants_nothing(tmp_path: Path) -> None:
    """It hears of the larger term from an agent, which cannot make one up."""
    async with (
        serve_tracker(state_dir=tmp_path) as served,
        SimulatedAgent(served.address, DEVICES),
        LeaseStream(served.address, "holder") as holder,
    ):
        await attach_with(served, (9).to_bytes(8, "big") + bytes(64))
        await holder.grant("first", "name=a")
        assert not served.tracker.superseded.is_set()

        await attach_with(served, make_proof(load_or_make_key(tmp_path / "tracker.key"), 9))
        await asyncio.wait_for(served.tracker.superseded.wait(), 60)
        holder.acquire("second", "name=b")
        await asyncio.sleep(0.05)
        assert "second" not in holder.granted
        await served.tracker.step_down()
    assert read_standing(tmp_path).duty is Duty.FOLLOWS
    with pytest.raises(ConfigError, match="standby of the tracker"):
        await Tracker(TrackerOptions(port=0, state_dir=tmp_path, is_discoverable=False)).open()


async def test_a_superseded_tracker_waits_for_room_on_its_disk(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It goes on, grants nothing, and stores the takeover as soon as it can."""
    async with serve_tracker(state_dir=tmp_path) as served:
        await attach_with(served, make_proof(load_or_make_key(tmp_path / "tracker.key"), 9))
        (tmp_path / "standing.json").mkdir()
        (tmp_path / "standing.json" / "file").touch()
        stepping = asyncio.create_task(served.tracker.step_down())
        await eventually(lambda: "cannot be stored yet" in caplog.text)
        assert not stepping.done()

        shutil.rmtree(tmp_path / "standing.json")
        await asyncio.wait_for(stepping, 60)
    assert read_standing(tmp_path).duty is Duty.FOLLOWS


async def attach_with(served: ServedTracker, term_proof: bytes) -> None:
    """Send the hello of an agent that has seen a term."""
    async with make_channel(served.address, await agent_credentials(served.address)) as channel:
        call = agent_service_stub(channel).attach()  # type: ignore[call-arg]
        hello = agent_service_pb2.AgentHello(agent_id="witness", address=":1", term_proof=term_proof)
        await call.write(agent_service_pb2.AttachRequest(hello=hello))
        with contextlib.suppress(TimeoutError):  # a tracker that has stopped granting answers nothing
            await asyncio.wait_for(read_next(call), 0.5)


async def test_only_standbys_follow_and_only_admins_promote(tmp_path: Path) -> None:
    """A follower gets the authority's key."""
    async with followed(tmp_path) as (served, standby):
        user, own = await join_user(served.address, "ann"), await standby_credentials(tmp_path / "second", "")
        for proof in (user, account_proof(served.address), await agent_credentials(served.address)):
            async with make_channel(served.address, proof) as channel:
                call = replica_service_stub(channel).follow()  # type: ignore[call-arg]
                assert await end_of(call, pb.FollowRequest()) is grpc.StatusCode.PERMISSION_DENIED
        async with make_channel(served.address, own) as channel:
            with pytest.raises(grpc.aio.AioRpcError, match="takes the role admin or agent or user"):
                await fleet_service_stub(channel).get_fleet(fleet_service_pb2.GetFleetRequest())
        with pytest.raises(NotAllowed, match="promoting a standby takes the role admin"):
            await replicas.promote(standby.address, user)
        with pytest.raises(InvalidRequest, match="grants already"):
            await replicas.promote(served.address, account_proof(served.address))


async def test_a_revoked_standby_follows_no_more(tmp_path: Path) -> None:
    """It follows again after it has joined with another key."""
    async with (
        followed(tmp_path) as (served, standby),
        IdentityCalls(served.address) as calls,
    ):
        own = await standby_credentials(tmp_path / "second", served.address)
        await calls.revoke(own_key_id(own.key_pem))
        await eventually(lambda: isinstance(standby.following.error, KeyRevoked))
        assert not served.tracker.replica_servicer.is_followed

        token, _ = await calls.invite(Role.STANDBY, ttl_sec=600.0)
        _, member = await join_as_standby(token, served.address, tmp_path / "second")
        assert member.role is Role.STANDBY
        await eventually(lambda: served.tracker.engine.gate.is_followed)


async def test_a_standby_that_nobody_admitted_says_how_to_join(tmp_path: Path) -> None:
    async with serve_tracker(state_dir=tmp_path / "first") as served:
        CredentialStore().save(served.address, await join_user(served.address, "ann"))
        async with standby_of(served, tmp_path / "second") as standby:
            with pytest.raises(NotJoined, match="fleet tracker join --tracker"):
                await standby.wait_whole()


async def test_a_standby_that_lies_about_its_chain_is_dropped(tmp_path: Path) -> None:
    """Grants go on without it."""
    async with (
        serve_tracker(state_dir=tmp_path / "first") as served,
        SimulatedAgent(served.address, DEVICES),
        LeaseStream(served.address, "holder") as holder,
        make_channel(served.address, await standby_credentials(tmp_path / "second", served.address)) as channel,
    ):
        call = replica_service_stub(channel).follow()  # type: ignore[call-arg]
        await call.write(pb.FollowRequest())
        while (message := await read_next(call)) is not None and not message.is_snapshot_end:
            pass
        assert await end_of(call, pb.FollowRequest(commits=10**6)) is grpc.StatusCode.INVALID_ARGUMENT
        await holder.grant("r", "name=a")


async def end_of(
    call: grpc.aio.StreamStreamCall[pb.FollowRequest, pb.FollowResponse], last: pb.FollowRequest
) -> grpc.StatusCode:
    """Send a last message, and return the status that the stream ends with."""
    try:
        await call.write(last)
        while await read_next(call) is not None:
            pass
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


async def test_a_damaged_commit_makes_a_standby_begin_again(tmp_path: Path) -> None:
    """It stays equal to its tracker."""
    async with followed(tmp_path) as (served, standby), SimulatedAgent(served.address, DEVICES):
        state = standby._state  # noqa: SLF001
        assert state._journal is not None  # noqa: SLF001
        state._journal.chain = Chain(boot=1, commits=state._journal.chain.commits)  # noqa: SLF001
        async with LeaseStream(served.address, "holder") as holder:
            await holder.grant("r", "name=a")
        await eventually(lambda: are_equal(tmp_path))


async def test_a_stranger_or_the_wrong_fleet_is_not_followed(tmp_path: Path) -> None:
    """The reason ends the start, and the state stays as it was."""
    async with serve_tracker(state_dir=tmp_path / "first") as served:
        other = tmp_path / "other"
        async with serve_tracker(state_dir=other):
            pass
        (other / "authority.pem").write_bytes((other / "authority.pem").read_bytes() + b"\n")
        (other / "journal.sqlite").unlink()
        before = (other / "tracker.key").read_bytes()
        async with standby_of(served, other) as standby:
            with pytest.raises(ConfigError, match="another fleet's authority"):
                await standby.wait_whole()
        assert (other / "tracker.key").read_bytes() == before


def test_half_a_snapshot_takes_over_nothing(tmp_path: Path) -> None:
    write_standing(tmp_path, Standing(duty=Duty.FOLLOWS, is_whole=False, other="a:1"))
    with pytest.raises(JournalDamaged, match="no whole snapshot"):
        ReplicaState(tmp_path, "a:1").take_over(5)
    assert read_standing(tmp_path).duty is Duty.FOLLOWS


async def test_a_standby_takes_over_by_itself_if_most_agents_come(tmp_path: Path) -> None:
    """The tracker has to be silent, too."""
    agents = [make_key() for _ in range(3)]
    async with contextlib.AsyncExitStack() as stack:
        served = await stack.enter_async_context(serve_tracker(state_dir=tmp_path / "first"))
        standby = await stack.enter_async_context(standby_of(served, tmp_path / "second"))
        await eventually(lambda: served.tracker.engine.gate.is_followed)
        for number, key_pem in enumerate(agents):
            agent = SimulatedAgent(served.address, [f"devices/{number}"], agent_id=str(number), key_pem=key_pem)
            await stack.enter_async_context(agent)
        await eventually(lambda: are_equal(tmp_path))
        proofs = [await agent_credentials(served.address, key_pem) for key_pem in agents]
        await asyncio.gather(*(attach_at(standby.address, proof) for proof in proofs))
        assert not standby.promoted.is_set()

        await served.stop()
        waits = [asyncio.create_task(replicas.find_successor({standby.address: proof}, 0)) for proof in proofs[:2]]
        await asyncio.wait_for(standby.promoted.wait(), 60)
        await standby.close()
        async with second_tracker(standby, tmp_path):
            assert await asyncio.wait_for(asyncio.gather(*waits), 60) == [standby.address] * 2


async def test_users_are_no_witnesses_of_a_trackers_silence(tmp_path: Path) -> None:
    async with followed(tmp_path) as (served, standby):
        user, agent = await join_user(served.address, "ann"), await agent_credentials(served.address)
        for proof in (user, agent):
            async with make_channel(standby.address, proof) as channel:
                await replica_service_stub(channel).get_tracker(pb.GetTrackerRequest(is_other_silent=True))
        now_sec = time.monotonic()
        said = [frozenset({own_key_id(proof.key_pem)}) for proof in (user, agent)]
        assert [standby._witnesses.count(keys, 9.0, now_sec) for keys in said] == [0, 1]  # noqa: SLF001


@pytest.mark.parametrize("is_queued", [False, True])
async def test_a_client_leaves_a_silent_tracker_for_its_successor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_queued: bool
) -> None:
    """Its stream stays open, but a request has no answer. A client that only waits repeats its request."""
    monkeypatch.setattr(stream_module, "_DOUBT_SEC", 0.1)
    monkeypatch.setattr(stream_module, "_QUIET_SEC", 0.1)
    async with followed(tmp_path) as (served, standby), fleet.aio.connect(served.address) as client:
        await eventually(CredentialStore().path_of(served.address).with_suffix(".other").exists)
        async with SimulatedAgent(served.address, DEVICES):
            pass
        queued = asyncio.Event()
        if not is_queued:
            served.tracker.engine.halt()
        acquiring = asyncio.create_task(client.acquire_device("name=a", on_queued=lambda _: queued.set()))
        if is_queued:
            await asyncio.wait_for(queued.wait(), 60)
            served.tracker.engine.halt()
        await standby._take_over(is_primary_silent=True)  # noqa: SLF001 - the tracker hears nothing of it
        await standby.close()
        async with second_tracker(standby, tmp_path), SimulatedAgent(standby.address, DEVICES):
            device = await asyncio.wait_for(acquiring, 60)
            assert device.name == "devices/a"
            await device.release()


async def test_a_watch_goes_on_when_no_tracker_grants_for_a_while(tmp_path: Path) -> None:
    async with followed(tmp_path) as (served, standby), fleet.aio.connect(served.address) as client:
        await eventually(CredentialStore().path_of(served.address).with_suffix(".other").exists)
        shown = set[int]()
        watching = asyncio.create_task(show_devices(client, shown))
        await eventually(lambda: 0 in shown)
        await served.stop()
        with pytest.raises(TrackerUnavailable, match="no tracker grants"):
            await calls_until_refused(client)
        await asyncio.sleep(1.0)  # the watch tries again meanwhile
        assert not watching.done()
        await standby.promote()
        await standby.close()
        async with second_tracker(standby, tmp_path), SimulatedAgent(standby.address, DEVICES):
            await eventually(lambda: 2 in shown)
        watching.cancel()


async def show_devices(client: Fleet, shown: set[int]) -> None:
    """Note the number of devices at each change."""
    async for snapshot in client.watch(0.05):
        shown.add(len(snapshot.devices))


async def calls_until_refused(client: Fleet) -> None:
    """Call until the client knows that its tracker is gone."""
    while True:
        try:
            await client.snapshot()
        except TrackerUnavailable as error:
            if "no tracker grants" in str(error):
                raise


def second_tracker(standby: Standby, folder: Path) -> Tracker:
    """Return the tracker that a promoted standby in "second" becomes."""
    port = int(standby.address.rpartition(":")[2])
    return Tracker(TrackerOptions(port=port, state_dir=folder / "second", is_discoverable=False))


async def attach_at(address: str, proof: Proof) -> None:
    """Dial a standby as an agent."""
    async with make_channel(address, proof) as channel:
        call = agent_service_stub(channel).attach()  # type: ignore[call-arg]
        with pytest.raises(grpc.aio.AioRpcError):
            await read_next(call)
