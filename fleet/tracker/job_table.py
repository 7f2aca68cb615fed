"""Jobs in a snapshot, kept per user, so that no user can change or crowd out another user's jobs. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from fleet.v1 import job_pb2

_SHOWN_SEC = 600.0
"""Time for which an ended job stays visible."""
_MAX_JOBS = 1_000
_MAX_JOBS_OF_USER = 200


@dataclass(frozen=True, slots=True)
class _Reported:
    client_id: str
    reported_at_sec: float
    job: job_pb2.Job


class JobTable:
    """Jobs by user and name."""

    def __init__(self, *, most: int = _MAX_JOBS, most_of_user: int = _MAX_JOBS_OF_USER) -> None:
        self._most = most
        self._most_of_user = most_of_user
        self._jobs: dict[str, OrderedDict[str, _Reported]] = {}
        """Jobs by user and name, the most recently updated last."""
        self._count = 0

    def put(self, user: str, client_id: str, job: job_pb2.Job, now_sec: float) -> None:
        """Add or replace a job of a user. Beyond the limits, evict the oldest job of this user or the largest."""
        own = self._jobs.setdefault(user, OrderedDict())
        self._count += job.name not in own
        own[job.name] = _Reported(client_id, now_sec, job)
        own.move_to_end(job.name)
        if len(own) > self._most_of_user:
            self._drop_oldest(user)
        if self._count > self._most:
            self._drop_oldest(max(self._jobs, key=lambda each: len(self._jobs[each])))

    def lose_client(self, client_id: str, now_sec: float) -> bool:
        """Mark the running jobs of a disconnected client as interrupted; return True if there were any."""
        lost = [
            (own, reported)
            for own in self._jobs.values()
            for reported in own.values()
            if reported.client_id == client_id and reported.job.state == job_pb2.JOB_STATE_RUNNING
        ]
        for own, reported in lost:
            ended = job_pb2.Job()
            ended.CopyFrom(reported.job)
            ended.state = job_pb2.JOB_STATE_INTERRUPTED
            own[ended.name] = _Reported(client_id, now_sec, ended)
        return bool(lost)

    def recent(self, now_sec: float) -> list[job_pb2.Job]:
        """Return the running and the recently ended jobs, the newest first."""
        oldest_sec = now_sec - _SHOWN_SEC
        shown = [
            reported.job
            for reported in self._all()
            if reported.job.state == job_pb2.JOB_STATE_RUNNING or reported.reported_at_sec > oldest_sec
        ]
        return sorted(shown, key=lambda job: (job.started_at.seconds, job.started_at.nanos, job.name), reverse=True)

    def _all(self) -> Iterator[_Reported]:
        for own in self._jobs.values():
            yield from own.values()

    def _drop_oldest(self, user: str) -> None:
        self._jobs[user].popitem(last=False)
        self._count -= 1
        if not self._jobs[user]:
            del self._jobs[user]
