"""The data path: implements fleet.v1.SessionService on top of the agent's sessions."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence

from google.protobuf.message import DecodeError

from device_agents.serving.arrivals import Arrivals
from device_agents.serving.read_ahead import ReadAhead
from device_agents.serving.receiving import receive
from device_agents.serving.session import Session
from device_agents.serving.sessions import SessionTable
from device_agents.serving.store import ArtifactStore
from device_agents.workers.contents import CALL_CONTENT, PROOF_CONTENT, TRIAL_CONTENT, CallAnswer, check_structure
from fleet.errors import FleetError, InvalidRequest, Unauthenticated
from fleet.v1 import measurement_pb2
from fleet.v1 import session_service_pb2 as pb
from fleet.wire.chunks import cut, join
from fleet.wire.options import MAX_WHOLE_BYTES
from fleet.wire.peers import CallContext, caller_of
from fleet.wire.rpc import encoded
from fleet.wire.tokens import TICKET_HEADER, TOKEN_HEADER, read_claims

_READ_AHEAD = 256
_NO_STRUCTURE: Mapping[str, Sequence[Sequence[int]]] = {
    "FindMissing": (),
    "Call": (CALL_CONTENT,),
    "Measure": (TRIAL_CONTENT, (measurement_pb2.MeasureRequest.PIECE_FIELD_NUMBER,)),
    "Prove": (PROOF_CONTENT,),
}
"""Paths, by method, of fields that take no more memory parsed than serialised. All other bytes are bounded."""

_UPLOADS = frozenset({"FindMissing", "PutArtifact"})
"""Methods that accept an upload ticket instead of a token."""


class SessionService:
    """Serves holders of leases."""

    def __init__(self, sessions: SessionTable, store: ArtifactStore) -> None:
        self._sessions = sessions
        self._store = store

    def check_call(self, context: CallContext) -> None:
        """Refuse a caller without a token of the tracker, before its request is received.

        Raises:
            Unauthenticated: there is none, or it was forged.
        """
        if _header(context, TICKET_HEADER) is None:
            self._sessions.check_signature(_token(context))

    def check_message(self, method: str, content: bytes) -> None:
        """Check the amount of structure in a request: parsed, it takes far more memory than its bytes.

        Raises:
            InvalidRequest: too many bytes are not contents of arrays.
        """
        if method in _NO_STRUCTURE:
            check_structure(content, *_NO_STRUCTURE[method])

    @contextlib.asynccontextmanager
    async def place(self, method: str, context: CallContext) -> AsyncIterator[None]:
        """Hold a slot in the caller's session. Enter before the request is read.

        Raises:
            LimitReached: too many calls of the session are under way.
            FleetError: the lease has ended.
        """
        enter = self._enter_to_upload if method in _UPLOADS else self._enter
        session = await enter(context)
        async with contextlib.AsyncExitStack() as stack:
            await session.life.until_ended(stack.enter_async_context(session.intake.place(method)))
            yield

    async def open_session(self, request: pb.OpenSessionRequest, context: CallContext) -> pb.OpenSessionResponse:
        session = await self._enter(context)
        return pb.OpenSessionResponse(worker_pid=await session.life.until_ended(session.open()), takes_pieces=True)

    async def find_missing(self, request: pb.FindMissingRequest, context: CallContext) -> pb.FindMissingResponse:
        session = await self._enter_to_upload(context)
        missing = await session.life.until_ended(session.find_missing(list(request.digests)))
        return pb.FindMissingResponse(digests=missing)

    async def put_artifact(
        self, requests: AsyncIterator[pb.PutArtifactRequest], context: CallContext
    ) -> pb.PutArtifactResponse:
        session = await self._enter_to_upload(context)
        return pb.PutArtifactResponse(digests=await session.life.until_ended(receive(requests, session, self._store)))

    async def make_upload_ticket(
        self, request: pb.MakeUploadTicketRequest, context: CallContext
    ) -> pb.MakeUploadTicketResponse:
        session = await self._enter(context)
        return pb.MakeUploadTicketResponse(ticket=session.upload_ticket)

    async def measure(
        self, requests: AsyncIterator[measurement_pb2.MeasureRequest], context: CallContext
    ) -> AsyncIterator[measurement_pb2.MeasureResponse]:
        session = await self._enter(context)
        arrivals = Arrivals(requests, session.intake)
        ahead = ReadAhead(arrivals.each(), most=_READ_AHEAD, size_of=lambda arrival: arrival.size_bytes)
        try:
            while (arrival := await session.life.until_ended(ahead.next())) is not None:
                measuring = session.measure(arrival.request, arrival.arrived_sec, arrival.content)
                measurement = await session.life.until_ended(measuring)
                ahead.in_hand = None
                arrivals.finish(arrival)
                yield measurement_pb2.MeasureResponse(measurement=measurement)
        except FleetError as error:
            for arrival in ahead.rest():
                yield measurement_pb2.MeasureResponse(
                    measurement=measurement_pb2.Measurement(
                        candidate_id=arrival.request.candidate_id,
                        error=measurement_pb2.ERROR_KIND_LEASE_ENDED,
                        error_message=str(error),
                    )
                )
            raise
        finally:
            await ahead.aclose()
            arrivals.close()

    async def call(self, request: pb.CallRequest, context: CallContext) -> pb.CallResponse:
        session = await self._enter(context)
        answer = await session.life.until_ended(session.call(request.SerializeToString()))
        if answer.size_bytes > MAX_WHOLE_BYTES:
            raise InvalidRequest(
                f"the outputs are {answer.size_bytes} bytes, and this client takes {MAX_WHOLE_BYTES}; "
                "update it: newer ones take them in chunks"
            )
        return encoded(pb.CallResponse, b"".join(answer.parts))

    async def call_in_pieces(
        self, requests: AsyncIterator[pb.CallInPiecesRequest], context: CallContext
    ) -> AsyncIterator[pb.CallInPiecesResponse]:
        session = await self._enter(context)
        async with _carrying(session):
            answer = await session.life.until_ended(_call(session, requests))
            with session.life.answering():
                for chunk in cut(answer.parts, lambda size, part: pb.CallInPiecesResponse(size_bytes=size, piece=part)):
                    yield chunk

    async def prove(self, request: pb.ProveRequest, context: CallContext) -> pb.ProveResponse:
        session = await self._enter(context)
        return await session.life.until_ended(session.prove(request))

    async def prove_in_pieces(
        self, requests: AsyncIterator[pb.ProveInPiecesRequest], context: CallContext
    ) -> AsyncIterator[pb.ProveInPiecesResponse]:
        session = await self._enter(context)
        async with _carrying(session):
            answer = await session.life.until_ended(_prove(session, requests))
            with session.life.answering():
                for chunk in cut([answer], lambda size, part: pb.ProveInPiecesResponse(size_bytes=size, piece=part)):
                    yield chunk

    async def tunnel(
        self, requests: AsyncIterator[pb.TunnelRequest], context: CallContext
    ) -> AsyncIterator[pb.TunnelResponse]:
        session = await self._enter(context)
        async with contextlib.aclosing(session.tunnel(request.content async for request in requests)) as pieces:
            while (piece := await session.life.until_ended(anext(pieces, None))) is not None:
                yield pb.TunnelResponse(content=piece)

    async def program(self, request: pb.ProgramRequest, context: CallContext) -> pb.ProgramResponse:
        session = await self._enter(context)
        return await session.life.until_ended(session.program(request))

    async def watch_logs(
        self, request: pb.WatchLogsRequest, context: CallContext
    ) -> AsyncIterator[pb.WatchLogsResponse]:
        session = await self._enter(context)
        async with contextlib.aclosing(session.output.follow()) as texts:
            async for text in texts:
                yield pb.WatchLogsResponse(text=text)

    async def close_session(self, request: pb.CloseSessionRequest, context: CallContext) -> pb.CloseSessionResponse:
        session = await self._enter(context)
        await self._sessions.leave(session)
        return pb.CloseSessionResponse()

    async def _enter_to_upload(self, context: CallContext) -> Session:
        ticket = _header(context, TICKET_HEADER)
        return self._sessions.enter_to_upload(ticket) if isinstance(ticket, bytes) else await self._enter(context)

    async def _enter(self, context: CallContext) -> Session:
        content = _token(context)
        if read_claims(content).holder_key_id != caller_of(context).key_id:
            # First of all: a stolen token must not even end its owner's session. Its signer is checked next.
            raise Unauthenticated("the token belongs to another holder's key; acquire a lease with your own key")
        return await self._sessions.enter(content)


def _token(context: CallContext) -> bytes:
    content = _header(context, TOKEN_HEADER)
    if not isinstance(content, bytes):
        raise Unauthenticated(f"no token in the metadata {TOKEN_HEADER!r}; acquire a lease first")
    return content


def _header(context: CallContext, name: str) -> str | bytes | None:
    return next((value for key, value in context.invocation_metadata() or () if key == name), None)


@contextlib.asynccontextmanager
async def _carrying(session: Session) -> AsyncIterator[None]:
    """Hold the session's lock for a large message."""
    async with contextlib.AsyncExitStack() as stack:
        await session.life.until_ended(stack.enter_async_context(session.intake.carrying))
        yield


async def _call(session: Session, requests: AsyncIterator[pb.CallInPiecesRequest]) -> CallAnswer:
    return await session.call(await join(requests, session.intake.most_bytes))


async def _prove(session: Session, requests: AsyncIterator[pb.ProveInPiecesRequest]) -> bytes:
    content = await join(requests, session.intake.most_bytes)
    check_structure(content, PROOF_CONTENT)
    try:
        request = pb.ProveRequest.FromString(content)  # type: ignore[arg-type] # any buffer will do
    except DecodeError as error:
        raise InvalidRequest(f"a request that cannot be read: {error}") from None
    del content
    return (await session.prove(request)).SerializeToString()
