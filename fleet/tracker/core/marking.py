"""Changes of devices' health marks, and the leases that they end. Pure.

The batch lease of a device that closes gives way. Other leases end by themselves, or at the moment that the mark
states; their holders are notified at once.

Marks outlive their devices, so that a device that comes back is still marked.
"""

from __future__ import annotations

from collections.abc import Iterable

from fleet.domain.health import GOOD, HealthMark, HealthState
from fleet.domain.reasons import MAX_REASON_CHARS
from fleet.tracker.core import events as ev
from fleet.tracker.core import leases, yielding
from fleet.tracker.core.records import DeviceEntry, HealthEntry
from fleet.tracker.core.tables import Tables


def mark(tables: Tables, event: ev.MarkHealth) -> None:
    """Set the mark of devices, known or not."""
    for name in event.device_names:
        _store(tables, name, event.mark)
        tables.effects.append(ev.HealthMarked(name, event.mark))
        if (device := tables.devices.get(name)) is not None:
            _apply(tables, device, event.mark)
            if event.mark.by and event.mark.state.is_open:
                device.fault_count = 0  # a person looked at it
            tables.changes.devices[name] = device
            tables.changes.health[name] = tables.health_of(name)
            leases.serve(tables, device)


def restore(tables: Tables, health: Iterable[tuple[str, HealthEntry]]) -> None:
    """Set the marks and counts of faults of the journal.

    Batch leases on marked devices get a new grace period: the demand is not kept.
    """
    for name, found in health:
        device = tables.devices.get(name)
        if found.mark != GOOD:
            tables.marks[name] = found.mark
        if device is not None:
            device.fault_count = found.fault_count
            device.is_used = found.is_used if found.fault_count else device.lease is not None
            _apply(tables, device, found.mark, extra_sec=tables.limits.grace_sec)
    tables.effects.clear()  # no client is connected; each is notified when it connects


def note_condition(tables: Tables, device: DeviceEntry, is_healthy: bool, reason: str) -> None:
    """Store the state that an agent reported, and quarantine a device that faults in several leases in a row.

    A fault without a lease, such as an unplugged cable, does not count.
    """
    is_fault = device.is_healthy and not is_healthy and device.is_used
    device.is_healthy, device.reason = is_healthy, reason
    if not is_fault:
        return
    device.is_used, device.fault_count = False, device.fault_count + 1
    tables.changes.health[device.name] = tables.health_of(device.name)
    if device.fault_count >= tables.limits.faults_in_a_row and device.mark.state.is_open:
        why = f"{device.fault_count} leases in a row ended in a fault: {reason}"[:MAX_REASON_CHARS]
        quarantine = HealthMark(state=HealthState.QUARANTINED, at_sec=tables.now_sec, reason=why)
        mark(tables, ev.MarkHealth((device.name,), quarantine))


def admit(tables: Tables, device: DeviceEntry) -> None:
    """Give a device that was attached the mark of its name."""
    _apply(tables, device, tables.marks.get(device.name, GOOD))


def _store(tables: Tables, name: str, new: HealthMark) -> None:
    """Keep a mark, and forget the oldest of a device that is gone if there are too many."""
    tables.version += 1
    tables.marks.pop(name, None)
    tables.marks[name] = new
    tables.changes.health[name] = tables.health_of(name)
    if len(tables.marks) > tables.limits.max_devices:
        oldest = next((each for each in tables.marks if each not in tables.devices), None)
        if oldest is not None:
            del tables.marks[oldest]
            tables.changes.health[oldest] = None


def _apply(tables: Tables, device: DeviceEntry, new: HealthMark, *, extra_sec: float = 0.0) -> None:
    """Follow a mark with the indexes and the lease of its device."""
    device.mark = new
    tables.bookings.visit_next(device.name)
    tables.matching.set_suspect(device.name, is_suspect=new.state is HealthState.SUSPECT)
    if new.state.is_open:
        yielding.stop_clearing(tables, device)
    else:
        yielding.clear(tables, device, extra_sec)
