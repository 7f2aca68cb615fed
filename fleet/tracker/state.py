"""The tracker's state: `apply(event, now)` changes it and returns what follows. No I/O, no clock, no randomness.

The rules that hold after every event (`fleet.tracker.invariants` checks them):

- A device has at most one live lease, and its epoch is larger than that of every earlier lease, also over restarts.
- An ended lease never comes back: renewing it says how it ended.
- A request leaves the queue by grant, cancel, deadline or loss of its client; nothing else.
- No device is free while a request that it could serve waits, unless the journal cannot be written.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from fleet.errors import InvalidRequest
from fleet.tracker import events as ev
from fleet.tracker.admission import make_request, no_match_message, preferred_selector
from fleet.tracker.queue import Queue
from fleet.tracker.records import Changes, Client, Device, Durable, Lease, LeaseEnd, Limits, Request, with_bitstream
from fleet.tracker.timers import Timers


class TrackerState:
    """Devices, leases, requests and clients. `boot` must be larger than at every earlier start on the same journal."""

    def __init__(self, *, boot: int, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.devices: dict[str, Device] = {}
        self.leases: dict[str, Lease] = {}
        """Live leases by name."""
        self.clients: dict[str, Client] = {}
        self.queue = Queue()
        self.boot = boot
        self.last_epoch = boot << 32
        self.grant_count = 0
        self.version = 0
        """Grows with every change that a snapshot could show."""
        self.journal_trouble = ""
        """Why no grants are made, or empty."""
        self._devices_by_agent: dict[str, dict[str, None]] = {}
        self._ends: OrderedDict[str, tuple[LeaseEnd, str]] = OrderedDict()
        self._timers = Timers()
        self._arrivals = 0
        self._now = 0.0
        self._effects: list[ev.Effect] = []
        self._changes = Changes()
        self._appliers: dict[type, Callable[[Any], None]] = {
            ev.AgentAttached: self._attach,
            ev.AgentDetached: self._detach,
            ev.DeviceReported: self._report,
            ev.ClientConnected: self._connect,
            ev.ClientLost: self._lose,
            ev.Acquire: self._acquire,
            ev.Cancel: self._cancel,
            ev.Renew: self._renew,
            ev.Release: self._release,
            ev.Revoke: self._revoke,
            ev.Tick: lambda _: None,
            ev.JournalFailed: self._fail_journal,
            ev.JournalRecovered: self._recover_journal,
        }

    @classmethod
    def restore(cls, durable: Durable, now: float, limits: Limits | None = None) -> TrackerState:
        """Make the state that follows a start on this journal: no agent and no client is there yet."""
        state = cls(boot=durable.boot, limits=limits)
        state._now = now
        for device in durable.devices:
            state._restore_device(device)
        for request in sorted(durable.requests, key=lambda request: request.order):
            state._restore_request(request)
        return state

    def apply(self, event: ev.Event, now: float) -> list[ev.Effect]:
        """Change the state by one event and return what follows, in order."""
        self._now = max(self._now, now)
        self._run_timers()
        self._appliers[type(event)](event)
        effects, self._effects = self._effects, []
        if effects:
            self.version += 1
        return effects

    def take_changes(self) -> Changes:
        """Return what changed since the last call, for the journal."""
        changes, self._changes = self._changes, Changes()
        return changes

    def next_timer_sec(self) -> float | None:
        """When `apply(Tick())` has something to do at the latest."""
        return self._timers.next_sec()

    @property
    def now_sec(self) -> float:
        """The latest time that any event carried."""
        return self._now

    def durable(self) -> Durable:
        """Return what the journal should hold."""
        waiting = [request for client in self.clients.values() for request in client.requests.values()]
        parked = [request for client in self.clients.values() for request in client.parked.values()]
        return Durable(boot=self.boot, devices=list(self.devices.values()), requests=waiting + parked)

    # agents

    def _attach(self, event: ev.AgentAttached) -> None:
        for offered in event.devices:
            known = self.devices.get(offered.name)
            if known and known.is_attached and known.agent_id != event.agent_id:
                message = f"{offered.name} is attached by another agent at {known.address}; rename one of them"
                self._effects.append(ev.AttachRefused(event.agent_id, message))
                return
        self.version += 1
        names = dict.fromkeys(offered.name for offered in event.devices)
        for name in self._devices_by_agent.get(event.agent_id, {}):
            if name not in names:
                self._give_up(self.devices[name])
        self._devices_by_agent[event.agent_id] = names
        attached = [self._admit(event, offered) for offered in event.devices]
        epochs = {d.name: d.lease.epoch - 1 if d.lease else self.last_epoch for d in attached}
        self._effects.append(ev.Attached(event.agent_id, epochs))
        for device in attached:
            self._serve(device)

    def _admit(self, event: ev.AgentAttached, offered: ev.OfferedDevice) -> Device:
        device = self.devices.get(offered.name)
        labels = dict(offered.labels)
        if device is None:
            device = Device(
                name=offered.name,
                kind=offered.kind,
                labels=labels,
                description=offered.description,
                address=event.address,
                agent_id=event.agent_id,
            )
            self.devices[device.name] = device
            self._changes.leases[device.name] = device
        if device.lease and device.agent_id != event.agent_id:
            # Another agent process cannot have the worker of the old one's session.
            self._end(device.lease, LeaseEnd.REVOKED, f"the agent of {device.name} was started anew")
        device.kind, device.labels, device.description = offered.kind, labels, offered.description
        device.address, device.agent_id = event.address, event.agent_id
        device.is_attached, device.attached_at_sec, device.detached_at_sec = True, self._now, None
        device.is_healthy, device.reason = offered.is_healthy, offered.reason
        self.queue.add_device(device.name, labels)
        self._changes.devices[device.name] = device
        return device

    def _detach(self, event: ev.AgentDetached) -> None:
        self.version += 1
        for name in self._devices_by_agent.pop(event.agent_id, {}):
            self._take_offline(self.devices[name])

    def _take_offline(self, device: Device) -> None:
        device.is_attached, device.detached_at_sec = False, self._now
        self.queue.set_busy(device.name)
        self._changes.devices[device.name] = device
        self._timers.add(self._now + self.limits.forget_device_sec, self._forget_due, device.name)

    def _give_up(self, device: Device) -> None:
        """Its agent is here and serves it no more, so that it will not come back: nobody waits a day for it."""
        if device.lease is None:
            self._forget(device.name)
        else:
            self._take_offline(device)

    def _report(self, event: ev.DeviceReported) -> None:
        if event.device_name not in self._devices_by_agent.get(event.agent_id, ()):
            return
        device = self.devices[event.device_name]
        is_programmed = device.bitstream_digest != event.bitstream_digest
        if not is_programmed and (device.is_healthy, device.reason) == (event.is_healthy, event.reason):
            return
        self.version += 1
        if is_programmed:
            self._relabel(device, with_bitstream(device.labels, event.bitstream_digest))
        device.is_healthy, device.reason = event.is_healthy, event.reason
        self._changes.devices[device.name] = device
        self._serve(device)

    def _relabel(self, device: Device, labels: dict[str, str]) -> None:
        """Let selectors see other labels; the device is not free until it is served."""
        device.labels = labels
        self.queue.add_device(device.name, labels)

    # clients

    def _connect(self, event: ev.ClientConnected) -> None:
        client = self.clients.setdefault(event.client_id, Client(client_id=event.client_id, holder=event.holder))
        if client.is_connected:
            self._park_requests(client)
        client.holder, client.is_connected = event.holder, True
        self._effects.append(ev.Welcomed(client.client_id, tuple(client.leases.values())))

    def _park_requests(self, client: Client) -> None:
        """A newer stream replaced the client's older one: what it still waits for is what it repeats soon."""
        self.queue.discard_many(client.requests.values())
        client.parked |= client.requests
        client.requests.clear()
        client.lost_until_sec = self._now + self.limits.grace_sec
        self._timers.add(client.lost_until_sec, self._grace_due, client.client_id)

    def _lose(self, event: ev.ClientLost) -> None:
        client = self.clients.get(event.client_id)
        if client is None or not client.is_connected:
            return
        self.version += 1
        client.is_connected = False
        self.queue.discard_many(client.requests.values())
        self._changes.requests |= dict.fromkeys(request.key for request in client.requests.values())
        client.requests.clear()
        for request in list(client.parked.values()):
            self._unpark(request)
        if not client.leases:
            del self.clients[client.client_id]
            return
        client.lost_until_sec = self._now + self.limits.grace_sec
        self._timers.add(client.lost_until_sec, self._grace_due, client.client_id)

    # requests

    def _acquire(self, event: ev.Acquire) -> None:
        client = self.clients.get(event.client_id)
        if client is None or not client.is_connected:
            return
        if waiting := client.requests.get(event.request_id):
            self._effects.append(ev.Queued(client.client_id, waiting))
            return
        if lease := client.leases.get(event.request_id):
            self._effects.append(ev.Granted(client.client_id, lease, is_repeat=True))
            return
        if parked := client.parked.get(event.request_id):
            self._unpark(parked)
            if parked.deadline_sec is not None and parked.deadline_sec <= self._now:
                self._refuse_late(client, parked)
                return
            self._prefer_again(parked, event)
            self._serve_or_wait(client, parked)
            return
        self._arrivals += 1
        try:
            request = make_request(event, client.holder, self._now, self._arrivals, self.limits)
        except InvalidRequest as error:
            self._refuse(client, event.request_id, "InvalidRequest", str(error))
            return
        if not self.queue.is_known(request.selector):
            self._refuse(client, request.request_id, "NoMatchingDevice", no_match_message(event.selector, self.devices))
            return
        self._serve_or_wait(client, request)

    def _prefer_again(self, parked: Request, event: ev.Acquire) -> None:
        with contextlib.suppress(InvalidRequest):  # it was well formed when the request was let in
            parked.preferred = preferred_selector(parked.selector, event.prefer)

    def _serve_or_wait(self, client: Client, request: Request) -> None:
        if self.journal_trouble:
            self._refuse(client, request.request_id, "DiskFull", self.journal_trouble)
            return
        name = self.queue.first_free(request.selector, request.preferred)
        if name is not None:
            self._grant(self.devices[name], request)
            return
        if len(self.queue) >= self.limits.max_waiting:
            message = f"{len(self.queue)} requests wait already; try again later"
            self._refuse(client, request.request_id, "QueueFull", message)
            return
        client.requests[request.request_id] = request
        self.queue.push(request)
        self._changes.requests[request.key] = request
        if request.deadline_sec is not None:
            self._timers.add(request.deadline_sec, self._deadline_due, request.key)
        self._effects.append(ev.Queued(client.client_id, request))

    def _cancel(self, event: ev.Cancel) -> None:
        client = self.clients.get(event.client_id)
        if client is None or not client.is_connected:
            return
        message = f"request {event.request_id!r} was cancelled"
        if request := client.requests.get(event.request_id):
            self._remove(request)
            self._refuse(client, event.request_id, "Cancelled", message)
        elif request := client.parked.get(event.request_id):
            self._unpark(request)
            self._refuse(client, event.request_id, "Cancelled", message)

    def _refuse(self, client: Client, request_id: str, error_class: str, message: str) -> None:
        self._effects.append(ev.Refused(client.client_id, request_id, error_class, message))

    def _refuse_late(self, client: Client, request: Request) -> None:
        waited_sec = self._now - request.asked_at_sec
        message = f"no device matching {request.selector!r} became free within {waited_sec:.3g} s"
        self._refuse(client, request.request_id, "WaitTimeout", message)

    def _remove(self, request: Request) -> None:
        self.clients[request.client_id].requests.pop(request.request_id, None)
        self.queue.discard(request)
        self._changes.requests[request.key] = None

    def _unpark(self, request: Request) -> None:
        del self.clients[request.client_id].parked[request.request_id]
        self._changes.requests[request.key] = None

    # leases

    def _serve(self, device: Device) -> None:
        """Give a device that may have become free to whoever is first in line for it."""
        if not device.can_serve:
            self.queue.set_busy(device.name)
            return
        request = None if self.journal_trouble else self.queue.next_for(device.name)
        if request is None:
            self.queue.set_free(device.name)
            return
        self._remove(request)
        self._grant(device, request)

    def _grant(self, device: Device, request: Request) -> None:
        self.queue.set_busy(device.name)
        self.last_epoch += 1
        self.grant_count += 1
        ends_at_sec = self._now + request.max_duration_sec
        lease = Lease(
            name=f"leases/{self.last_epoch >> 32}-{self.last_epoch & 0xFFFFFFFF}",
            device_name=device.name,
            epoch=self.last_epoch,
            client_id=request.client_id,
            request_id=request.request_id,
            holder=request.holder,
            purpose=request.purpose,
            ttl_sec=request.ttl_sec,
            granted_at_sec=self._now,
            expires_at_sec=min(self._now + request.ttl_sec, ends_at_sec),
            ends_at_sec=ends_at_sec,
        )
        device.epoch, device.lease = lease.epoch, lease
        self.leases[lease.name] = lease
        self.clients[lease.client_id].leases[lease.request_id] = lease
        self._changes.leases[device.name] = device
        self._timers.add(lease.expires_at_sec, self._expiry_due, lease.name)
        self._effects.append(ev.Granted(lease.client_id, lease))

    def _renew(self, event: ev.Renew) -> None:
        lease = self.leases.get(event.lease_name)
        if lease is None or lease.client_id != event.client_id:
            self._tell_end(event.client_id, event.lease_name)
            return
        lease.expires_at_sec = max(lease.expires_at_sec, min(self._now + lease.ttl_sec, lease.ends_at_sec))
        self._changes.leases[lease.device_name] = self.devices[lease.device_name]
        self._effects.append(ev.Renewed(event.client_id, lease))

    def _release(self, event: ev.Release) -> None:
        lease = self.leases.get(event.lease_name)
        if lease is None or lease.client_id != event.client_id:
            self._tell_end(event.client_id, event.lease_name)
            return
        self._end_and_serve(lease, LeaseEnd.RELEASED, "released by its holder")

    def _revoke(self, event: ev.Revoke) -> None:
        lease = self.leases.get(event.lease_name)
        if lease is None:
            return
        reason = event.reason or "no reason given"
        self._end_and_serve(lease, LeaseEnd.REVOKED, f"taken away by an operator: {reason}")
        self._effects.append(ev.Revoked(lease))

    def _tell_end(self, client_id: str, lease_name: str) -> None:
        unknown = (LeaseEnd.UNKNOWN, "the tracker does not know this lease (any more); acquire a new one")
        end, message = self._ends.get(lease_name, unknown)
        self._effects.append(ev.LeaseEnded(client_id, lease_name, end, message))

    def _end_and_serve(self, lease: Lease, end: LeaseEnd, message: str) -> None:
        self._end(lease, end, message)
        self._serve(self.devices[lease.device_name])

    def _end(self, lease: Lease, end: LeaseEnd, message: str, *, is_told: bool = True) -> None:
        device, client = self.devices[lease.device_name], self.clients[lease.client_id]
        device.lease = None
        del self.leases[lease.name]
        del client.leases[lease.request_id]
        self._changes.leases[device.name] = device
        self._ends[lease.name] = (end, message)
        if len(self._ends) > self.limits.remembered_ends:
            self._ends.popitem(last=False)
        if device.is_attached:
            self._effects.append(ev.Fence(device.agent_id, device.name, lease.epoch))
        if is_told:
            self._effects.append(ev.LeaseEnded(client.client_id, lease.name, end, message))
        if not (client.is_connected or client.leases or client.parked):
            del self.clients[client.client_id]

    # the journal's troubles

    def _fail_journal(self, event: ev.JournalFailed) -> None:
        self.journal_trouble = event.message
        for lease in event.grants:
            if self.leases.get(lease.name) is lease:
                self._end(lease, LeaseEnd.REVOKED, event.message, is_told=False)
                self._serve(self.devices[lease.device_name])
            self._effects.append(ev.Refused(lease.client_id, lease.request_id, "DiskFull", event.message))

    def _recover_journal(self, _: ev.JournalRecovered) -> None:
        self.journal_trouble = ""
        for name in self.queue.free_devices():
            self._serve(self.devices[name])

    # time

    def _run_timers(self) -> None:
        for due, key in self._timers.pop_due(self._now):
            due(key)

    def _expiry_due(self, name: str) -> None:
        lease = self.leases.get(name)
        if lease is None:
            return
        if lease.expires_at_sec > self._now:
            self._timers.add(lease.expires_at_sec, self._expiry_due, name)
            return
        at_most = lease.expires_at_sec >= lease.ends_at_sec
        why = "it reached its maximum length" if at_most else f"not renewed within its ttl of {lease.ttl_sec:g} s"
        self._end_and_serve(lease, LeaseEnd.EXPIRED, f"{lease.name} expired: {why}")

    def _deadline_due(self, key: tuple[str, str]) -> None:
        client = self.clients.get(key[0])
        request = client.requests.get(key[1]) if client else None
        if client is None or request is None or request.deadline_sec is None or request.deadline_sec > self._now:
            return
        self._remove(request)
        self._refuse_late(client, request)

    def _grace_due(self, client_id: str) -> None:
        client = self.clients.get(client_id)
        if client is None or client.lost_until_sec > self._now:
            return
        for request in list(client.parked.values()):
            self._unpark(request)
        if client.is_connected:
            return
        message = f"its holder was gone for more than {self.limits.grace_sec:g} s"
        for lease in list(client.leases.values()):
            self._end_and_serve(lease, LeaseEnd.CLIENT_LOST, message)
        self.clients.pop(client_id, None)

    def _forget_due(self, name: str) -> None:
        device = self.devices.get(name)
        if device is None or device.detached_at_sec is None:
            return
        due_sec = device.detached_at_sec + self.limits.forget_device_sec
        if due_sec > self._now:
            return
        if device.lease is not None:
            self._timers.add(self._now + self.limits.forget_device_sec, self._forget_due, name)
            return
        self._forget(name)

    def _forget(self, name: str) -> None:
        self.version += 1
        self.queue.remove_device(name)
        del self.devices[name]
        self._changes.devices[name] = None
        self._changes.leases[name] = None

    # restart

    def _restore_device(self, device: Device) -> None:
        self.devices[device.name] = device
        device.is_attached = False
        if device.detached_at_sec is None:
            device.detached_at_sec = self._now
        self.queue.add_device(device.name, device.labels)
        self._timers.add(device.detached_at_sec + self.limits.forget_device_sec, self._forget_due, device.name)
        self.last_epoch = max(self.last_epoch, device.epoch)
        lease = device.lease
        if lease is None:
            return
        self.leases[lease.name] = lease
        self._restore_client(lease.client_id, lease.holder).leases[lease.request_id] = lease
        self._timers.add(lease.expires_at_sec, self._expiry_due, lease.name)

    def _restore_request(self, request: Request) -> None:
        self._restore_client(request.client_id, request.holder).parked[request.request_id] = request
        self._arrivals = max(self._arrivals, request.order[1])

    def _restore_client(self, client_id: str, holder: str) -> Client:
        client = self.clients.get(client_id)
        if client is None:
            client = self.clients[client_id] = Client(client_id=client_id, holder=holder)
            client.lost_until_sec = self._now + self.limits.grace_sec
            self._timers.add(client.lost_until_sec, self._grace_due, client_id)
        return client
