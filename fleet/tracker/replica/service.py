"""The tracker's side of its standby: fleet.v1.ReplicaService of a tracker that grants."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fleet.base.scratch import scratch_dir
from fleet.domain.terms import larger_term, make_proof
from fleet.errors import AlreadyExists, FleetError, InvalidRequest
from fleet.tracker.agent_messages import reachable_address
from fleet.tracker.backup import back_up
from fleet.tracker.engine import Engine
from fleet.tracker.journal.commits import Commit
from fleet.tracker.journal.file import Journal
from fleet.tracker.replica.feed import Feed
from fleet.tracker.replica.messages import commit_to_proto, portions_of
from fleet.tracker.replica.standing import Standing, write_standing
from fleet.tracker.replica.state_files import StateFiles
from fleet.tracker.streams import first_message, when_over
from fleet.v1 import replica_service_pb2 as pb
from fleet.wire.peers import CallContext
from fleet.wire.times import timestamp

logger = logging.getLogger(__name__)

_BEAT_SEC = 1.0
_PIECE_BYTES = 512 * 1024


class ReplicaServicer:
    """fleet.v1.ReplicaService."""

    def __init__(
        self,
        engine: Engine,
        journal: Journal,
        directory: Path,
        standing: Standing,
        key: Ed25519PrivateKey,
        files: Callable[[], StateFiles],
        *,
        on_other: Callable[[str], None] = lambda address: None,
    ) -> None:
        """Args: on_other: called with the address of a new standby."""
        self._engine = engine
        self._journal = journal
        self._directory = directory
        self._key = key
        self._files = files
        self._on_other = on_other
        self._feed: Feed | None = None
        self.standing = standing
        self.superseded = asyncio.Event()
        """Set once another tracker of the fleet has a larger term."""

    @property
    def proof(self) -> bytes:
        """Proof of this tracker's term."""
        return make_proof(self._key, self.standing.term)

    @property
    def is_followed(self) -> bool:
        """True while a standby has a stream."""
        return self._feed is not None

    def hear(self, proof: bytes) -> None:
        """Stop granting if this proves a larger term. Others are ignored: they may come from anybody."""
        term = larger_term(self._key, self.standing.term, proof)
        if term <= self.standing.term or self.superseded.is_set():
            return
        self._engine.halt()
        self.standing = replace(self.standing, term=term)
        self.superseded.set()
        logger.error("another tracker has taken over, nothing more is granted here", extra={"term": term})

    async def get_tracker(self, request: pb.GetTrackerRequest, _: object) -> pb.GetTrackerResponse:
        self.hear(request.proof)
        return pb.GetTrackerResponse(
            is_standby=self.superseded.is_set(), other_address=self.standing.other, proof=self.proof
        )

    async def promote(self, _: pb.PromoteRequest, __: object) -> pb.PromoteResponse:
        raise InvalidRequest("this tracker grants already; promote its standby")

    async def follow(
        self, requests: AsyncIterator[pb.FollowRequest], context: CallContext
    ) -> AsyncIterator[pb.FollowResponse]:
        messages = aiter(requests)
        if await first_message(messages, self._engine.queries.limits.hello_sec) is None:
            raise InvalidRequest("Follow ended without a message; send one")
        feed = self._begin()
        when_over(lambda: self._end(feed))
        reader = asyncio.create_task(self._read(messages, feed, context.peer()), name="standby")
        try:
            files, beat_sec = self._files(), 0.0
            async for response in self._snapshot():
                yield response
            while not feed.is_closed:
                for portion in portions_of(await feed.take(_BEAT_SEC)):
                    yield pb.FollowResponse(commits=map(commit_to_proto, portion))
                now_sec = asyncio.get_running_loop().time()
                if now_sec >= beat_sec + _BEAT_SEC:
                    beat_sec = now_sec
                    yield self._beat(await files.changed())
            if feed.error is not None:
                raise feed.error
        finally:
            reader.cancel()
            self._end(feed)

    def close(self) -> None:
        """End the standby's stream."""
        if self._feed is not None:
            self._feed.close()

    def _begin(self) -> Feed:
        if self._feed is not None:
            self._feed.close(AlreadyExists("another standby has begun to follow; a tracker has one"))
        feed = self._feed = Feed()
        self._engine.release(self._engine.gate.open())
        self._engine.gate.begin(self._journal.commits)
        self._journal.on_commit = self._note
        self._engine.on_hold = feed.hurry
        return feed

    def _announce(self, address: str) -> None:
        logger.info("a standby follows", extra={"address": address})
        if self.standing.other != address:
            self.standing = replace(self.standing, other=address)
            write_standing(self._directory, self.standing)
            self._on_other(address)

    def _end(self, feed: Feed) -> None:
        feed.close()
        if self._feed is not feed:
            return
        self._feed = self._journal.on_commit = None
        self._engine.release(self._engine.gate.open())
        self._engine.gate.begin(self._journal.commits)
        logger.warning("the standby does not follow any more", extra={"address": self.standing.other})

    def _note(self, commit: Commit) -> None:
        if self._feed is not None:
            self._feed.put(commit)
            self._engine.gate.note_commit(commit.chain.commits, asyncio.get_running_loop().time())

    def _beat(self, changed: Mapping[str, bytes]) -> pb.FollowResponse:
        files = (pb.StateFile(name=name, content=content) for name, content in changed.items())
        return pb.FollowResponse(tracker_time=timestamp(self._engine.clock.now_sec()), files=files)

    async def _snapshot(self) -> AsyncIterator[pb.FollowResponse]:
        with scratch_dir("standby") as scratch:
            path = scratch / "snapshot.tar"
            await asyncio.to_thread(back_up, self._directory, path)
            for piece in _pieces(path):
                yield pb.FollowResponse(snapshot=piece)
        yield pb.FollowResponse(is_snapshot_end=True, tracker_time=timestamp(self._engine.clock.now_sec()))

    async def _read(self, messages: AsyncIterator[pb.FollowRequest], feed: Feed, peer: str) -> None:
        try:
            async for message in messages:
                if feed.is_closed:
                    return
                if message.address:
                    self._announce(reachable_address(message.address, peer))
                now_sec = asyncio.get_running_loop().time()
                self._engine.release(self._engine.gate.acknowledge(message.commits, now_sec))
                feed.acknowledge(message.commits)
        except FleetError as error:
            feed.close(error)
        finally:
            feed.close()


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            yield piece
