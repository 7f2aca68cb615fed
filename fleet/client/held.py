"""A device leased by the parent process: `fleet acquire SELECTOR -- COMMAND`.

The holder renews the lease and rewrites the token's file at each renewal; this side reads it and gives nothing back.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from pathlib import Path

from fleet.client.connection import TrackerConnection
from fleet.client.device import Device
from fleet.domain.devices import DeviceStatus
from fleet.domain.leases import Lease, YieldWanted
from fleet.errors import ConfigError, FleetError, LeaseExpired
from fleet.wire.json_shape import inventory_from_json, inventory_json
from fleet.wire.tokens import read_claims

TOKEN_FILE = "FLEET_TOKEN_FILE"  # noqa: S105 - the name of a variable
LEASE = "FLEET_LEASE"
DEVICE = "FLEET_DEVICE"
DEVICE_ADDRESS = "FLEET_DEVICE_ADDRESS"
DEVICE_KEY = "FLEET_DEVICE_KEY"
DEVICE_RELAY = "FLEET_DEVICE_RELAY"
INVENTORY = "FLEET_DEVICE_INVENTORY"

_POLL_SEC = 0.5


def environment(device: Device, tracker_address: str, token_path: Path, member: int = 1) -> dict[str, str]:
    """Return the variables from which `held_device` finds a device.

    Args:
        member: number of the device in a set.
    """
    of_device = {
        LEASE: device.lease.name,
        DEVICE: device.name,
        DEVICE_ADDRESS: device.address,
        DEVICE_KEY: device.agent_key_id,
        DEVICE_RELAY: device.relay_address,
        INVENTORY: inventory_json(device.inventory),
        TOKEN_FILE: str(token_path),
    }
    return {_variable(name, member): value for name, value in of_device.items()} | {"FLEET_TRACKER": tracker_address}


def _variable(name: str, member: int) -> str:
    """Return the name of a variable of the first device, or of a later one in a set: FLEET_DEVICE_2."""
    return name if member == 1 else f"{name}_{member}"


@contextlib.asynccontextmanager
async def held_device(member: int = 1) -> AsyncGenerator[Device, None]:
    """Use the device leased in the environment, without acquiring another.

    Args:
        member: number of the device in a set: 2 is the one of the first --and.

    Raises:
        ConfigError: this process was not started by `fleet acquire`, or with fewer devices.
    """
    borrowed = BorrowedLease.from_environment(member)
    connection = TrackerConnection(os.environ.get("FLEET_TRACKER", ""))
    await connection.channel()
    device = Device(borrowed, connection.proof)
    following = asyncio.create_task(borrowed.follow(), name="fleet follow token")
    try:
        yield device
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await device.release()
        await connection.close()


class BorrowedLease:
    """A lease known from its token's file."""

    def __init__(self, device: DeviceStatus, lease_name: str, token_path: Path) -> None:
        self.device = device
        self.ended: FleetError | None = None
        self.lease = Lease(name=lease_name, device_name=device.name, epoch=0)
        self.token = b""
        self._token_path = token_path
        self._on_end: list[Callable[[], None]] = []
        self._on_renew: list[Callable[[], None]] = []
        self._read()

    @classmethod
    def from_environment(cls, member: int = 1) -> BorrowedLease:
        """Read the variables that `environment` sets."""
        names = (LEASE, DEVICE, DEVICE_ADDRESS, TOKEN_FILE)
        values = {name: os.environ.get(_variable(name, member), "") for name in names}
        missing = [_variable(name, member) for name, value in values.items() if not value]
        if missing:
            raise ConfigError(
                f"no lease in the environment ({', '.join(missing)} not set); run this under: "
                "fleet acquire SELECTOR -- COMMAND"
            )
        inventory = inventory_from_json(os.environ.get(_variable(INVENTORY, member)) or "{}")
        device = DeviceStatus(
            name=values[DEVICE],
            address=values[DEVICE_ADDRESS],
            inventory=inventory,
            agent_key_id=os.environ.get(_variable(DEVICE_KEY, member), ""),
            relay_address=os.environ.get(_variable(DEVICE_RELAY, member), ""),
        )
        borrowed = cls(device, values[LEASE], Path(values[TOKEN_FILE]))
        if borrowed.ended is not None:
            raise borrowed.ended
        return borrowed

    @property
    def yield_wanted(self) -> YieldWanted | None:
        """Always None: the process that holds the lease decides."""
        return None

    @property
    def outbid(self) -> float:
        """Always 0: the tracker sends bids to the process that holds the lease."""
        return 0.0

    def watch_yield(self, on_yield: Callable[[], None]) -> None:
        """Do nothing: the process that holds the lease decides."""

    def watch(self, *, on_end: Callable[[], None], on_renew: Callable[[], None]) -> None:
        """Register callbacks, called when the token's file is removed and when it changes."""
        self._on_end.append(on_end)
        self._on_renew.append(on_renew)

    async def follow(self) -> None:
        """Watch the token's file until the lease ends."""
        while self.ended is None:
            await asyncio.sleep(_POLL_SEC)
            if self._read():
                for callback in self._on_renew:
                    callback()
        for callback in self._on_end:
            callback()

    def _read(self) -> bool:
        """Read the file and tell whether it holds a newer token."""
        try:
            token = self._token_path.read_bytes()
        except OSError:
            self.ended = LeaseExpired(
                f"{self.lease.name} on {self.device.name} is over: its holder took the token away"
            )
            return False
        is_newer = token != self.token
        self.token = token
        claims = read_claims(token)
        self.lease = replace(self.lease, epoch=claims.epoch, holder=claims.holder)
        return is_newer
