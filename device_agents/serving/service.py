"""The data path: implements fleet.v1.SessionService on top of the agent's sessions."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import AsyncIterator

from device_agents.serving.read_ahead import ReadAhead
from device_agents.serving.receiving import receive
from device_agents.serving.session import Session
from device_agents.serving.sessions import SessionTable
from device_agents.serving.store import ArtifactStore
from device_agents.workers.answers import check_arguments
from fleet.errors import FleetError, Unauthenticated
from fleet.v1 import measurement_pb2
from fleet.v1 import session_service_pb2 as pb
from fleet.wire.peers import CallContext, caller_of
from fleet.wire.tokens import TICKET_HEADER, TOKEN_HEADER, read_claims

logger = logging.getLogger(__name__)


_READ_AHEAD = 256
_ARGS = {
    "Call": pb.CallRequest.ARGS_FIELD_NUMBER,
    "Measure": measurement_pb2.MeasureRequest.ARGS_FIELD_NUMBER,
}
"""Fields with arguments of functions, by method."""


class SessionService:
    """Serves holders of leases."""

    def __init__(self, sessions: SessionTable, store: ArtifactStore) -> None:
        self._sessions = sessions
        self._store = store

    def check_call(self, context: CallContext) -> None:
        """Refuse a caller without a token of the tracker, before its request is taken in.

        Raises:
            Unauthenticated: there is none, or it was forged.
        """
        if _header(context, TICKET_HEADER) is None:
            self._sessions.check_signature(_token(context))

    def check_message(self, method: str, content: bytes) -> None:
        """Refuse arguments whose structure would take far more memory than their bytes.

        Raises:
            InvalidRequest: there is more than arrays' contents explain.
        """
        field = _ARGS.get(method)
        if field is not None:
            check_arguments(content, field)

    async def open_session(self, request: pb.OpenSessionRequest, context: CallContext) -> pb.OpenSessionResponse:
        session = await self._enter(context)
        return pb.OpenSessionResponse(worker_pid=await session.until_ended(session.open()))

    async def find_missing(self, request: pb.FindMissingRequest, context: CallContext) -> pb.FindMissingResponse:
        session = await self._enter_to_upload(context)
        missing = await session.until_ended(session.find_missing(list(request.digests)))
        return pb.FindMissingResponse(digests=missing)

    async def put_artifact(
        self, requests: AsyncIterator[pb.PutArtifactRequest], context: CallContext
    ) -> pb.PutArtifactResponse:
        session = await self._enter_to_upload(context)
        return pb.PutArtifactResponse(digests=await session.until_ended(receive(requests, session, self._store)))

    async def make_upload_ticket(
        self, request: pb.MakeUploadTicketRequest, context: CallContext
    ) -> pb.MakeUploadTicketResponse:
        session = await self._enter(context)
        return pb.MakeUploadTicketResponse(ticket=session.upload_ticket)

    async def measure(
        self, requests: AsyncIterator[measurement_pb2.MeasureRequest], context: CallContext
    ) -> AsyncIterator[measurement_pb2.MeasureResponse]:
        session = await self._enter(context)
        ahead = ReadAhead(_with_arrival(requests), most=_READ_AHEAD, size_of=lambda item: item[0].ByteSize())
        try:
            while (item := await session.until_ended(ahead.next())) is not None:
                measurement = await session.until_ended(session.measure(*item))
                ahead.in_hand = None
                yield measurement_pb2.MeasureResponse(measurement=measurement)
        except FleetError as error:
            for request, _ in ahead.rest():
                yield measurement_pb2.MeasureResponse(
                    measurement=measurement_pb2.Measurement(
                        candidate_id=request.candidate_id,
                        error=measurement_pb2.ERROR_KIND_LEASE_ENDED,
                        error_message=str(error),
                    )
                )
            raise
        finally:
            await ahead.aclose()

    async def call(self, request: pb.CallRequest, context: CallContext) -> pb.CallResponse:
        session = await self._enter(context)
        return await session.until_ended(session.call(request))

    async def prove(self, request: pb.ProveRequest, context: CallContext) -> pb.ProveResponse:
        session = await self._enter(context)
        return await session.until_ended(session.prove(request))

    async def program(self, request: pb.ProgramRequest, context: CallContext) -> pb.ProgramResponse:
        session = await self._enter(context)
        return await session.until_ended(session.program(request))

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
            # Before anything else: a stolen token must not even end its owner's session. Who signed it is checked next.
            raise Unauthenticated("this token is of another holder's key; acquire a lease with this one")
        return await self._sessions.enter(content)


def _token(context: CallContext) -> bytes:
    content = _header(context, TOKEN_HEADER)
    if not isinstance(content, bytes):
        raise Unauthenticated(f"no token in the metadata {TOKEN_HEADER!r}; acquire a lease first")
    return content


def _header(context: CallContext, name: str) -> str | bytes | None:
    return next((value for key, value in context.invocation_metadata() or () if key == name), None)


async def _with_arrival(
    requests: AsyncIterator[measurement_pb2.MeasureRequest],
) -> AsyncIterator[tuple[measurement_pb2.MeasureRequest, float]]:
    """Yield each request and when it came, since its waiting time counts from then.

    Raises:
        FleetError: what came is no request.
    """
    try:
        async for request in requests:
            yield request, time.monotonic()
    except FleetError:
        raise
    except Exception:  # the outermost loop: serve what came before the stream broke
        logger.exception("request stream broke")
