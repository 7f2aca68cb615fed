"""Delivers an artifact from its builder directly to the agent of the device that measures it, bypassing the optimizer.

The builder gets a ticket of the session, good for putting artifacts and for nothing else. If it cannot reach the agent,
the artifact travels to the optimizer, which uploads it. A builder that is gone, or has cleared
its artifacts, costs another build; the agent checks each content against its digest, from any sender.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from cross.pool.worker import Answer
from fleet.artifacts.artifact import Artifact
from fleet.base.machine import machine_fingerprint
from fleet.base.network import host_of, is_loopback
from fleet.building.cluster.builder import Builder, BuiltElsewhere, TaskOutcome, this_builder
from fleet.client.device import Device
from fleet.client.tickets import UploadTicket
from fleet.errors import ArtifactRefused, BuildError, FleetError, NotJoined
from fleet.identity.store import CredentialStore
from fleet.wire.tokens import TICKET_HEADER

logger = logging.getLogger(__name__)

_TIMEOUT_SEC = 60.0
_REACH_SEC = 2.0
_UNREACHED_SEC = 60.0
"""An agent that could not be reached is not tried again for this long."""

_unreached: dict[str, float] = {}
"""Times of failed connections, by an agent's address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """Request to a builder."""

    artifacts: tuple[BuiltElsewhere, ...]
    ticket: UploadTicket | None
    """None: send the contents back."""

    asker_fingerprint: str
    """Fingerprint of the requesting machine, on which the agent's address is valid."""

    timeout_sec: float
    """Time limit for rebuilding one of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """Result of a delivery."""

    is_put: bool
    """True if the agent has all of them."""

    contents: dict[str, bytes] = field(default_factory=dict)
    """Contents by digest, if the agent does not have all of them."""

    refused: str = ""
    """Why the agent, or a check against the device's facts, refused one."""


async def run_delivery(delivery: Delivery) -> TaskOutcome:
    """Execute a request on this machine; called by Dask on its loop."""
    builder = this_builder()
    try:
        answer = Answer(value=await _deliver(builder, delivery))
    except FleetError as error:
        answer = Answer(error=error)
    except RuntimeError as error:  # the pool is shut down together with its builder
        answer = Answer(error=BuildError(f"the builder {builder.address} was stopped: {error}"))
    return TaskOutcome(answer=answer, builder=builder.address, host_fingerprint=machine_fingerprint())


async def _deliver(builder: Builder, delivery: Delivery) -> Delivered:
    artifacts = await asyncio.gather(
        *(asyncio.to_thread(_find, builder, wanted, delivery.timeout_sec) for wanted in delivery.artifacts)
    )
    if delivery.ticket is not None and await _reaches(delivery.ticket.device.address, delivery.asker_fingerprint):
        try:
            async with asyncio.timeout(_TIMEOUT_SEC):
                await _put(delivery.ticket, artifacts)
        except ArtifactRefused as error:
            return Delivered(is_put=False, refused=str(error))
        except (FleetError, TimeoutError) as error:
            logger.info("not put directly", extra={"agent": delivery.ticket.device.address, "error": str(error)})
        else:
            return Delivered(is_put=True)
    contents = {artifact.digest: await asyncio.to_thread(artifact.path.read_bytes) for artifact in artifacts}
    return Delivered(is_put=False, contents=contents)


def _find(builder: Builder, wanted: BuiltElsewhere, timeout_sec: float) -> Artifact:
    found = builder.artifacts.get(wanted.digest)
    if found is not None:
        return found
    made = builder.build(wanted.task, timeout_sec).artifact
    if made.digest != wanted.digest:
        raise ArtifactRefused(f"{wanted.path.name} was lost with its builder, and came out different when built again")
    return made


async def _put(ticket: UploadTicket, artifacts: Sequence[Artifact]) -> None:
    proof = await asyncio.to_thread(CredentialStore().of_authority, ticket.authority_pem)
    if proof is None:
        raise NotJoined("this builder's account has not joined the agent's fleet; fleet login makes this shorter")
    device = Device(ticket, proof, header=TICKET_HEADER)
    try:
        await device.ensure(artifacts)
    finally:
        await device.release()


async def _reaches(address: str, asker_fingerprint: str) -> bool:
    if is_loopback(host_of(address)) and asker_fingerprint != machine_fingerprint():
        return False  # the address would be that of another agent, on this machine
    if time.monotonic() - _unreached.get(address, -_UNREACHED_SEC) < _UNREACHED_SEC:
        return False
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(_REACH_SEC):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except (OSError, TimeoutError):
        _unreached[address] = time.monotonic()
        return False
    writer.close()
    return True
