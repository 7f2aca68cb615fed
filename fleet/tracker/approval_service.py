"""The tracker's side of agents that join without a token: fleet.v1.ApprovalService."""

from __future__ import annotations

import hmac
import logging
from collections.abc import AsyncIterator

from fleet.base.clock import Clock
from fleet.base.text import sanitize
from fleet.domain.reasons import checked_reason
from fleet.errors import InvalidRequest, NotAllowed
from fleet.identity.certificates import key_id_of, read_identity, read_request
from fleet.identity.join_code import NUMBER_BYTES, commitment_to, join_code, make_number
from fleet.identity.roles import Role
from fleet.tracker.authority import Authority
from fleet.tracker.identity_service import member_to_proto
from fleet.tracker.members import Members
from fleet.tracker.pending_agents import PendingAgent, PendingAgents
from fleet.tracker.streams import first_message
from fleet.v1 import approval_service_pb2 as pb
from fleet.v1.identity_service_pb2 import MEMBER_ROLE_AGENT, JoinResponse
from fleet.wire.peers import CallContext, caller_of, peer_host
from fleet.wire.times import timestamp

logger = logging.getLogger(__name__)

_MAX_NAME_CHARS = 64


class ApprovalServicer:
    """fleet.v1.ApprovalService."""

    def __init__(
        self,
        authority: Authority,
        members: Members,
        clock: Clock,
        pending: PendingAgents,
        message_sec: float,
    ) -> None:
        """Args: message_sec: time limit for each of an asking agent's two messages [s]."""
        self._authority = authority
        self._members = members
        self._clock = clock
        self._pending = pending
        self._message_sec = message_sec

    async def ask_to_join(
        self, requests: AsyncIterator[pb.AskToJoinRequest], context: CallContext
    ) -> AsyncIterator[pb.AskToJoinResponse]:
        messages = aiter(requests)
        asked = await first_message(messages, self._message_sec) or pb.AskToJoinRequest()
        key = read_request(asked.certificate_request)
        key_id = key_id_of(key)
        self._members.refuse_revoked(key_id)
        number = make_number()
        yield pb.AskToJoinResponse(number=number)
        opened = await first_message(messages, self._message_sec) or pb.AskToJoinRequest()
        if len(opened.number) != NUMBER_BYTES or not hmac.compare_digest(
            commitment_to(opened.number), asked.commitment
        ):
            raise InvalidRequest("the agent's number does not match its commitment; ask again")
        agent = PendingAgent(
            code=join_code(self._authority.pin, key_id, opened.number, number),
            key_id=key_id,
            public_key=key,
            name=sanitize(asked.name, _MAX_NAME_CHARS),
            host=peer_host(context.peer()),
            asked_at_sec=self._clock.now_sec(),
        )
        if self._members.role_of(key_id) is Role.AGENT:  # its approval was lost on the way
            certificate = self._authority.sign(key, name=self._members.name_of(key_id), role=Role.AGENT)
        else:
            logger.info("an agent asks to join", extra={"code": agent.code, "agent": agent.name, "host": agent.host})
            certificate = await self._pending.decided(agent)
        membership = JoinResponse(
            certificate=certificate, authority=self._authority.certificate_pem, role=MEMBER_ROLE_AGENT
        )
        yield pb.AskToJoinResponse(membership=membership)

    async def list_pending_agents(
        self, request: pb.ListPendingAgentsRequest, context: CallContext
    ) -> pb.ListPendingAgentsResponse:
        return pb.ListPendingAgentsResponse(agents=map(_to_proto, self._pending.all()))

    async def approve_agent(self, request: pb.ApproveAgentRequest, context: CallContext) -> pb.ApproveAgentResponse:
        agent = self._pending.find(request.code)
        self._members.refuse_revoked(agent.key_id)
        wanted = sanitize(request.name, _MAX_NAME_CHARS) or agent.name
        name = self._members.free_name(wanted, agent.key_id, reserved=self._authority.account_name)
        certificate = self._authority.sign(agent.public_key, name=name, role=Role.AGENT)
        member = self._members.admit(read_identity(certificate), self._clock.now_sec())
        self._pending.approve(agent, certificate)
        logger.info("agent approved", extra={"member": name, "key": agent.key_id, "by": str(caller_of(context))})
        return pb.ApproveAgentResponse(member=member_to_proto(member))

    async def refuse_agent(self, request: pb.RefuseAgentRequest, context: CallContext) -> pb.RefuseAgentResponse:
        agent = self._pending.find(request.code)
        why = f": {checked_reason(request.reason)}" if request.reason else ""
        self._pending.refuse(agent, NotAllowed(f"{caller_of(context)} refused this agent{why}"))
        logger.info("agent refused", extra={"code": agent.code, "key": agent.key_id, "by": str(caller_of(context))})
        return pb.RefuseAgentResponse(agent=_to_proto(agent))


def _to_proto(agent: PendingAgent) -> pb.PendingAgent:
    return pb.PendingAgent(
        code=agent.code,
        key_id=agent.key_id,
        name=agent.name,
        host=agent.host,
        asked_at=timestamp(agent.asked_at_sec),
    )
