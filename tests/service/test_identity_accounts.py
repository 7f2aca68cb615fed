"""Accounts of members: given by a join token, used by requests, and named for others only by keys with that right."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

import pytest

import fleet.aio
from cross.pool.build_pool import BuildPool
from device_agents.agent import Agent, Home
from device_agents.config import make_drivers, parse_config
from fleet.base.plain import to_object
from fleet.base.tasks import stopped
from fleet.building.turns import Cores
from fleet.client.identity_calls import IdentityCalls
from fleet.errors import InvalidRequest, NotAllowed
from fleet.identity.certificates import own_key_id
from fleet.identity.credentials import Proof
from fleet.identity.roles import Role
from fleet.identity.store import CredentialStore
from fleet.jobs.fleets import destination_of
from fleet.jobs.options import TuneOptions
from fleet.jobs.spec import JobOrder
from fleet.library import Library
from fleet.optimizer.serving.daemon import OptimizerDaemon
from fleet.optimizer.workshop import Workshop
from fleet.testing import LeaseStream, SimulatedAgent, eventually, serve_tracker
from fleet.testing.identity import account_proof, join_user
from fleet.tracker.core.records import TrackerLimits
from fleet.wire.joining import join
from fleet.workloads.programs import matmul
from tests.service.identity_parts import CONFIG, user


async def refusal_of(address: str, proof: Proof, account: str) -> tuple[str, str]:
    async with LeaseStream(address, "refused", proof=proof) as stream:
        stream.acquire("1", "simulated", account=account)
        refused = await eventually(lambda: stream.refused.get("1"))
    return refused.error_class, refused.message


async def test_two_laptops_with_one_account_share_one_place_in_the_order() -> None:
    """After a lease of the first laptop, another member goes before the second laptop; and both share a limit."""
    async with (
        serve_tracker(limits=TrackerLimits(max_waiting_per_account=2)) as served,
        SimulatedAgent(served.address, ["devices/a"]),
    ):
        proofs = [await join_user(served.address, f"laptop-{n}", "team-a") for n in (1, 2)]
        async with (
            LeaseStream(served.address, "first", proof=proofs[0]) as first,
            LeaseStream(served.address, "second", proof=proofs[1]) as second,
            LeaseStream(served.address, "other", proof=user()) as other,
        ):
            assert first.welcome is not None
            assert "team-a" == first.welcome.account
            lease = (await first.grant("1", "simulated")).lease
            assert "team-a" == lease.account
            second.acquire("2", "simulated")
            await eventually(lambda: second.queued.get("2"))
            other.acquire("3", "simulated")
            await eventually(lambda: other.queued.get("3"))
            first.acquire("4", "simulated")
            await eventually(lambda: first.queued.get("4"))

            second.acquire("5", "simulated")
            assert "QueueFull" == (await eventually(lambda: second.refused.get("5"))).error_class
            first.release(lease.name)

            await eventually(lambda: other.granted.get("3"))
            assert not second.granted


async def test_an_account_is_named_for_others_only_by_a_key_with_that_right() -> None:
    """Refused are another's name, another's key and one of nobody; the own account may be named."""
    async with serve_tracker() as served, SimulatedAgent(served.address, ["devices/a"]):
        alice = await join_user(served.address, "alice", "team-a")
        for account in ("team-b", own_key_id(user().key_pem)):
            error_class, message = await refusal_of(served.address, alice, account)
            assert NotAllowed.__name__ == error_class
            assert "fleet tracker token create --for-others" in message
        async with LeaseStream(served.address, "alice", proof=alice) as stream:
            assert "team-a" == (await stream.grant("1", "simulated", account="team-a")).lease.account


async def test_a_key_with_the_right_asks_for_others() -> None:
    """The lease and the waiting request show the account that they count for, and are charged there."""
    async with serve_tracker() as served, SimulatedAgent(served.address, ["devices/a"]):
        gateway = await join_user(served.address, "gateway", may_ask_for_others=True)
        alice = own_key_id((await join_user(served.address, "alice")).key_pem)
        async with LeaseStream(served.address, "gateway", proof=gateway) as stream:
            assert stream.welcome is not None
            assert stream.welcome.may_ask_for_others
            assert own_key_id(gateway.key_pem) == stream.welcome.account
            assert alice == (await stream.grant("1", "simulated", account=alice)).lease.account
            stream.acquire("2", "simulated", account="team-b")
            stream.acquire("3", "simulated")
            await eventually(lambda: len(stream.queued) == 2)
            assert ("team-b", "") == (stream.queued["2"].account, stream.queued["3"].account)

            async with fleet.aio.connect(served.address) as client:
                snapshot = await client.snapshot()
        assert [f"gateway (tester@here) for {alice[:8]}"] == [lease.held_by for lease in snapshot.leases]
        shown = {request.asked_by for request in snapshot.requests}
        assert {"gateway (tester@here) for team-b", "gateway (tester@here)"} == shown
        accounts = served.tracker.state.accounts.by_name
        assert accounts[alice].leases.total() == 1
        assert accounts[own_key_id(gateway.key_pem)].leases.total() == 0


async def test_a_new_token_for_a_member_changes_its_account_and_right() -> None:
    """Tokens and members are listed with both."""
    async with serve_tracker() as served, IdentityCalls(served.address) as admin:
        token, invitation = await admin.invite(Role.USER, ttl_sec=60.0, account="team-a", may_ask_for_others=True)
        assert [invitation] == await admin.invitations()
        assert ("team-a", True) == (invitation.account, invitation.may_ask_for_others)
        member, _ = await join(served.address, token, name="alice")

        key_id = own_key_id(member.key_pem)
        (found,) = [each for each in await admin.members() if each.key_id == key_id]

        assert ("alice", "team-a", True) == (found.name, found.account, found.may_ask_for_others)


@pytest.mark.parametrize(
    ("role", "account"), [(Role.USER, "0" * 40), (Role.USER, "a" * 101), (Role.USER, "a\n"), (Role.AGENT, "team-a")]
)
async def test_an_account_that_cannot_be_is_refused(role: Role, account: str) -> None:
    """Names like a key's id, malformed ones, and accounts of agents."""
    async with serve_tracker() as served, IdentityCalls(served.address) as admin:
        with pytest.raises(InvalidRequest):
            await admin.invite(role, ttl_sec=60.0, account=account)
        assert [] == await admin.invitations()


async def test_without_tls_a_client_names_any_account(tmp_path: Path) -> None:
    """All clients belong to one account of the machine."""
    config = parse_config(CONFIG)
    async with serve_tracker(is_plain=True) as served:
        home = Home(tracker=served.address, state_dir=tmp_path, is_plain=True)
        async with (
            Agent(config, make_drivers(config), home),
            fleet.aio.connect(served.address, holder="me@here") as client,
        ):
            await eventually(client.devices)
            async with client.acquire("simulated", account="team-b"):
                (lease,) = (await client.snapshot()).leases
            assert ("me@here", True) == (client.account, client.may_ask_for_others)
        assert "team-b" == lease.account


@pytest.mark.slow
@pytest.mark.parametrize("may_ask_for_others", [True, False])
async def test_an_optimizers_leases_count_for_the_submitter_if_it_may_ask_for_others(
    may_ask_for_others: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Without the right they count for the optimizer, which says so once in its log."""
    caplog.set_level("INFO")
    (tmp_path / "product.json").write_text(matmul(8).mod_json)
    async with serve_tracker() as served, SimulatedAgent(served.address, ["devices/a"]):
        store, kept = CredentialStore(), account_proof(served.address)
        store.save(served.address, await join_user(served.address, "alice", "team-a"))
        destination = await destination_of(served.address, ["kind=simulated"])
        assert "team-a" == destination.account
        store.save(served.address, kept)
        store.save(served.address, await join_user(served.address, "optimizer", may_ask_for_others=may_ask_for_others))
        pool = BuildPool(1)
        with Library.open(tmp_path / "library.sqlite") as library:
            order = JobOrder(
                options=TuneOptions(model=Path("product.json"), selector="kind=simulated"),
                files={"product.json": library.model_files.add(tmp_path / "product.json")},
                fleet_id=destination.fleet_id,
                account=destination.account,
            )
            library.queue.submit(title="product", spec=to_object(order))
            async with fleet.aio.connect(served.address) as client:
                shop = Workshop(
                    library=library, pool=pool, builders=pool, artifact_dir=tmp_path, cores=Cores(), client=client
                )
                daemon = OptimizerDaemon(shop, tracker=served.address, most_jobs=1)
                serving = asyncio.create_task(daemon.run(), name="optimizer")
                accounts, own = served.tracker.state.accounts.by_name, client.account
                charged = await eventually(lambda: [name for name, each in accounts.items() if each.level > -math.inf])
                await stopped(serving)
        pool.shutdown(wait=False)
        store.save(served.address, kept)
    assert ["team-a" if may_ask_for_others else own] == charged
    assert may_ask_for_others is not ("its key may not ask for others" in caplog.text)
