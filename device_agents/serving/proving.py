"""Proves a time by the agent's own clock: requests rows of calls from a fresh worker and judges its responses.

`fleet.domain.proving` defines proofs. The agent trusts the worker's responses only for their time of arrival. It
compares their digests with the outputs of repeated calls. The client compares these outputs with the reference.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import random
import secrets
import time
from collections.abc import Collection
from dataclasses import dataclass, replace

from device_agents.measuring.foreign_load import ForeignLoad
from device_agents.runtimes.proving import digest_of_outputs
from device_agents.workers.answers import AnswerBound, bound_of_answer_again, bound_of_row
from device_agents.workers.handle import WorkerHandle, WorkerLost
from fleet.domain.proving import (
    DIGEST_BYTES,
    MOST_ANSWERS,
    Proof,
    ProofAnswer,
    ProofOrder,
    ProofVerdict,
    RowTimes,
    choose_rows,
    longest_sec,
)
from fleet.errors import InvalidRequest
from fleet.v1 import session_service_pb2, worker_pb2
from fleet.wire.measurements import error_kind_from_proto, tensor_from_proto
from fleet.wire.proofs import proof_order_from_proto

_SEED_BYTES = 16
_FIRST_CALLS = 64
"""Calls in each row that measures the overhead of the harness."""

_EMPTY_ROWS = 2
_ROUNDS_OF_A_PROOF = 2
_FEWEST_ROUNDS = 3
_HOPELESS = 3.0
"""Give up after the fewest rounds if the shortest provable claim is this many times longer than the claim."""

_PATIENCE_SEC, _BUSY_PATIENCE_SEC = 1.0, 2.0
"""Time limit of all rounds; the second applies while other processes use the processors."""

_BUSY_SHARE = 0.2
"""Share of the processors used by other processes from which their load may explain a long row."""

_MOST_SLOWED, _MOST_DELAYED_SEC = 8.0, 0.25
"""Largest slowdown of the fastest row that load can explain: a factor, plus a delay. A thread that wakes up waits
until several others had their turns."""

_PAUSE_SEC = 0.01


class _Refuted(Exception):
    """The worker contradicts its claim; the message explains the contradiction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    seed: bytes
    sec: float
    digests: bytes


async def prove(
    worker: WorkerHandle,
    request: session_service_pb2.ProveRequest,
    artifact_path: str,
    *,
    cpus: Collection[int] = (),
) -> Proof:
    """Prove a claimed time in a fresh worker.

    Args:
        cpus: processors that the worker is pinned to; empty if it is not pinned.

    Raises:
        InvalidRequest: the claimed time is not a finite number above 0.
    """
    order = proof_order_from_proto(request)
    if not (math.isfinite(order.claimed_sec) and order.claimed_sec > 0):
        raise InvalidRequest(f"claimed_sec: expected a time above 0, found {order.claimed_sec}")
    timer = _Timer(worker, order, bound_of_answer_again(request), artifact_path, cpus)
    try:
        return await timer.prove(request)
    except _Refuted as reason:
        return replace(timer.proof, verdict=ProofVerdict.REFUTED, message=str(reason))
    except WorkerLost as lost:
        message = f"its worker was lost: {lost}"
        return replace(timer.proof, verdict=ProofVerdict.REFUTED, message=message)


class _Timer:
    """Proof in progress."""

    def __init__(
        self,
        worker: WorkerHandle,
        order: ProofOrder,
        answer_bound: AnswerBound,
        artifact_path: str,
        cpus: Collection[int],
    ) -> None:
        self._worker = worker
        self._order = order
        self._answer_bound = answer_bound
        self._path = artifact_path
        self._cpus = cpus
        self._others = ForeignLoad(worker.processes, cpus)
        self._rng = random.SystemRandom()
        self._ends_at = time.perf_counter() + order.timeout_sec
        self.proof = Proof(verdict=ProofVerdict.IMPOSSIBLE, claimed_sec=order.claimed_sec)

    async def prove(self, request: session_service_pb2.ProveRequest) -> Proof:
        opened = await self._step(worker_pb2.ProofStep(open=request))
        if opened.impossible:
            return replace(self.proof, message=opened.impossible)
        first_sec = min([(await self._row(_FIRST_CALLS, math.inf)).sec for _ in range(_EMPTY_ROWS)])
        claimed_sec = self._order.claimed_sec
        short, long = choose_rows(claimed_sec, first_sec / _FIRST_CALLS, self._rng)
        times = await self._empty_times(short, long)
        await self._step(worker_pb2.ProofStep(load=worker_pb2.ProofLoad()))
        self._others = ForeignLoad(self._worker.processes, self._cpus)
        row, times = await self._full_times(times)
        judged = self._judged(times)
        if judged.verdict is ProofVerdict.REFUTED:
            return judged
        # Check answers of undecided times too: load can explain a long time but not wrong outputs.
        return replace(judged, answers=await self._answers(row, long))

    def _judged(self, times: RowTimes) -> Proof:
        """Return the verdict from the times alone."""
        if times.least_sec <= self._order.claimed_sec:
            return replace(self.proof, verdict=ProofVerdict.PROVEN)
        longer = f"{times.long} calls took longer by the agent's clock than the claim allows"
        if not self._may_be_load(times):
            return replace(self.proof, verdict=ProofVerdict.REFUTED, message=longer)
        share = self._others.share()
        message = f"{longer}, and others used {share:.0%} of the processors; try again when the machine is quiet"
        return replace(self.proof, verdict=ProofVerdict.UNDECIDED, message=message)

    def _may_be_load(self, times: RowTimes) -> bool:
        """Return True if load of other processes may explain the times of the rows."""
        expected_sec = times.empty_long_sec + times.long * self._order.claimed_sec
        is_explicable = times.long_sec <= _MOST_SLOWED * expected_sec + _MOST_DELAYED_SEC
        return is_explicable and self._others.share() >= _BUSY_SHARE

    async def _empty_times(self, short: int, long: int) -> RowTimes:
        """Time rows without a kernel, before the artifact is loaded."""
        short_secs, long_secs = [], []
        for _ in range(_EMPTY_ROWS):
            short_secs.append((await self._row(short, math.inf)).sec)
            long_secs.append((await self._row(long, math.inf)).sec)
        return RowTimes(
            short=short,
            long=long,
            empty_short_sec=min(short_secs),
            empty_long_sec=min(long_secs),
            short_sec=math.inf,
            long_sec=math.inf,
        )

    async def _full_times(self, times: RowTimes) -> tuple[_Row, RowTimes]:
        """Time rows until they prove the claim or cannot any more. Return the fastest long row and the best times."""
        claimed_sec, started, longs = self._order.claimed_sec, time.perf_counter(), []
        best = _Row(seed=b"", sec=math.inf, digests=b"")
        for count in itertools.count(1):
            limit_sec = longest_sec(claimed_sec, times.long, times.empty_long_sec)
            short = await self._row(times.short, limit_sec)
            long = await self._row(times.long, limit_sec)
            longs.append(long.sec)
            best = min(best, long, key=lambda row: row.sec)
            times = replace(times, short_sec=min(times.short_sec, short.sec), long_sec=best.sec)
            self.proof = replace(
                self.proof,
                measured_sec=times.measured_sec,
                least_sec=times.least_sec,
                spread_sec=(max(longs) - min(longs)) / times.long,
                calls=times.long,
            )
            if count >= _ROUNDS_OF_A_PROOF and times.least_sec <= claimed_sec:
                break
            is_busy = self._may_be_load(times)
            is_hopeless = count >= _FEWEST_ROUNDS and times.least_sec > _HOPELESS * claimed_sec and not is_busy
            if is_hopeless or time.perf_counter() - started > (_BUSY_PATIENCE_SEC if is_busy else _PATIENCE_SEC):
                break
            await asyncio.sleep(_PAUSE_SEC)
        return best, times

    async def _answers(self, row: _Row, calls: int) -> tuple[ProofAnswer, ...]:
        """Repeat some calls of a row, except the first: a kernel that computes only once is correct in that one."""
        count = min(max(1, self._order.answers), MOST_ANSWERS, calls - 1)
        found = []
        for call in sorted(self._rng.sample(range(1, calls), count)):
            again = worker_pb2.ProofAgain(seed=row.seed, call=call)
            response = await self._step(worker_pb2.ProofStep(again=again), math.inf)
            outputs = tuple(map(tensor_from_proto, response.outputs))
            committed = row.digests[call * DIGEST_BYTES : (call + 1) * DIGEST_BYTES]
            if digest_of_outputs([output.content for output in outputs]) != committed:
                raise _Refuted(f"call {call} of {calls} in a row gave another result when it was repeated")
            found.append(ProofAnswer(seed=row.seed, call=call, outputs=outputs))
        return tuple(found)

    async def _row(self, calls: int, limit_sec: float) -> _Row:
        """Time a row by the agent's clock, from sending its seed to receiving its digests."""
        seed = secrets.token_bytes(_SEED_BYTES)
        step = worker_pb2.ProofStep(row=worker_pb2.ProofRow(seed=seed, calls=calls))
        started = time.perf_counter()
        response = await self._step(step, limit_sec)
        sec = time.perf_counter() - started
        if len(response.digests) != calls * DIGEST_BYTES:
            raise _Refuted(f"{calls} calls returned {len(response.digests) // DIGEST_BYTES} outputs")
        return _Row(seed=seed, sec=sec, digests=response.digests)

    async def _step(self, step: worker_pb2.ProofStep, limit_sec: float = math.inf) -> worker_pb2.ProofStepResponse:
        order = worker_pb2.WorkerRequest(proof=step, artifact_path=self._path).SerializeToString()
        left_sec = max(0.001, min(limit_sec, self._ends_at - time.perf_counter()))
        is_again = step.WhichOneof("kind") == "again"
        bound = self._answer_bound if is_again else bound_of_row(step.row.calls * DIGEST_BYTES)
        response = await self._worker.exchange(order, left_sec, bound)
        if response.WhichOneof("kind") != "proof":
            raise _Refuted("its worker answered another request")
        kind = error_kind_from_proto(response.proof.error)
        if kind is not None:
            raise _Refuted(f"{kind.value}: {response.proof.error_message or 'no message'}")
        return response.proof
