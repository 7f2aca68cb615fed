"""Receives the artifacts of an upload: arrived chunks are decompressed, hashed and written between two candidates.

A candidate that runs on the agent's own processors must not be disturbed by that. So chunks are taken from the stream
as they come, and worked on together when no candidate runs: one at a time, a batch of eight small artifacts would be
there eight candidates later.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator

from device_agents.serving.read_ahead import ReadAhead
from device_agents.serving.session import Session
from device_agents.serving.store import ArtifactStore
from fleet.artifacts.artifact import check_architecture, check_complete
from fleet.artifacts.chunks import DamagedChunk, Inflater
from fleet.artifacts.elf import HEADER_BYTES
from fleet.errors import ArtifactRefused, InvalidRequest, NotProgrammable
from fleet.v1 import session_service_pb2 as pb

_MAX_CHUNK_BYTES = 4 * 1024 * 1024
_CHUNKS_AHEAD = 32

_WORK_SEC = 0.01
"""Longest time that candidates wait for an upload at once, in addition to the chunk in progress."""


async def receive(requests: AsyncIterator[pb.PutArtifactRequest], session: Session, store: ArtifactStore) -> list[str]:
    """Receive artifacts, one after the other, and return their digests.

    Raises:
        ArtifactRefused, InvalidRequest, NotProgrammable: it cannot be taken.
    """
    digests: list[str] = []
    inflater = Inflater()
    ahead = ReadAhead(requests, most=_CHUNKS_AHEAD, size_of=lambda message: len(message.chunk))
    async with contextlib.aclosing(ahead) as messages, _OwnWork(session) as own_work:
        message = await messages.next()
        if message is None:
            raise InvalidRequest("an upload without a first message; say digest and size in it")
        while message is not None:
            with store.receive(message.digest, message.size_bytes) as incoming:
                digests.append(message.digest)
                header = _Header(session, message.size_bytes, is_bitstream=message.kind == pb.ARTIFACT_KIND_BITSTREAM)
                while True:
                    await own_work.begin()
                    chunk = _content(message, inflater)
                    incoming.write(chunk)
                    header.take(chunk)
                    if not messages.are_there:
                        await own_work.end()
                    message = await messages.next()
                    if message is None or message.digest:
                        break
                header.finish()
                session.keep(incoming)
    return digests


class _OwnWork:
    """Schedules the agent's work on one upload in short slices between candidates."""

    def __init__(self, session: Session) -> None:
        self._device = session.device
        self._held = contextlib.AsyncExitStack()
        self._ends_at: float | None = None

    async def __aenter__(self) -> _OwnWork:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.end()

    async def begin(self) -> None:
        """Wait until no candidate runs, unless the current slice has time left."""
        if self._ends_at is not None and time.monotonic() < self._ends_at:
            return
        await self.end()
        await self._held.enter_async_context(self._device.own_work())
        self._ends_at = time.monotonic() + _WORK_SEC

    async def end(self) -> None:
        """Let candidates run. Idempotent."""
        self._ends_at = None
        await self._held.aclose()


def _content(message: pb.PutArtifactRequest, inflater: Inflater) -> bytes:
    if len(message.chunk) > _MAX_CHUNK_BYTES:
        raise InvalidRequest(f"a chunk of {len(message.chunk)} bytes; send at most 1 MiB at a time")
    try:
        return inflater.inflate(message.chunk, is_deflated=message.is_deflated)
    except DamagedChunk as damaged:
        raise ArtifactRefused(f"a chunk of an upload cannot be decompressed: {damaged}; put it again") from None


class _Header:
    """Checks the first bytes of an incoming artifact, to refuse early an artifact that cannot be loaded.

    A bitstream is checked when it is programmed: its board's chip and its kind, full or partial, are known only then.
    """

    def __init__(self, session: Session, size_bytes: int, *, is_bitstream: bool) -> None:
        """Raises: NotProgrammable: the artifact is a bitstream, and this device has no fabric."""
        driver = session.device.driver
        if is_bitstream and driver.fabric is None:
            raise NotProgrammable(f"{driver.name} ({driver.kind}) has no fabric to program; it takes no bitstreams")
        self._session = session
        self._size_bytes = size_bytes
        self._content = b""
        self._is_checked = is_bitstream or not driver.checks_architecture

    def take(self, chunk: bytes) -> None:
        if not self._is_checked:
            self._content += chunk[:HEADER_BYTES]
            if len(self._content) >= HEADER_BYTES:
                self.finish()

    def finish(self) -> None:
        if not self._is_checked:
            device = self._session.device
            check_architecture(self._content[:HEADER_BYTES], device.arch, device_name=device.name)
            check_complete(self._content[:HEADER_BYTES], self._size_bytes)
            self._is_checked = True
