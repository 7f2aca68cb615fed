"""Devices come and go with their agents, and say how they are.

An agent may serve a thousand. They come and go a portion at a time, so that nobody has to wait for all of them; each
portion stands for itself, in the journal, too: the epochs that its agent has seen are counted before a device of it is
granted, and a stream that ends between two takes all of its devices offline.
"""

from __future__ import annotations

from functools import partial
from itertools import islice

from fleet.tracker.core import epochs, leases
from fleet.tracker.core import events as ev
from fleet.tracker.core.book import Book
from fleet.tracker.core.entries import DeviceEntry, with_bitstream

_PORTION = 32
"""So many devices go at once."""


def attach(book: Book, event: ev.AgentAttached) -> None:
    """Take an agent's devices in, unless another agent has one of that name."""
    if not event.is_first and book.streams.get(event.agent_id) != event.stream:
        return
    names = dict.fromkeys((*(offered.name for offered in event.devices), *event.later_names))
    for name in names:
        known = book.devices.get(name)
        if known and known.is_attached and known.agent_id != event.agent_id and known.agent_id in book.streams:
            message = (
                f"{name} is attached by another agent at {known.address}; give one of the two another 'name' in "
                f"agent.yaml, or stop the one that is not wanted"
            )
            book.effects.append(ev.AttachRefused(event.agent_id, name, message))
            return
    if event.is_first:
        book.streams[event.agent_id] = event.stream
        for key in ("detach", "drop"):
            book.timers.cancel((key, event.agent_id))
        former = book.devices_by_agent.setdefault(event.agent_id, {})
        _drop(book, event.agent_id, [name for name in former if name not in names])
    book.version += 1
    attached = [_admit(book, event, offered) for offered in event.devices]
    book.effects.append(ev.Attached(event.agent_id, tuple(epochs.attach_fence(book, device) for device in attached)))
    for device in attached:
        leases.serve(book, device)


def _drop(book: Book, agent_id: str, names: list[str]) -> None:
    """Drop devices that their agent, which is here, no longer offers, a portion at a time."""
    book.version += 1
    served = book.devices_by_agent.get(agent_id, {})
    for name in names[:_PORTION]:
        if name in served:
            del served[name]
            _give_up(book, book.devices[name])
    if rest := names[_PORTION:]:
        book.timers.set(("drop", agent_id), book.now_sec, partial(_drop, book, agent_id, rest))


def detach(book: Book, event: ev.AgentDetached) -> None:
    """Take an agent's devices offline. Their leases live on: the agent may come back."""
    if book.streams.get(event.agent_id) == event.stream:
        del book.streams[event.agent_id]
        _leave(book, event.agent_id)


def _leave(book: Book, agent_id: str) -> None:
    """Take devices of an agent that is gone offline, a portion at a time."""
    book.version += 1
    names = book.devices_by_agent[agent_id]
    for name in list(islice(names, _PORTION)):
        del names[name]
        _take_offline(book, book.devices[name])
    if names:
        book.timers.set(("detach", agent_id), book.now_sec, partial(_leave, book, agent_id))
    else:
        del book.devices_by_agent[agent_id]


def report(book: Book, event: ev.DeviceReported) -> None:
    """Note how a device is, and what its fabric holds."""
    if event.device_name not in book.devices_by_agent.get(event.agent_id, ()):
        return
    device = book.devices[event.device_name]
    lease = device.lease
    epochs.count_from(book, device, event.highest_epoch, event.fenced_epoch)
    is_over = device.lease is not lease
    is_programmed = device.bitstream_digest != event.bitstream_digest
    if not (is_over or is_programmed) and (device.is_healthy, device.reason) == (event.is_healthy, event.reason):
        return
    book.version += 1
    if is_programmed:
        # Selectors see other labels now; the device is not free until it is served.
        device.labels = with_bitstream(device.labels, event.bitstream_digest)
        book.queue.add_device(device.name, device.labels)
    device.is_healthy, device.reason = event.is_healthy, event.reason
    book.changes.devices[device.name] = device
    leases.serve(book, device)


def forget_if_long_gone(book: Book, name: str) -> None:
    """Forget a device whose agent has been away too long, but not while it is leased."""
    device = book.devices.get(name)
    if device is None or device.detached_at_sec is None:
        return
    if device.detached_at_sec + book.limits.forget_device_sec > book.now_sec:
        return
    if device.lease is not None:
        again_sec = book.now_sec + book.limits.forget_device_sec
        book.timers.set(("device", name), again_sec, partial(forget_if_long_gone, book, name))
        return
    _forget(book, name)


def _admit(book: Book, event: ev.AgentAttached, offered: ev.OfferedDevice) -> DeviceEntry:
    device = book.devices.get(offered.name)
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
        book.devices[device.name] = device
        book.changes.leases[device.name] = device
    book.devices_by_agent.get(device.agent_id, {}).pop(device.name, None)
    book.devices_by_agent[event.agent_id][device.name] = None
    book.inventory_bytes += len(offered.description) - len(device.description)
    device.kind, device.labels, device.description = offered.kind, labels, offered.description
    device.address, device.agent_id, device.agent_key_id = event.address, event.agent_id, event.key_id
    device.is_attached, device.attached_at_sec, device.detached_at_sec = True, book.now_sec, None
    book.timers.cancel(("device", device.name))
    device.is_healthy, device.reason = offered.is_healthy, offered.reason
    book.queue.add_device(device.name, labels)
    book.changes.devices[device.name] = device
    epochs.count_from(book, device, offered.highest_epoch, offered.fenced_epoch)
    return device


def _give_up(book: Book, device: DeviceEntry) -> None:
    """Forget a device that will not come back, but not while it is leased."""
    if device.lease is None:
        _forget(book, device.name)
    else:
        _take_offline(book, device)


def _take_offline(book: Book, device: DeviceEntry) -> None:
    device.is_attached, device.detached_at_sec = False, book.now_sec
    book.queue.set_busy(device.name)
    book.changes.devices[device.name] = device
    due_sec = book.now_sec + book.limits.forget_device_sec
    book.timers.set(("device", device.name), due_sec, partial(forget_if_long_gone, book, device.name))


def _forget(book: Book, name: str) -> None:
    book.version += 1
    book.queue.remove_device(name)
    book.timers.cancel(("device", name))
    book.inventory_bytes -= len(book.devices.pop(name).description)
    book.changes.devices[name] = None
    book.changes.leases[name] = None
