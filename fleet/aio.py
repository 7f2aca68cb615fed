"""The asynchronous door to a fleet: `async with fleet.aio.connect("host:9290") as client: ...`."""

from fleet.client.aio import Fleet, connect
from fleet.client.device import Device
from fleet.client.held import held_device
from fleet.client.local import LocalFleet
from fleet.client.remote import RemoteModule

__all__ = ["Device", "Fleet", "LocalFleet", "RemoteModule", "connect", "held_device"]
