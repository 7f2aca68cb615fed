"""Advertises an agent on the local network, for `fleet discover`."""

from __future__ import annotations

import asyncio

from device_agents.serving.membership import Membership
from fleet.identity.certificates import own_key_id, pin_of
from fleet.wire.discovery import Advertisement, Facts, ServiceKind, fleet_id

_LOOK_SEC = 1.0
"""Interval of checks whether the agent has joined a fleet."""


async def advertise(membership: Membership, host: str, port: int) -> None:
    """Advertise an agent until cancelled, with its present membership."""
    advertisement = Advertisement(ServiceKind.AGENT, host, port, _facts(membership))
    advertisement.start()
    try:
        while True:
            await asyncio.sleep(_LOOK_SEC)
            await advertisement.update(_facts(membership))
    finally:
        await advertisement.close()


def _facts(membership: Membership) -> Facts:
    own = membership.own
    if own is None:
        return Facts(is_asking=bool(membership.join_code))
    return Facts(fleet=fleet_id(pin_of(own.authority_pem)), key_id=own_key_id(own.key_pem))
