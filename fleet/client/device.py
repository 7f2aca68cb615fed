"""A leased device: calls of the lease's holder to the device's agent.

Whatever is under way stops with the lease, and so does every later call. After each renewal an open session is
extended, so a measurement may last longer than one token.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fleet.artifacts.artifact import Artifact
from fleet.artifacts.chunks import Deflater
from fleet.artifacts.elf import HEADER_BYTES
from fleet.artifacts.fit import check_fit
from fleet.base.digests import digest_of
from fleet.client import arrays, upload
from fleet.client.remote import RemoteModule
from fleet.client.session_calls import LeaseHolder, SessionCalls, failure
from fleet.client.tickets import UploadTicket
from fleet.domain.devices import Inventory
from fleet.domain.leases import Lease, YieldWanted
from fleet.domain.measuring import TIMING, Call, ErrorKind, Evaluator, Measurement, Trial
from fleet.domain.proving import Proof, ProofArgument, ProofOrder
from fleet.errors import DeviceUnreachable, FleetError, InvalidRequest, MeasurementError
from fleet.identity.credentials import Credentials
from fleet.identity.credentials import Proof as IdentityProof
from fleet.wire.tokens import TOKEN_HEADER

if TYPE_CHECKING:
    from fleet.client.arrays import Array

logger = logging.getLogger(__name__)

_EXTEND_TIMEOUT_SEC = 10.0
_GUESSED_BYTES = 256 * 1024
"""Upload this much before the list of missing artifacts is known: 20 ms on a link of 100 Mbit/s."""


class Device:
    """One device under one lease. Made by `Fleet.acquire`, used on one event loop."""

    def __init__(
        self,
        holder: LeaseHolder,
        proof: IdentityProof,
        give_back: Callable[[], Awaitable[None]] | None = None,
        *,
        header: str = TOKEN_HEADER,
    ) -> None:
        """Args:
        proof: evidence for its agent that the lease is this account's.
        """
        self.name = holder.device.name
        """ "devices/<id>"."""

        self.inventory: Inventory = holder.device.inventory
        """Inventory of the hardware."""

        self.address = holder.device.address
        """ "host:port" of its agent."""

        self.relay_address = holder.device.relay_address
        """Address of a relay that leads to its agent; empty: none."""

        self.agent_key_id = holder.device.agent_key_id
        self._holder = holder
        self._give_back = give_back
        self._proof = proof
        self._session = SessionCalls(holder, proof, header=header)
        self._extending: asyncio.Task[None] | None = None
        self._put_digests: set[str] = set()
        holder.watch(on_end=self._session.cancel, on_renew=self._lease_renewed)

    def __repr__(self) -> str:
        model = f" ({self.inventory.device_model})" if self.inventory.device_model else ""
        over = f", over: {self.ended}" if self.ended is not None else ""
        return f"<Device {self.name}{model} under {self.lease.name}{over}>"

    @property
    def lease(self) -> Lease:
        """The lease as the tracker last reported it."""
        return self._holder.lease

    @property
    def token(self) -> bytes:
        """The newest token, as it travels."""
        return self._holder.token

    @property
    def ended(self) -> FleetError | None:
        """Why the lease is over; None while it lives."""
        return self._holder.ended

    @property
    def yield_wanted(self) -> YieldWanted | None:
        """Demand to give the device back at the next border between batches, if the tracker made one."""
        return self._holder.yield_wanted

    @property
    def outbid(self) -> float:
        """Highest bid of the account's own requests that waited for the device since the grant; 0: none did."""
        return self._holder.outbid

    def watch_yield(self, on_yield: Callable[[], None]) -> None:
        """Register a callback, called on the event loop when the lease has to give way."""
        self._holder.watch_yield(on_yield)

    @property
    def is_busy(self) -> bool:
        """True if a call of this process is under way."""
        return self._session.is_busy

    def watch(self, *, on_end: Callable[[], None], on_renew: Callable[[], None]) -> None:
        """Register callbacks, called on the event loop at the lease's end and after each renewal."""
        self._holder.watch(on_end=on_end, on_renew=on_renew)

    async def open(self) -> None:
        """Open the session now, so that the first measurement finds its worker warm. Optional.

        Raises:
            DeviceUnreachable: its agent does not answer.
        """
        await self._session.open()

    async def ensure(self, artifacts: Iterable[Artifact]) -> None:
        """Upload the artifacts that the agent lacks.

        Raises:
            ArtifactRefused: built for another machine, or changed since it was named.
            DiskFull: the agent has no room.
        """
        wanted = {a.digest: a for a in artifacts if a.digest not in self._put_digests}
        if not wanted:
            return
        if not self.inventory.is_pretended:
            await asyncio.to_thread(self._check_fits, list(wanted.values()))
        asking = asyncio.create_task(self._session.find_missing(list(wanted)), name=f"fleet find missing {self.name}")
        try:
            # Most artifacts are new, so over a network the first ones are sent before the answer arrives.
            guessed = upload.pick_first(wanted.values(), _GUESSED_BYTES) if upload.is_far(self.address) else []
            if guessed or await asking:
                await self._session.put(_missing_messages(wanted, guessed, asking, self._deflater()))
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        self._put_digests.update(wanted)

    def lacks(self, artifact: Artifact) -> bool:
        """Tell whether an artifact has to be uploaded, as far as this client knows."""
        return artifact.digest not in self._put_digests

    def note_put(self, digests: Iterable[str]) -> None:
        """Record that others have uploaded these artifacts for this session."""
        self._put_digests.update(digests)

    async def make_upload_ticket(self) -> UploadTicket:
        """Return a ticket with which others may upload artifacts for this session, and do nothing else.

        Raises:
            FleetError: the agent is too old for it.
        """
        secret = await self._session.make_upload_ticket()
        authority_pem = self._proof.authority_pem if isinstance(self._proof, Credentials) else b""
        return UploadTicket(device=self._holder.device, lease=self.lease, token=secret, authority_pem=authority_pem)

    async def measure(self, trials: Iterable[Trial] | AsyncIterable[Trial]) -> AsyncGenerator[Measurement, None]:
        """Time candidates one after the other and yield the result of each, in order. Trials are sent ahead.

        Raises:
            LeaseExpired, LeaseRevoked: the lease ended; trials without a result did not run to their end.
            DeviceUnreachable: the agent is gone; the same holds for trials without a result.
        """
        async with contextlib.aclosing(self._session.measure(trials)) as measurements:
            async for measurement in measurements:
                if measurement.error is ErrorKind.ARTIFACT_MISSING:
                    self._put_digests.clear()
                yield measurement

    async def time(
        self,
        artifact: Artifact,
        args: Sequence[object],
        *,
        function: str | None = None,
        evaluator: Evaluator | None = None,
        timeout_sec: float = 60.0,
        operator_runs: int = 0,
        allow_poison: bool = False,
    ) -> Measurement:
        """Time one function.

        Args:
            args: as for `call`.
            evaluator: how; None: five repeats of at least 50 ms, as `fleet time` does.
            operator_runs: of a model, time each operator in its place, too, over so many further runs.
            allow_poison: run it even if a device faulted while it ran before, which is refused otherwise (POISONED).

        Raises:
            MeasurementError: the function failed there; `kind` says how.
            InvalidRequest: an argument that cannot be sent.
        """
        trial = Trial(
            candidate_id=uuid.uuid4().hex,
            artifact_digest=artifact.digest,
            function=function or artifact.function,
            args=arrays.sendable(args),
            evaluator=evaluator or TIMING,
            timeout_sec=timeout_sec,
            module_kind=artifact.module_kind,
            operator_runs=operator_runs,
            allow_poison=allow_poison,
        )
        await self.ensure([artifact])
        found = [measurement async for measurement in self.measure([trial])]
        if not found:
            raise DeviceUnreachable(f"{self.name} gave no result; try again")
        if found[0].error is not None:
            raise failure(found[0].error, found[0].error_message, found[0].signal, self.name)
        return found[0]

    async def call(
        self,
        artifact: Artifact,
        args: Sequence[object],
        *,
        function: str | None = None,
        timeout_sec: float = 60.0,
        is_apart: bool = False,
        allow_poison: bool = False,
    ) -> list[Array]:
        """Run a function once and return its outputs: the arguments marked as outputs, or all arrays if none is marked.

        Args:
            args: arrays, TensorSpecs, (shape, dtype) pairs or numbers, as the function takes them.
            is_apart: run it in a fresh worker, which takes a few milliseconds more.
            allow_poison: see `time`.

        Raises:
            MeasurementError: the function failed there; `kind` says how.
            InvalidRequest: an argument that cannot be sent.
        """
        call = Call(
            is_apart=is_apart,
            allow_poison=allow_poison,
            artifact_digest=artifact.digest,
            function=function or artifact.function,
            args=arrays.sendable(args),
            timeout_sec=timeout_sec,
            module_kind=artifact.module_kind,
        )
        await self.ensure([artifact])
        try:
            return list(map(arrays.array_of, await self._session.call(call)))
        except MeasurementError as error:
            if error.kind is ErrorKind.ARTIFACT_MISSING:
                self._put_digests.clear()
            raise

    def tunnel(self, contents: AsyncIterable[bytes]) -> AsyncGenerator[bytes, None]:
        """Carry one session of TVM's RPC protocol, without its greeting, to a fresh worker of the device.

        Args:
            contents: bytes of TVM's client, in pieces of at most 128 KiB. Their end ends the session.

        Yields:
            The worker's bytes; first nothing, once it is ready.

        Raises:
            InvalidRequest: the device serves no such sessions.
            DeviceError: the worker crashed, hung or exceeded a limit.
            LeaseExpired, LeaseRevoked: the lease ended.
        """
        return self._session.tunnel(contents)

    async def prove(
        self, artifact: Artifact, args: Sequence[ProofArgument], claimed_sec: float, *, answers: int = 2
    ) -> Proof:
        """Prove the time of a function by the agent's clock: see `fleet.domain.proving`.

        Compare the returned outputs with a reference: the agent only guarantees that they belong to the timed calls.

        Args:
            claimed_sec: measured time of one call [s].
            answers: number of calls that return their outputs.

        Raises:
            InvalidRequest: the arguments do not fit one message, or the claim is not a valid time.
        """
        order = ProofOrder(
            artifact_digest=artifact.digest,
            function=artifact.function,
            args=tuple(args),
            claimed_sec=claimed_sec,
            answers=answers,
        )
        arrays.check_size(sum(len(arg.bank) for arg in order.args))
        await self.ensure([artifact])
        return await self._session.prove(order)

    async def program(
        self,
        bitstream: Path | str,
        *,
        registers: Path | str | None = None,
        partial: bool = False,
        force: bool = False,
        timeout_sec: float = 30.0,
    ) -> bool:
        """Program the device's fabric; return once it runs the bitstream, which outlives the lease.

        Args:
            bitstream: a .bit or .bin file.
            registers: file that describes which parts of it artifacts can call.
            partial: it reconfigures only a part of the fabric.
            force: load it even when the fabric holds it.

        Returns:
            False when the fabric held it already.

        Raises:
            InvalidRequest: the file is not a bitstream, or is one for another chip.
            NotProgrammable: the device has no fabric.
            ProgrammingFailed: the fabric did not come up; the message names its current content.
        """
        try:
            artifact = Artifact(path=Path(bitstream), digest=await asyncio.to_thread(digest_of, Path(bitstream)))
            described = await asyncio.to_thread(Path(registers).read_text) if registers is not None else ""
        except (OSError, UnicodeDecodeError) as error:
            named = getattr(error, "filename", None) or registers or bitstream
            raise InvalidRequest(f"cannot read {named}: {getattr(error, 'strerror', None) or error}") from error
        if await self._session.find_missing([artifact.digest]):
            await self._session.put(upload.bitstream_messages(artifact, self._deflater()))
        return await self._session.program(
            artifact.digest, described, partial=partial, force=force, timeout_sec=timeout_sec
        )

    def load(self, artifact: Artifact | Path | str) -> RemoteModule:
        """Return a built artifact, or a shared library by its path, as a module that runs on this device.

        It is uploaded when it is first used.

        Raises:
            InvalidRequest: there is no such file.
            ArtifactRefused: it was built for another machine; the message names the right target.
        """
        path = artifact.path if isinstance(artifact, Artifact) else artifact
        try:
            if not isinstance(artifact, Artifact):
                artifact = Artifact.of_file(artifact)
            if not self.inventory.is_pretended:
                self._check_fits([artifact])
        except OSError as error:
            raise InvalidRequest(f"cannot read {path}: {error.strerror}") from error
        return RemoteModule(self, artifact)

    def logs(self) -> AsyncGenerator[str, None]:
        """Yield the worker's output on stdout and stderr, from now until the session ends."""
        return self._session.logs()

    async def release(self) -> None:
        """End the session and release the device. Idempotent; never fails, since the lease ends by itself anyway."""
        if self._session.is_closed:
            return
        self._session.is_closed = True
        if self._extending is not None:
            self._extending.cancel()
        try:
            if self._session.is_open and self.ended is None and self._give_back is not None:
                await self._session.end()
        finally:
            self._session.cancel()
            try:
                if self._give_back is not None:
                    await self._give_back()
            finally:
                await self._session.close()

    def _deflater(self) -> Deflater | None:
        """Return a compressor for uploads, or None when compressing is not worth it."""
        return Deflater() if upload.is_far(self.address) else None

    def _check_fits(self, artifacts: list[Artifact]) -> None:
        for artifact in artifacts:
            check_fit(artifact, upload.read_head(artifact, HEADER_BYTES), self.inventory, device_name=self.name)

    def _lease_renewed(self) -> None:
        is_busy = self._extending is not None and not self._extending.done()
        if self._session.is_open and not self._session.is_closed and not is_busy:
            self._extending = asyncio.create_task(self._extend(), name=f"fleet extend {self.name}")

    async def _extend(self) -> None:
        try:
            await self._session.open(timeout_sec=_EXTEND_TIMEOUT_SEC)
        except FleetError as error:  # calls in progress raise this error themselves
            logger.warning("could not extend the session", extra={"device": self.name, "cause": str(error)})


async def _missing_messages(
    wanted: Mapping[str, Artifact],
    guessed: Collection[Artifact],
    asking: asyncio.Task[set[str]],
    deflater: Deflater | None,
) -> AsyncGenerator[upload.Chunk, None]:
    """Yield the upload of the guessed artifacts, then that of the others that are missing."""
    async for message in upload.messages(guessed, deflater):
        yield message
    missing = await asking
    others = [artifact for artifact in wanted.values() if artifact.digest in missing and artifact not in guessed]
    async for message in upload.messages(others, deflater):
        yield message
