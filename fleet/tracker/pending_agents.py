"""Agents that ask to become members and wait for an admin."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric import ec

from fleet.errors import FleetError, LimitReached, NotFound
from fleet.identity.join_code import grouped

_MAX_PENDING = 100
_MAX_OF_ONE_HOST = 10
_WAIT_SEC = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingAgent:
    """One agent that waits."""

    code: str
    key_id: str
    public_key: ec.EllipticCurvePublicKey
    name: str
    """Name that it proposes."""

    host: str
    asked_at_sec: float
    """Time of its question [s since 1970, the tracker's clock]."""

    decision: asyncio.Future[bytes] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """Its certificate (PEM) or the error that it is refused with."""


class PendingAgents:
    """The agents that wait. Used from one event loop."""

    def __init__(self, wait_sec: float = _WAIT_SEC) -> None:
        """Args: wait_sec: longest wait for a decision [s]."""
        self._wait_sec = wait_sec
        self._by_code: dict[str, PendingAgent] = {}

    def all(self) -> list[PendingAgent]:
        """Return the waiting agents, oldest first."""
        return list(self._by_code.values())

    def find(self, code: str) -> PendingAgent:
        """Return the waiting agent with a code.

        Raises:
            NotFound: no agent with this code waits.
        """
        found = self._by_code.get(grouped(code))
        if found is None or found.decision.done():  # its wait has ended, and its task has not run yet
            raise NotFound(f"no agent with the code {grouped(code)!r} waits; see those that do: fleet agent pending")
        return found

    async def decided(self, agent: PendingAgent) -> bytes:
        """Let an agent wait, and return its certificate once an admin approves it.

        Raises:
            NotAllowed: an admin refused it.
            LimitReached: too many agents wait, or nobody decided in time.
        """
        with self._entered(agent):
            try:
                async with asyncio.timeout(self._wait_sec):
                    return await agent.decision
            except TimeoutError:
                raise LimitReached(
                    f"nobody approved this agent for {self._wait_sec / 60:g} minutes; it asks again with another code"
                ) from None

    def approve(self, agent: PendingAgent, certificate: bytes) -> None:
        """Give an agent its certificate, PEM."""
        del self._by_code[agent.code]
        agent.decision.set_result(certificate)

    def refuse(self, agent: PendingAgent, error: FleetError) -> None:
        """Turn an agent away with an error."""
        del self._by_code[agent.code]
        agent.decision.set_exception(error)

    @contextlib.contextmanager
    def _entered(self, agent: PendingAgent) -> Iterator[None]:
        if len(self._by_code) >= _MAX_PENDING:
            raise LimitReached(f"{_MAX_PENDING} agents wait for approval; an admin decides: fleet agent pending")
        if sum(other.host == agent.host for other in self._by_code.values()) >= _MAX_OF_ONE_HOST:
            raise LimitReached(
                f"{_MAX_OF_ONE_HOST} agents of {agent.host} wait for approval; an admin decides: fleet agent pending"
            )
        self._by_code[agent.code] = agent
        try:
            yield
        finally:
            self._by_code.pop(agent.code, None)
