"""Asynchronous API of a fleet: `async with fleet.aio.connect("host:9290") as client: ...`."""

from fleet.client.aio import Fleet, connect
from fleet.client.device import Device
from fleet.client.held import held_device
from fleet.client.remote import RemoteModule
from fleet.local.fleet import LocalFleet

__all__ = ["Device", "Fleet", "LocalFleet", "RemoteModule", "connect", "held_device"]
