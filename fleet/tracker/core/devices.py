"""Attachment, reports and removal of devices.

An agent may serve a thousand. They come and go a portion at a time, so that nobody has to wait for all of them. Each
portion is complete, also in the journal: the epochs that the agent has seen count before a device is granted, and a
stream that ends between two portions takes all of its devices offline.
"""

from __future__ import annotations

from functools import partial
from itertools import islice

from fleet.tracker.core import epochs, leases, marking
from fleet.tracker.core import events as ev
from fleet.tracker.core.records import DeviceEntry, with_bitstream
from fleet.tracker.core.tables import Tables

_PORTION = 32
"""Number of devices removed or taken offline at once."""


def attach(tables: Tables, event: ev.AgentAttached) -> None:
    """Register an agent's devices, unless another agent has one of that name."""
    if not event.is_first and tables.streams.get(event.agent_id) != event.stream:
        return
    names = dict.fromkeys((*(offered.name for offered in event.devices), *event.later_names))
    for name in names:
        known = tables.devices.get(name)
        if known and known.is_attached and known.agent_id != event.agent_id and known.agent_id in tables.streams:
            message = (
                f"{name} is attached by another agent at {known.address}; give one of the two another 'name' in "
                f"agent.yaml, or stop the one that is not wanted"
            )
            tables.effects.append(ev.AttachRefused(event.agent_id, name, message))
            return
    if event.is_first:
        tables.streams[event.agent_id] = event.stream
        for key in ("detach", "drop"):
            tables.timers.cancel((key, event.agent_id))
        former = tables.devices_by_agent.setdefault(event.agent_id, {})
        _drop(tables, event.agent_id, [name for name in former if name not in names])
    tables.version += 1
    attached = [_admit(tables, event, offered) for offered in event.devices]
    tables.effects.append(
        ev.Attached(event.agent_id, tuple(epochs.attach_fence(tables, device) for device in attached))
    )
    for device in attached:
        leases.serve(tables, device)


def _drop(tables: Tables, agent_id: str, names: list[str]) -> None:
    """Remove devices that their attached agent no longer offers, in portions."""
    tables.version += 1
    served = tables.devices_by_agent.get(agent_id, {})
    for name in names[:_PORTION]:
        if name in served:
            del served[name]
            _give_up(tables, tables.devices[name])
    if rest := names[_PORTION:]:
        tables.timers.set(("drop", agent_id), tables.now_sec, partial(_drop, tables, agent_id, rest))


def detach(tables: Tables, event: ev.AgentDetached) -> None:
    """Take an agent's devices offline. Their leases live on: the agent may come back."""
    if tables.streams.get(event.agent_id) == event.stream:
        del tables.streams[event.agent_id]
        _leave(tables, event.agent_id)


def _leave(tables: Tables, agent_id: str) -> None:
    """Set the devices of a disconnected agent offline, in portions."""
    tables.version += 1
    names = tables.devices_by_agent[agent_id]
    for name in list(islice(names, _PORTION)):
        del names[name]
        _take_offline(tables, tables.devices[name])
    if names:
        tables.timers.set(("detach", agent_id), tables.now_sec, partial(_leave, tables, agent_id))
    else:
        del tables.devices_by_agent[agent_id]


def report(tables: Tables, event: ev.DeviceReported) -> None:
    """Store a device's state, and the content of its fabric."""
    if event.device_name not in tables.devices_by_agent.get(event.agent_id, ()):
        return
    device = tables.devices[event.device_name]
    lease = device.lease
    epochs.count_from(tables, device, event.highest_epoch, event.fenced_epoch)
    is_over = device.lease is not lease
    is_programmed = device.bitstream_digest != event.bitstream_digest
    if not (is_over or is_programmed) and (device.is_healthy, device.reason) == (event.is_healthy, event.reason):
        return
    tables.version += 1
    if is_programmed:
        # Selectors match other labels now; the device is not free until it is served.
        device.labels = with_bitstream(device.labels, event.bitstream_digest)
        tables.matching.add_device(device.name, device.labels)
    marking.note_condition(tables, device, event.is_healthy, event.reason)
    tables.changes.devices[device.name] = device
    leases.serve(tables, device)


def forget_if_long_gone(tables: Tables, name: str) -> None:
    """Forget a device if its agent has been away too long, but not while it is leased."""
    device = tables.devices.get(name)
    if device is None or device.detached_at_sec is None:
        return
    if device.detached_at_sec + tables.limits.forget_device_sec > tables.now_sec:
        return
    if device.lease is not None:
        again_sec = tables.now_sec + tables.limits.forget_device_sec
        tables.timers.set(("device", name), again_sec, partial(forget_if_long_gone, tables, name))
        return
    _forget(tables, name)


def _admit(tables: Tables, event: ev.AgentAttached, offered: ev.OfferedDevice) -> DeviceEntry:
    device = tables.devices.get(offered.name)
    labels = dict(offered.labels)
    if device is None:
        device = DeviceEntry(
            name=offered.name,
            kind=offered.kind,
            labels=labels,
            description=b"",
            address=event.address,
            agent_id=event.agent_id,
        )
        tables.devices[device.name] = device
        tables.changes.leases[device.name] = device
    tables.devices_by_agent.get(device.agent_id, {}).pop(device.name, None)
    tables.devices_by_agent[event.agent_id][device.name] = None
    tables.inventory_bytes += len(offered.description) - len(device.description)
    device.kind, device.labels, device.description = offered.kind, labels, offered.description
    device.address, device.agent_id, device.agent_key_id = event.address, event.agent_id, event.key_id
    device.relay_address = event.relay_address
    device.is_attached, device.attached_at_sec, device.detached_at_sec = True, tables.now_sec, None
    tables.timers.cancel(("device", device.name))
    tables.matching.add_device(device.name, labels)
    marking.admit(tables, device)
    marking.note_condition(tables, device, offered.is_healthy, offered.reason)
    tables.changes.devices[device.name] = device
    epochs.count_from(tables, device, offered.highest_epoch, offered.fenced_epoch)
    return device


def _give_up(tables: Tables, device: DeviceEntry) -> None:
    """Forget a device that will not return, but not while it is leased."""
    if device.lease is None:
        _forget(tables, device.name)
    else:
        _take_offline(tables, device)


def _take_offline(tables: Tables, device: DeviceEntry) -> None:
    device.is_attached, device.detached_at_sec = False, tables.now_sec
    tables.matching.set_busy(device.name)
    tables.changes.devices[device.name] = device
    due_sec = tables.now_sec + tables.limits.forget_device_sec
    tables.timers.set(("device", device.name), due_sec, partial(forget_if_long_gone, tables, device.name))


def _forget(tables: Tables, name: str) -> None:
    tables.version += 1
    tables.matching.remove_device(name)
    tables.matching.set_suspect(name, is_suspect=False)
    tables.timers.cancel(("device", name))
    device = tables.devices.pop(name)
    tables.inventory_bytes -= len(device.description)
    if device.fault_count:
        tables.changes.health[name] = tables.health_of(name)
    tables.changes.devices[name] = None
    tables.changes.leases[name] = None
