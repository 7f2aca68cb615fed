"""The agent's side of a lease: its workers, its candidates, and an end that leaves nothing running."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from google.protobuf.message import DecodeError

from device_agents.driver import ProgramOrder, WorkerSpec
from device_agents.measuring.cooldown import cool_down
from device_agents.serving.cleaning import cleaned_call, cleaned_measurement
from device_agents.serving.device import ServedDevice
from device_agents.serving.failures import failed_call, failed_trial, missing, poisoned
from device_agents.serving.hook_run import LeaseNames
from device_agents.serving.intake import Intake
from device_agents.serving.lease_logs import LeaseLogs
from device_agents.serving.lifetime import Lifetime
from device_agents.serving.observation import Observation
from device_agents.serving.proving import prove
from device_agents.serving.referee import Referee
from device_agents.serving.store import ArtifactStore, Incoming
from device_agents.serving.tunnel import carry
from device_agents.serving.worker_slot import WorkerSlot
from device_agents.workers.answers import bound_of_call, bound_of_trial
from device_agents.workers.contents import CALL_CONTENT, Buffer, CallAnswer, order_of, without_contents
from device_agents.workers.handle import WorkerHandle, WorkerLost
from device_agents.workers.output import OutputBroadcast
from device_agents.workers.pool import WorkerPool
from fleet.base.text import sanitize_lines
from fleet.domain.measuring import ErrorKind, check_runs
from fleet.domain.proving import Proof, ProofVerdict
from fleet.domain.tokens import Claims
from fleet.errors import DeviceError, DeviceFaulted, FleetError, InvalidRequest, NotProgrammable
from fleet.v1 import measurement_pb2, session_service_pb2, worker_pb2
from fleet.wire.measurements import (
    call_timeout_sec,
    error_kind_from_proto,
    evaluator_from_proto,
    trial_timeout_sec,
)
from fleet.wire.proofs import proof_to_proto
from fleet.wire.times import duration, duration_sec

logger = logging.getLogger(__name__)

_Request: TypeAlias = (
    measurement_pb2.MeasureRequest | session_service_pb2.CallRequest | session_service_pb2.ProveRequest
)


class Session:
    """One lease in use."""

    def __init__(
        self,
        claims: Claims,
        device: ServedDevice,
        pool: WorkerPool,
        store: ArtifactStore,
        intake: Intake | None = None,
        logs: LeaseLogs | None = None,
    ) -> None:
        self.claims = claims
        self.life = Lifetime()
        self.intake = intake or Intake()
        self.upload_ticket = secrets.token_bytes(32)
        """Ticket that allows uploads of artifacts for this session."""

        self.device = device
        self.output = OutputBroadcast()
        self._logs = logs or LeaseLogs()
        self._log = self._logs.begin(claims)
        self._pool = pool
        self._store = store
        self._workers = WorkerSlot(self._start_worker, self.life.check, device.note_killed)
        self._reference_workers = WorkerSlot(self._start_reference_worker, self.life.check, device.note_killed)
        self._referee = Referee(device, self._workers, self._reference_workers)
        self._apart = WorkerSlot(self._start_worker, self.life.check, device.note_killed)
        """Slot of a worker that serves one call or proof and then ends."""

        self._tunnels = self._workers, self._apart
        """Slots of the next session of TVM's RPC protocol, and of the one after it."""

        self._pinned_cpus: tuple[int, ...] = ()
        self._warming: asyncio.Task[None] | None = None
        self._sparing: asyncio.Task[None] | None = None
        self._gone: asyncio.Task[None] | None = None

    def holds(self, claims: Claims) -> bool:
        """Tell whether the claims belong to this session's lease."""
        return (self.claims.lease_name, self.claims.epoch) == (claims.lease_name, claims.epoch)

    def extend(self, claims: Claims) -> bool:
        """Take newer claims of the same lease; return False if they end no later than the current ones."""
        if claims.expires_at_sec <= self.claims.expires_at_sec:
            return False
        self.claims = claims
        return True

    async def open(self) -> int:
        """Prepare the device and a worker; return the worker's process id."""
        return (await self._usable_worker()).pid

    def warm_up(self) -> None:
        """Start the workers in the background, so that they are ready before the first artifacts."""
        self._warming = asyncio.create_task(self._warm_up(), name=f"warm-up-{self.claims.lease_name}")

    async def prepare(self) -> None:
        """Prepare the device before the first worker starts.

        Raises:
            DeviceFaulted: a hook of its owner failed.
        """
        names = LeaseNames(lease_name=self.claims.lease_name, holder=self.claims.holder)
        await self.device.begin_lease(names)
        await self.device.driver.reset()

    async def end(self, error: FleetError) -> None:
        """End the session: all waiting calls raise `error`. Return once nothing of it is running. Idempotent."""
        if self.life.end(error):
            logger.info("session ended", extra={"lease": self.claims.lease_name, "reason": str(error)})
        if self._gone is None:
            self._gone = asyncio.create_task(self._leave(), name=f"end-{self.claims.lease_name}")
        await asyncio.shield(self._gone)

    async def find_missing(self, digests: list[str]) -> list[str]:
        """Return the digests to upload; the other artifacts are kept for this session."""
        return [digest for digest in digests if await self._store.find(digest, self) is None]

    def keep(self, incoming: Incoming) -> None:
        """Store a received artifact for this session, unless the session has ended and could never release it."""
        self.life.check()
        incoming.finish(self)

    async def measure(
        self, request: measurement_pb2.MeasureRequest, arrived_sec: float, content: Buffer | None = None
    ) -> measurement_pb2.Measurement:
        """Time one candidate.

        Args:
            arrived_sec: arrival of the request by the monotonic clock [s].
            content: the serialised request if `request` lacks the contents of its arrays, else None.
        """
        digest = request.artifact_digest
        path = await self._store.find(digest, self)
        if path is None:
            message = missing(digest)
            return failed_trial(request.candidate_id, ErrorKind.ARTIFACT_MISSING, message)
        if self._is_refused(request):
            return failed_trial(request.candidate_id, ErrorKind.POISONED, poisoned(digest))
        try:
            evaluator = evaluator_from_proto(request.evaluator)
            check_runs("operator_runs", request.operator_runs)
        except InvalidRequest as error:
            return failed_trial(request.candidate_id, ErrorKind.BAD_ARGUMENTS, str(error))
        timeout_sec = trial_timeout_sec(request)
        async with self.device.turn:
            health = await self.device.health()
            if not health.is_healthy:
                return failed_trial(request.candidate_id, ErrorKind.DEVICE_FAULTED, health.reason)
            rest = await cool_down(evaluator, self.device.read_temp_c)
            async with self.device.quiet():
                try:
                    await self._referee.run()
                    worker = await self._usable_worker()
                except DeviceError as error:
                    return failed_trial(request.candidate_id, ErrorKind.DEVICE_FAULTED, str(error))
                raw = request.SerializeToString() if content is None else content
                order = order_of(worker_pb2.WorkerRequest.MEASURE_FIELD_NUMBER, raw, worker.give(path))
                wait_sec = time.monotonic() - arrived_sec
                observation = await Observation.start(self.device, worker.pid)
                async with self.device.running(digest, worker) as run:
                    measurement = await self._measure_in(worker, request, order, timeout_sec)
                    run.is_failed = bool(measurement.error)
                    self.device.learn(error_kind_from_proto(measurement.error), measurement.error_message)
                await observation.stop()
                if worker.is_usable:
                    # Now rather than before the next candidate: by then, a client on this machine is busy with this
                    # result.
                    with contextlib.suppress(DeviceError):  # this candidate ran; the next one will report the error
                        await self._referee.run(is_wanted=request.ends_batch)
        measurement.candidate_id = request.candidate_id
        measurement.clocks.wait.CopyFrom(duration(wait_sec))
        observation.fill(measurement, rest)
        measurement.provenance.jail = worker.jail
        measurement.provenance.epoch = self.claims.epoch
        measurement.provenance.pinned_cpus.extend(self._pinned_cpus)
        measurement.provenance.bitstream_digest = self.device.bitstream_digest
        return measurement

    async def call(self, content: Buffer) -> CallAnswer:
        """Run a function once.

        Args:
            content: a serialised CallRequest.

        Raises:
            InvalidRequest: the content is not a valid CallRequest.
        """
        try:
            request = session_service_pb2.CallRequest.FromString(without_contents(content, CALL_CONTENT))
        except DecodeError as error:
            raise InvalidRequest(f"a call that cannot be read: {error}") from None
        path = await self._store.find(request.artifact_digest, self)
        if path is None:
            message = missing(request.artifact_digest)
            return failed_call(ErrorKind.ARTIFACT_MISSING, message)
        if self._is_refused(request):
            return failed_call(ErrorKind.POISONED, poisoned(request.artifact_digest))
        async with self.device.turn:
            if not request.is_apart:
                return await self._call_in(await self._usable_worker(), request, content, path)
            async with self._worker_apart() as worker:
                return await self._call_in(worker, request, content, path)

    async def prove(self, request: session_service_pb2.ProveRequest) -> session_service_pb2.ProveResponse:
        """Prove a time in a separate worker, see `device_agents.serving.proving`.

        Raises:
            InvalidRequest: the claimed time is not a finite number above 0, or the artifact is not on this agent.
            DeviceError: no worker can be started.
        """
        path = await self._store.find(request.artifact_digest, self)
        if path is None:
            raise InvalidRequest(missing(request.artifact_digest))
        if self._is_refused(request):
            proof = Proof(verdict=ProofVerdict.IMPOSSIBLE, message=poisoned(request.artifact_digest))
            return proof_to_proto(proof)
        async with self.device.turn, self.device.quiet(), self._worker_apart() as worker:
            proof = await self._prove_in(worker, request, path)
        return proof_to_proto(replace(proof, message=sanitize_lines(proof.message)))

    async def tunnel(self, contents: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        """Serve one session of TVM's RPC protocol in a fresh worker, see `device_agents.serving.tunnel`.

        The worker for the next one is started while the client uploads its program.

        Raises:
            DeviceError: no worker can be started, or it failed.
            InvalidRequest: this device serves no such sessions.
        """
        async with self.device.turn:
            health = await self.device.health()
            if not health.is_healthy:
                raise DeviceFaulted(health.reason)
            slot, spare = self._tunnels
            self._tunnels = spare, slot
            try:
                worker = await slot.worker(self._is_fresh)
                async with contextlib.aclosing(carry(worker, contents)) as pieces:
                    async for piece in pieces:
                        yield piece
                        if not piece:
                            self._prepare_spare(spare)
            finally:
                await slot.empty()

    async def program(self, request: session_service_pb2.ProgramRequest) -> session_service_pb2.ProgramResponse:
        """Program the fabric.

        Raises:
            InvalidRequest: the bitstream was not uploaded, or is not for this device.
            DeviceError: there is no fabric, or it did not come up.
        """
        driver = self.device.driver
        path = await self._store.find(request.bitstream_digest, self)
        if path is None:
            raise InvalidRequest(missing(request.bitstream_digest))
        if driver.fabric is None:
            raise NotProgrammable(f"{driver.name} ({driver.kind}) has no fabric to program")
        order = ProgramOrder(
            path=path,
            digest=request.bitstream_digest,
            registers_yaml=request.registers_yaml,
            is_partial=request.is_partial,
            force=request.force,
            timeout_sec=duration_sec(request.timeout) if request.HasField("timeout") else None,
        )
        started = time.monotonic()
        # No worker starts before programming ends: it would know the former design.
        async with self.device.turn, self._no_workers():
            was_loaded = await driver.fabric.program(order)
        return session_service_pb2.ProgramResponse(
            bitstream_digest=request.bitstream_digest,
            was_loaded=was_loaded,
            took=duration(time.monotonic() - started),
        )

    async def _measure_in(
        self,
        worker: WorkerHandle,
        request: measurement_pb2.MeasureRequest,
        order: Sequence[Buffer],
        timeout_sec: float,
    ) -> measurement_pb2.Measurement:
        started = time.monotonic()
        try:
            response = await worker.exchange(order, timeout_sec, bound_of_trial(request))
        except WorkerLost as lost:
            measurement = failed_trial(request.candidate_id, lost.kind, str(lost))
            measurement.signal = lost.signal_number
            measurement.clocks.run.CopyFrom(duration(time.monotonic() - started))
            return measurement
        if worker.is_bloated:
            # Memory left by one candidate must not count against the next.
            await self._workers.empty()
        return cleaned_measurement(response.measurement)

    async def _call_in(
        self, worker: WorkerHandle, request: session_service_pb2.CallRequest, content: Buffer, path: Path
    ) -> CallAnswer:
        order = order_of(worker_pb2.WorkerRequest.CALL_FIELD_NUMBER, content, worker.give(path))
        bound = bound_of_call(request).within(self.intake.most_bytes)
        async with self.device.running(request.artifact_digest, worker) as run:
            try:
                head, outputs = await worker.exchange_call(order, call_timeout_sec(request), bound)
            except WorkerLost as lost:
                return failed_call(lost.kind, str(lost), lost.signal_number)
            run.is_failed = bool(head.error)
            return CallAnswer(cleaned_call(head), outputs)

    async def _prove_in(self, worker: WorkerHandle, request: session_service_pb2.ProveRequest, path: Path) -> Proof:
        async with self.device.running(request.artifact_digest, worker) as run:
            proof = await prove(worker, request, worker.give(path), cpus=self._pinned_cpus)
            run.is_failed = not proof.is_proven
        return proof

    @asynccontextmanager
    async def _worker_apart(self) -> AsyncIterator[WorkerHandle]:
        """Provide a fresh, separate worker, and kill it afterwards."""
        try:
            yield await self._apart.worker(lambda _: False)
        finally:
            await self._apart.empty()

    def _is_refused(self, request: _Request) -> bool:
        return self.device.poison.has(request.artifact_digest) and not request.allow_poison

    async def _usable_worker(self) -> WorkerHandle:
        return await self._workers.worker(self.device.accepts)

    def _prepare_spare(self, slot: WorkerSlot) -> None:
        """Start a worker in the background, unless the device serves one at a time."""
        if not self.device.driver.serves_one_worker:
            self._sparing = asyncio.create_task(self._fill(slot), name=f"spare-{self.claims.lease_name}")

    async def _fill(self, slot: WorkerSlot) -> None:
        with contextlib.suppress(FleetError, OSError):  # the session that needs it retries, and reports the error
            await slot.worker(self._is_fresh)

    def _is_fresh(self, worker: WorkerHandle) -> bool:
        return not worker.has_run_candidates and self.device.accepts(worker)

    async def _start_worker(self) -> WorkerHandle:
        driver = self.device.driver
        await driver.prepare()
        spec = driver.worker_spec()
        self._pinned_cpus = spec.cpus
        return await self._start(spec)

    async def _start_reference_worker(self) -> WorkerHandle:
        await self.device.driver.prepare()
        return await self._start(self.device.driver.reference_spec())

    async def _start(self, spec: WorkerSpec) -> WorkerHandle:
        cycles = self.device.upkeep.cycles
        worker = await self._pool.start_worker(spec, self._note_output)
        worker.device_cycles = cycles
        return worker

    def _note_output(self, content: bytes) -> None:
        self.output.write(content)
        self._log.write(content)

    async def _warm_up(self) -> None:
        try:
            await self._usable_worker()
            await self._referee.warm_up()
        except (FleetError, OSError) as error:
            # The next call that needs the worker retries, and reports the error to the holder.
            logger.info("worker not warmed up", extra={"lease": self.claims.lease_name, "error": str(error)})

    @contextlib.asynccontextmanager
    async def _no_workers(self) -> AsyncIterator[None]:
        """Kill all workers of the session, and prevent new ones inside the block."""
        async with self._workers.vacant(), self._reference_workers.vacant(), self._apart.vacant():
            yield

    async def _leave(self) -> None:
        # Also kills a worker that is just starting.
        async with self._no_workers():
            pass
        self._store.release(self)
        self.output.close()
        self._logs.end(self._log)
        self.device.end_lease()
