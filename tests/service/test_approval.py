"""Agents that join without a token: an admin approves the code that both sides show."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import grpc.aio
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from fleet.client.identity_calls import IdentityCalls
from fleet.errors import FleetError, InvalidRequest, KeyRevoked, LimitReached, NotAllowed, NotFound
from fleet.identity.certificates import make_key, make_request, own_key_id, read_identity
from fleet.identity.credentials import Credentials
from fleet.identity.join_code import commitment_to
from fleet.identity.roles import Role
from fleet.testing import SimulatedAgent, eventually, serve_tracker
from fleet.testing.identity import authority
from fleet.tracker.pending_agents import PendingAgent, PendingAgents
from fleet.v1 import approval_service_pb2 as pb
from fleet.wire.approval import ask_to_join
from fleet.wire.rpc import from_rpc_error, make_channel
from fleet.wire.stubs import approval_service_stub
from tests.service.identity_parts import nobody, user


@dataclass
class _Board:
    """A board that asks to join."""

    address: str
    key_pem: bytes = field(default_factory=make_key)
    codes: list[str] = field(default_factory=list)

    async def ask(self) -> Credentials:
        return await ask_to_join(
            self.address, authority().authority_pem, name="board", key_pem=self.key_pem, on_code=self.codes.append
        )


@asynccontextmanager
async def waiting(board: _Board, calls: IdentityCalls) -> AsyncIterator[asyncio.Task[Credentials]]:
    """A board that waits for approval; its request is withdrawn at the end."""
    asking = asyncio.create_task(board.ask())

    async def is_listed() -> bool:
        return bool(board.codes) and board.codes[-1] in [agent.code for agent in await calls.pending_agents()]

    try:
        await eventually(is_listed)
        yield asking
    finally:
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)


async def test_an_approved_agent_serves_devices() -> None:
    """Both sides have the same code, and nothing is granted before the approval."""
    async with serve_tracker() as served, IdentityCalls(served.address) as calls:
        board = _Board(served.address)
        async with waiting(board, calls) as asking:
            (pending,) = await calls.pending_agents()
            member = await calls.approve_agent(board.codes[0].lower(), name="pi4")
            made = await asking
            left = await calls.pending_agents()
        async with SimulatedAgent(served.address, ["devices/pi4"], key_pem=board.key_pem):
            names = list(served.tracker.state.devices)

    assert (pending.name, pending.host, pending.key_id) == ("board", "127.0.0.1", own_key_id(board.key_pem))
    assert (member.name, member.role, member.key_id) == ("pi4", Role.AGENT, pending.key_id)
    assert read_identity(made.certificate_pem).key_id == pending.key_id
    assert left == []
    assert names == ["devices/pi4"]


async def test_a_refused_agent_learns_the_reason() -> None:
    """Afterwards it is neither a member nor listed as waiting."""
    async with serve_tracker() as served, IdentityCalls(served.address) as calls:
        board = _Board(served.address)
        async with waiting(board, calls) as asking:
            with pytest.raises(InvalidRequest, match="control characters"):
                await calls.refuse_agent(board.codes[0], "not \x1b[2Jof this lab")
            await calls.refuse_agent(board.codes[0], "not of this lab")
            with pytest.raises(NotAllowed, match="refused this agent: not of this lab"):
                await asking
        members = [member.key_id for member in await calls.members()]

        assert own_key_id(board.key_pem) not in members
        assert await calls.pending_agents() == []


async def test_an_agent_that_leaves_is_listed_no_more() -> None:
    """Its code cannot be approved any more."""
    async with serve_tracker() as served, IdentityCalls(served.address) as calls:
        board = _Board(served.address)
        async with waiting(board, calls):
            pass

        async def is_gone() -> bool:
            return await calls.pending_agents() == []

        await eventually(is_gone)
        with pytest.raises(NotFound, match="fleet agent pending"):
            await calls.approve_agent(board.codes[0])


async def test_a_lost_approval_is_given_again() -> None:
    """An agent that was killed before the answer came asks again with its key, and nobody has to decide twice."""
    async with serve_tracker() as served, IdentityCalls(served.address) as calls:
        board = _Board(served.address)
        async with waiting(board, calls) as asking:
            await calls.approve_agent(board.codes[0])
            await asking
        again = await board.ask()
        await calls.revoke(own_key_id(board.key_pem), "sold")
        with pytest.raises(KeyRevoked, match="sold"):
            await board.ask()

    assert read_identity(again.certificate_pem).name == "board"


async def test_a_waiting_agent_asks_anew_after_a_restart_of_the_tracker() -> None:
    """The code of the first request is void; the second is another."""
    async with serve_tracker() as served, IdentityCalls(served.address) as calls:
        board = _Board(served.address)
        async with waiting(board, calls) as asking:
            await served.restart()
            with pytest.raises(FleetError):
                await asking
            async with waiting(board, calls) as second:
                await calls.approve_agent(board.codes[1])
                await second

    assert board.codes[0] != board.codes[1]


@pytest.mark.parametrize(
    ("messages", "refusal"),
    [
        ([pb.AskToJoinRequest(name="n")], "no request for a certificate"),
        ([pb.AskToJoinRequest(certificate_request=b"x", commitment=bytes(32))], "no request for a certificate"),
        (
            [
                pb.AskToJoinRequest(certificate_request=make_request(make_key()), commitment=commitment_to(bytes(16))),
                pb.AskToJoinRequest(number=b"1" * 16),
            ],
            "does not match its commitment",
        ),
        (
            [
                pb.AskToJoinRequest(certificate_request=make_request(make_key()), commitment=commitment_to(b"short")),
                pb.AskToJoinRequest(number=b"short"),
            ],
            "does not match its commitment",
        ),
    ],
)
async def test_a_question_that_could_be_forged_is_refused(messages: list[pb.AskToJoinRequest], refusal: str) -> None:
    """The agent cannot choose its number after it has seen the tracker's."""
    async with serve_tracker() as served, IdentityCalls(served.address) as calls:
        async with make_channel(served.address, nobody()) as channel:
            call = approval_service_stub(channel).ask_to_join(iter(messages))
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                async for _ in call:
                    pass

        assert isinstance(from_rpc_error(caught.value, FleetError), InvalidRequest)
        assert refusal in str(caught.value.details())
        assert await calls.pending_agents() == []


async def test_only_admins_decide() -> None:
    """Strangers and users can neither list nor approve agents."""
    async with serve_tracker() as served:
        for proof in (nobody(), user()):
            async with make_channel(served.address, proof) as channel:
                stub = approval_service_stub(channel)
                for call in (
                    stub.list_pending_agents(pb.ListPendingAgentsRequest()),
                    stub.approve_agent(pb.ApproveAgentRequest(code="a")),
                    stub.refuse_agent(pb.RefuseAgentRequest(code="a")),
                ):
                    with pytest.raises(grpc.aio.AioRpcError) as caught:
                        await call
                    assert isinstance(from_rpc_error(caught.value, FleetError), NotAllowed)


def pending_agent(number: int, host: str) -> PendingAgent:
    key = ec.generate_private_key(ec.SECP256R1()).public_key()
    return PendingAgent(code=f"{number:04}", key_id="", public_key=key, name="n", host=host, asked_at_sec=0.0)


async def test_an_agent_whose_wait_has_ended_cannot_be_approved() -> None:
    """An approval between the end of the wait and the removal from the list must not make it a member."""
    agents, agent = PendingAgents(), pending_agent(1, "one")
    waiting_task = asyncio.create_task(agents.decided(agent))
    await asyncio.sleep(0)
    agent.decision.cancel()
    with pytest.raises(NotFound, match="no agent with the code"):
        agents.find(agent.code)
    await asyncio.gather(waiting_task, return_exceptions=True)


async def test_a_host_has_ten_waiting_agents() -> None:
    """One host cannot take all places."""
    agents = PendingAgents()
    tasks = [asyncio.create_task(agents.decided(pending_agent(number, "one"))) for number in range(10)]
    await asyncio.sleep(0)
    with pytest.raises(LimitReached, match="10 agents of one"):
        await agents.decided(pending_agent(10, "one"))
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

    assert agents.all() == []


async def test_a_hundred_agents_wait_and_none_for_ever() -> None:
    """Each learns the end of its wait."""
    agents = PendingAgents(wait_sec=0.2)
    tasks = [asyncio.create_task(agents.decided(pending_agent(number, f"host {number}"))) for number in range(100)]
    await asyncio.sleep(0)
    with pytest.raises(LimitReached, match="100 agents wait"):
        await agents.decided(pending_agent(100, "other"))
    ended = await asyncio.gather(*tasks, return_exceptions=True)

    assert all(isinstance(error, LimitReached) and "nobody approved" in str(error) for error in ended)
    assert agents.all() == []
