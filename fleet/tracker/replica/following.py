"""The standby's stream from the tracker that it follows: dialled again and again, each time with a new snapshot."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import grpc.aio

from fleet.base.clock import SystemClock
from fleet.base.private_files import private_file
from fleet.base.scratch import scratch_dir
from fleet.errors import FleetError, JournalDamaged, TrackerUnavailable
from fleet.tracker.replica.membership import standby_credentials
from fleet.tracker.replica.messages import commit_from_proto
from fleet.tracker.replica.primary_clock import PrimaryClock
from fleet.tracker.replica.replica_state import ReplicaState
from fleet.v1 import replica_service_pb2 as pb
from fleet.wire.rpc import from_rpc_error, make_channel, read_next
from fleet.wire.stubs import replica_service_stub
from fleet.wire.times import timestamp_sec

logger = logging.getLogger(__name__)

_PAUSE_SEC = 1.0
_SILENCE_SEC = 5.0
"""Five beats missed: the stream is dead, whatever TCP thinks."""
_SNAPSHOT_SEC = 60.0
"""A large snapshot is made and copied before its first piece."""


class Following:
    """Keeps a standby's state up to date."""

    def __init__(self, state: ReplicaState, listen: Callable[[], Awaitable[str]]) -> None:
        """Args: listen: listens for others, and returns the address; called with a whole state."""
        self._state = state
        self._listen = listen
        self.primary = state.standing.other
        self.clock = PrimaryClock(SystemClock())
        self.heard_at_sec = time.monotonic()
        """Time of its last message."""
        self.error: FleetError | None = None
        """Why it cannot be followed now; None while it is."""
        self.whole = asyncio.Event()
        """Set once there is a whole state."""
        if state.standing.is_whole:
            self.whole.set()

    async def run(self) -> None:
        """Follow until cancelled."""
        while True:
            try:
                await self._follow()
                error = FleetError("it ended the stream")
            except grpc.aio.AioRpcError as failed:
                error = from_rpc_error(failed, TrackerUnavailable)
            except FleetError as failed:
                error = failed
            except TimeoutError:
                error = TrackerUnavailable(f"it was silent for {_SILENCE_SEC:g} s")
            if str(error) != str(self.error):
                logger.warning("not following", extra={"tracker": self.primary, "reason": str(error)})
            self.error = error
            await asyncio.sleep(_PAUSE_SEC)

    async def _follow(self) -> None:
        credentials = await standby_credentials(self._state.directory, self.primary)
        async with make_channel(self.primary, credentials) as channel:
            self.clock.begin()
            call = replica_service_stub(channel).follow()  # type: ignore[call-arg] # its default is None
            try:
                await call.write(pb.FollowRequest())
                with scratch_dir("standby") as scratch:
                    path = scratch / "snapshot.tar"
                    await self._read_snapshot(call, path)
                    chain = await asyncio.to_thread(self._state.install, path)
                await call.write(pb.FollowRequest(address=await self._listen(), commits=chain.commits))
                self.error = None
                self.whole.set()
                logger.info("following", extra={"tracker": self.primary, "commits": chain.commits})
                while (message := await self._next(call, _SILENCE_SEC)) is not None:
                    await self._take(call, message)
            finally:
                call.cancel()

    async def _read_snapshot(self, call: _Call, path: Path) -> None:
        with private_file(path) as file:
            while (message := await self._next(call, _SNAPSHOT_SEC)) is not None:
                file.write(message.snapshot)
                if message.is_snapshot_end:
                    return
        raise TrackerUnavailable("it ended the stream before its snapshot was whole")

    async def _take(self, call: _Call, message: pb.FollowResponse) -> None:
        for found in message.files:
            await asyncio.to_thread(self._state.keep_file, found.name, found.content)
        if not message.commits:
            return
        commits = []
        for each in message.commits:
            commit = commit_from_proto(each)
            if commit is None:
                raise JournalDamaged(f"the chain of commit {each.commits} is damaged")
            commits.append(commit)
        chain = await asyncio.to_thread(self._state.write, commits)
        await call.write(pb.FollowRequest(commits=chain.commits))

    async def _next(self, call: _Call, timeout_sec: float) -> pb.FollowResponse | None:
        async with asyncio.timeout(timeout_sec):
            message = await read_next(call)
        self.heard_at_sec = time.monotonic()
        if message is not None and message.HasField("tracker_time"):
            self.clock.learn(timestamp_sec(message.tracker_time))
        return message


_Call = grpc.aio.StreamStreamCall[pb.FollowRequest, pb.FollowResponse]
