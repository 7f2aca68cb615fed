"""New epochs exceed every epoch known to the journal, the clock and the agents.

Each start of the tracker makes a random nonce, which is in every token. An agent accepts tokens with the newest nonce,
and one with an older nonce for the lease that the tracker named as continuing. So a token from a lost journal is
refused even if its epoch was repeated.
"""

from __future__ import annotations

from fleet.tracker.core import events as ev
from fleet.tracker.core import leases
from fleet.tracker.core.records import DeviceEntry, LeaseEnd
from fleet.tracker.core.tables import Tables


def count_from(tables: Tables, device: DeviceEntry, highest_epoch: int, fenced_epoch: int) -> None:
    """Grant epochs above the highest that the device's agent has seen. A live lease that the agent refuses has
    ended.
    """
    lease = device.lease
    if highest_epoch > max(device.epoch, 0 if lease else tables.last_epoch):
        device.epoch = highest_epoch
        tables.changes.leases[device.name] = device
    if lease is not None and (lease.epoch < highest_epoch or lease.epoch <= fenced_epoch):
        message = f"the agent of {device.name} knows a newer lease than the tracker, whose journal was replaced"
        leases.end(tables, lease, LeaseEnd.REVOKED, message)


def attach_fence(tables: Tables, device: DeviceEntry) -> ev.Fence:
    """Return an agent's fence for a device at its attach: ended epochs, the live lease, and the expected nonce."""
    lease = device.lease
    return ev.Fence(
        device.agent_id,
        device.name,
        lease.epoch - 1 if lease else max(tables.last_epoch, device.epoch),
        nonce=nonce_of(tables, device),
        live_lease_name=lease.name if lease else "",
    )


def nonce_of(tables: Tables, device: DeviceEntry) -> str:
    """Return the current nonce of this device's tokens."""
    return device.nonce or tables.nonce


def reset(tables: Tables, event: ev.ResetEpochs) -> None:
    """Reset a device's epochs, after an agent has seen one that none can follow."""
    device = tables.devices.get(event.device_name)
    if device is None or not device.is_attached:
        return
    tables.version += 1
    if device.lease is not None:
        leases.end(tables, device.lease, LeaseEnd.REVOKED, f"the epochs of {device.name} were reset by an operator")
    device.epoch, device.nonce = tables.last_epoch, event.nonce
    tables.changes.leases[device.name] = device
    fence = ev.Fence(device.agent_id, device.name, device.epoch, nonce=event.nonce, is_reset=True)
    tables.effects.append(fence)
    leases.serve(tables, device)
