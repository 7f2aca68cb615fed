"""A leased device without asyncio: the calls of `fleet.aio`, each waiting for its answer.

Signatures and docstrings are written out, for editors and `help()`; a test compares them with those of the asynchronous
namesakes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fleet.artifacts.artifact import Artifact
from fleet.client import device as aio_device
from fleet.client import remote as aio_remote
from fleet.client.event_thread import EventThread
from fleet.domain.devices import Inventory
from fleet.domain.leases import Lease
from fleet.domain.measuring import Evaluator, Measurement, Trial
from fleet.domain.proving import Proof, ProofArgument
from fleet.errors import FleetError

if TYPE_CHECKING:
    from fleet.client.arrays import Array


class Device:
    """One device under one lease. Made by `Fleet.acquire`, used from any thread."""

    def __init__(self, device: aio_device.Device, thread: EventThread) -> None:
        self._inner = device
        self._thread = thread

    def __repr__(self) -> str:
        return repr(self._inner)

    @property
    def name(self) -> str:
        """ "devices/<id>"."""
        return self._inner.name

    @property
    def address(self) -> str:
        """ "host:port" of its agent."""
        return self._inner.address

    @property
    def inventory(self) -> Inventory:
        """What the hardware is."""
        return self._inner.inventory

    @property
    def lease(self) -> Lease:
        """The lease as the tracker last reported it."""
        return self._inner.lease

    @property
    def token(self) -> bytes:
        """The newest token, as it travels."""
        return self._inner.token

    @property
    def ended(self) -> FleetError | None:
        """Why the lease is over; None while it lives."""
        return self._inner.ended

    @property
    def is_busy(self) -> bool:
        """Whether a call of this process is under way."""
        return self._inner.is_busy

    def open(self) -> None:
        """Open the session now, so that the first measurement finds its worker warm. Optional.

        Raises:
            DeviceUnreachable: its agent does not answer.
        """
        self._thread.run(self._inner.open())

    def ensure(self, artifacts: Iterable[Artifact]) -> None:
        """Upload those artifacts that the agent does not have yet.

        Raises:
            ArtifactRefused: built for another machine, or changed since it was named.
            DiskFull: the agent has no room.
        """
        self._thread.run(self._inner.ensure(artifacts))

    def measure(self, trials: Iterable[Trial]) -> Generator[Measurement, None, None]:
        """Time candidates one after the other and yield the result of each, in order. Trials are sent ahead.

        Raises:
            LeaseExpired, LeaseRevoked: the lease ended; trials without a result did not run to their end.
            DeviceUnreachable: the agent is gone; the same holds for trials without a result.
        """
        # A source that is no list may take its time: it is read on a thread.
        source = trials if isinstance(trials, list | tuple) else _read_on_thread(trials)
        return self._thread.pull(self._inner.measure(source))

    def time(
        self,
        artifact: Artifact,
        args: Sequence[object],
        *,
        function: str | None = None,
        evaluator: Evaluator | None = None,
        timeout_sec: float = 60.0,
        operator_runs: int = 0,
    ) -> Measurement:
        """Time one function.

        Args:
            args: as for `call`.
            evaluator: how; None: five repeats of at least 50 ms, as `fleet time` does.
            operator_runs: of a model, time each operator in its place, too, over so many further runs.

        Raises:
            MeasurementError: the function failed there; `kind` says how.
            InvalidRequest: an argument that cannot be sent.
        """
        timing = self._inner.time(
            artifact,
            args,
            function=function,
            evaluator=evaluator,
            timeout_sec=timeout_sec,
            operator_runs=operator_runs,
        )
        return self._thread.run(timing)

    def call(
        self,
        artifact: Artifact,
        args: Sequence[object],
        *,
        function: str | None = None,
        timeout_sec: float = 60.0,
        is_apart: bool = False,
    ) -> list[Array]:
        """Run a function once and return its outputs: the arguments marked as outputs, or all arrays if none is marked.

        Args:
            args: arrays, TensorSpecs, (shape, dtype) pairs or numbers, as the function takes them.
            is_apart: run it in a fresh worker, which takes a few milliseconds more.

        Raises:
            MeasurementError: the function failed there; `kind` says how.
            InvalidRequest: an argument that cannot be sent.
        """
        calling = self._inner.call(artifact, args, function=function, timeout_sec=timeout_sec, is_apart=is_apart)
        return self._thread.run(calling)

    def prove(
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
        return self._thread.run(self._inner.prove(artifact, args, claimed_sec, answers=answers))

    def program(
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
            ProgrammingFailed: the fabric did not come up; the message says what it holds now.
        """
        programming = self._inner.program(
            bitstream, registers=registers, partial=partial, force=force, timeout_sec=timeout_sec
        )
        return self._thread.run(programming)

    def load(self, artifact: Artifact | Path | str) -> RemoteModule:
        """Return a built artifact, or a shared library by its path, as a module that runs on this device.

        It is uploaded when it is first used.

        Raises:
            InvalidRequest: there is no such file.
            ArtifactRefused: it was built for another machine; the message says what to build for instead.
        """
        return RemoteModule(self._inner.load(artifact), self._thread)

    def logs(self) -> Generator[str, None, None]:
        """Yield what the worker writes to stdout and stderr, from now until the session ends."""
        return self._thread.pull(self._inner.logs())

    def release(self) -> None:
        """End the session and give the device back. Idempotent; never fails, since the lease ends by itself anyway."""
        self._thread.run(self._inner.release())


class RemoteModule:
    """One artifact on one leased device. Uploaded when first used."""

    def __init__(self, module: aio_remote.RemoteModule, thread: EventThread) -> None:
        self._inner = module
        self._thread = thread

    def __repr__(self) -> str:
        return repr(self._inner)

    @property
    def artifact(self) -> Artifact:
        """What runs."""
        return self._inner.artifact

    def __call__(
        self, *args: object, function: str | None = None, timeout_sec: float = 60.0
    ) -> Array | tuple[Array, ...]:
        """Run once on these arrays and return the outputs: one array, or a tuple of several.

        Raises:
            InvalidRequest: an argument of the wrong count, shape or dtype.
            MeasurementError: it failed there; `kind` says how.
        """
        return self._thread.run(self._inner(*args, function=function, timeout_sec=timeout_sec))

    def time(
        self,
        /,
        function: str | None = None,
        args: Sequence[object] | None = None,
        *,
        timeout_sec: float = 60.0,
        **evaluator: object,
    ) -> Measurement:
        """Time a function on the device, as `fleet time` does: five repeats of at least 50 ms unless told otherwise.

        Args:
            function: its name; the artifact's own when None.
            args: arrays, TensorSpecs or (shape, dtype) pairs; when None, those that the artifact knows.
            evaluator: fields of `fleet.Evaluator`: number, repeat, min_repeat_ms, ...

        Raises:
            InvalidRequest: an argument of the wrong count, shape or dtype.
            MeasurementError: it failed there; `kind` says how.
        """
        return self._thread.run(self._inner.time(function, args, timeout_sec=timeout_sec, **evaluator))


async def _read_on_thread(source: Iterable[Trial]) -> AsyncIterator[Trial]:
    items = iter(source)
    while (item := await asyncio.to_thread(next, items, None)) is not None:
        yield item
