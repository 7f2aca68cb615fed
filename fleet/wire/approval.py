"""Joining a fleet without a token, by an admin's approval."""

from __future__ import annotations

from collections.abc import Callable

import grpc
import grpc.aio

from fleet.errors import FleetError, NotJoined, TrackerUnavailable
from fleet.identity.certificates import make_request, own_key_id, pin_of
from fleet.identity.credentials import Credentials
from fleet.identity.join_code import NUMBER_BYTES, commitment_to, join_code, make_number
from fleet.v1 import approval_service_pb2 as pb
from fleet.wire.joining import stranger_credentials
from fleet.wire.rpc import from_rpc_error, make_channel, read_next
from fleet.wire.stubs import approval_service_stub


async def ask_to_join(
    address: str, authority_pem: bytes, *, name: str, key_pem: bytes, on_code: Callable[[str], None]
) -> Credentials:
    """Ask a tracker for membership as an agent, and return the credentials once an admin approves.

    Args:
        authority_pem: certificate of the authority that the tracker shows; the code depends on it.
        name: proposed name of the member.
        on_code: receives the code that the admin compares.

    Raises:
        NotAllowed: an admin refused.
        LimitReached: too many agents wait, or nobody decided in time.
        TrackerUnavailable: the tracker does not answer.
        NotJoined: the tracker's release knows no approval.
    """
    number = make_number()
    async with make_channel(address, stranger_credentials(authority_pem)) as channel:
        call = approval_service_stub(channel).ask_to_join()  # type: ignore[call-arg] # its default is None
        try:
            asked = pb.AskToJoinRequest(
                certificate_request=make_request(key_pem), name=name, commitment=commitment_to(number)
            )
            await call.write(asked)
            answer = await read_next(call) or pb.AskToJoinResponse()
            if len(answer.number) != NUMBER_BYTES:
                raise FleetError(f"the tracker at {address} sends no random number; is it of another fleet?")
            await call.write(pb.AskToJoinRequest(number=number))
            on_code(join_code(pin_of(authority_pem), own_key_id(key_pem), number, answer.number))
            answer = await read_next(call) or pb.AskToJoinResponse()
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                raise NotJoined(f"the tracker at {address} is too old to approve agents; join with a token") from error
            raise from_rpc_error(error, TrackerUnavailable) from error
    if not answer.HasField("membership"):
        raise TrackerUnavailable(f"the tracker at {address} ended the request to join")
    return Credentials(key_pem=key_pem, certificate_pem=answer.membership.certificate, authority_pem=authority_pem)
