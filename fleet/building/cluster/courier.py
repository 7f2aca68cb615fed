"""The optimizer's side of deliveries: tells builders to send their artifacts to the agents that measure them."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import defaultdict
from collections.abc import Sequence

from fleet.artifacts.artifact import Artifact
from fleet.base.machine import machine_fingerprint
from fleet.building.cluster.builder import BuiltElsewhere
from fleet.building.cluster.delivery import Delivered, Delivery
from fleet.building.cluster.pool import DaskPool
from fleet.client.device import Device
from fleet.client.tickets import UploadTicket
from fleet.errors import ArtifactRefused, BuildError, FleetError

logger = logging.getLogger(__name__)


class ClusterCourier:
    """Fetches the artifacts of a cluster's builders."""

    def __init__(self, pool: DaskPool) -> None:
        self._pool = pool

    async def bring(self, artifacts: Sequence[Artifact], device: Device) -> None:
        """Have the builders upload artifacts to the device's agent, or else to this machine.

        Raises:
            ArtifactRefused: see `Device.ensure`; or one of them is nowhere any more.
            BuildersUnavailable: nobody is there to be asked.
        """
        by_builder: dict[str, list[BuiltElsewhere]] = defaultdict(list)
        for artifact in artifacts:
            if isinstance(artifact, BuiltElsewhere) and device.lacks(artifact) and not artifact.path.exists():
                by_builder[artifact.builder].append(artifact)
        if by_builder:
            ticket = await _ticket(device)
            await asyncio.gather(*(self._ask(builder, some, device, ticket) for builder, some in by_builder.items()))

    async def _ask(
        self, builder: str, artifacts: list[BuiltElsewhere], device: Device, ticket: UploadTicket | None
    ) -> None:
        delivery = Delivery(
            artifacts=tuple(artifacts),
            ticket=ticket,
            asker_fingerprint=machine_fingerprint(),
            timeout_sec=self._pool.timeout_sec,
        )
        try:
            delivered = await asyncio.wrap_future(self._pool.submit_delivery(builder, delivery))
        except BuildError as error:
            raise ArtifactRefused(f"lost with its builder: {error}") from error
        if delivered.refused:
            raise ArtifactRefused(delivered.refused)
        if delivered.is_put:
            device.note_put(artifact.digest for artifact in artifacts)
        else:
            await asyncio.to_thread(_write, artifacts, delivered)
        logger.debug(
            "artifacts brought",
            extra={"builder": builder, "device": device.name, "count": len(artifacts), "is_put": delivered.is_put},
        )


async def _ticket(device: Device) -> UploadTicket | None:
    """Return an upload ticket of the device's session; None if its agent is too old to issue one."""
    try:
        return await device.make_upload_ticket()
    except FleetError as error:
        if type(error) is not FleetError:
            raise
        logger.info("no upload ticket", extra={"device": device.name, "error": str(error)})
        return None


def _write(artifacts: Sequence[BuiltElsewhere], delivered: Delivered) -> None:
    for artifact in artifacts:
        fresh = artifact.path.with_name(f".{uuid.uuid4().hex}")
        fresh.write_bytes(delivered.contents[artifact.digest])
        fresh.replace(artifact.path)
