"""Registered agents of a relay."""

from __future__ import annotations

import asyncio
import socket

import pytest

from fleet.errors import LimitReached
from fleet.relay.agents import Agents
from fleet.relay.refusal import Refusal, Refused

KEY = "a" * 40


async def refusal_of(agents: Agents) -> Refusal:
    with pytest.raises(Refused) as refused:
        await agents.connection_to(KEY, b"")
    return refused.value.reason


async def test_a_client_waits_for_an_agents_connection() -> None:
    """The secret is good for one connection; an agent that does not connect keeps no client waiting for long."""
    agents = Agents(answer_sec=0.05)
    here, there = socket.socketpair()
    with here, there, agents.registered(KEY) as registration:
        assert await refusal_of(agents) is Refusal.SILENT_AGENT

        waiting = asyncio.create_task(agents.connection_to(KEY, b"hello"))
        clients = registration.clients()
        notified = [await anext(clients) for _ in range(2)]
        with pytest.raises(Refused):
            agents.deliver(notified[0].secret, there)
        agents.deliver(notified[1].secret, here)
        with pytest.raises(Refused):
            agents.deliver(notified[1].secret, there)

        assert await waiting is here
        assert notified[1].first_bytes == b"hello"
    assert await refusal_of(agents) is Refusal.UNKNOWN_AGENT


async def test_a_cancelled_client_leaves_no_connection() -> None:
    """Also if the agent's connection has just arrived."""
    agents = Agents()
    here, there = socket.socketpair()
    with there, agents.registered(KEY) as registration:
        waiting = asyncio.create_task(agents.connection_to(KEY, b""))
        client = await anext(registration.clients())
        agents.deliver(client.secret, here)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)

        assert here.fileno() == -1


async def test_waiting_clients_and_agents_are_limited() -> None:
    """An agent that takes no notices holds a bounded number of hellos in the relay's memory."""
    agents = Agents(most=1)
    with agents.registered(KEY):
        waiting = [asyncio.create_task(agents.connection_to(KEY, bytes(16_384))) for _ in range(32)]
        await asyncio.sleep(0)
        assert await refusal_of(agents) is Refusal.BUSY_AGENT
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        with agents.registered(KEY), pytest.raises(LimitReached), agents.registered("b" * 40):
            pytest.fail("a second agent was admitted")
