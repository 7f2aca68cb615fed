"""The tracker's side of agents: fleet.v1.AgentService."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count

from fleet.base.text import sanitize
from fleet.errors import AlreadyExists, FleetError, InvalidRequest, LimitReached, NotAllowed
from fleet.identity.roles import Identity
from fleet.tracker.agent_messages import (
    checked_digest,
    checked_relay,
    condition_of,
    fence_to_proto,
    offered_device,
    reachable_address,
)
from fleet.tracker.contested import ContestedNames
from fleet.tracker.core import events as ev
from fleet.tracker.core.admission import MAX_SHOWN_CHARS
from fleet.tracker.engine import Engine
from fleet.tracker.members import Members
from fleet.tracker.messages import owned_id
from fleet.tracker.observers import Observer
from fleet.tracker.outbox import Outbox
from fleet.tracker.pace import Pace, portions
from fleet.tracker.poison_feed import PoisonFeed
from fleet.tracker.streams import first_message, when_over
from fleet.v1 import agent_service_pb2
from fleet.wire.peers import CallContext, caller_of
from fleet.wire.sanitize import sanitize_message
from fleet.wire.times import timestamp

logger = logging.getLogger(__name__)

_MAX_UNSENT = 50_000
"""Most fences waiting for one agent. At one more it loses its stream, and gets the newest when it attaches again."""
_MESSAGE_FENCES = 1_000
_PORTION = 8
"""Number of an agent's devices registered at once: each may go to a waiting request, with a token to sign."""
_PORTION_OF_REPORTS = 32
_HEARTBEAT_SEC = 5.0
_GATHER_SEC = 0.005
"""Pause after each message to an agent. Fences of a busy agent gather meanwhile; the first after a pause is sent at
once.
"""
_SILENCE_SEC = 30.0
"""An agent that is silent for this long (six heartbeats) counts as gone: its host may be frozen."""
_MAX_AGENT_ID_CHARS = 128
_MAX_TELEMETRY_BYTES = 16 * 1024

AgentOutbox = Outbox[agent_service_pb2.Fence | agent_service_pb2.AttachNotice]


class AgentServicer(Observer):
    """fleet.v1.AgentService."""

    def __init__(self, engine: Engine, members: Members, public_key: bytes, pace: Pace) -> None:
        self._engine = engine
        self._queries = engine.queries
        self._members = members
        self._public_key = public_key
        self._pace = pace
        self._streams = count(1)
        self._outboxes: dict[str, AgentOutbox] = {}
        self._contested = ContestedNames(engine.clock)
        self.term_proof = b""
        """Proof of this tracker's term."""
        self.other_tracker = ""
        """Address of the fleet's other tracker; empty without one."""
        self.hear_term: Callable[[bytes], None] = lambda proof: None
        """Called with each agent's proof of the largest term that it has seen."""

    def on_effect(self, effect: ev.Effect) -> None:
        """Send an effect to its agent, if connected."""
        if not isinstance(effect, ev.Attached | ev.Fence):
            return
        outbox = self._outboxes.get(effect.agent_id)
        if outbox is None:
            return
        for fence in (effect,) if isinstance(effect, ev.Fence) else effect.fences:
            outbox.put(fence_to_proto(fence))
        if isinstance(effect, ev.Fence) and effect.is_reset:
            outbox.close()  # reports in progress still carry the former epochs; the next hello does not

    async def attach(
        self,
        requests: AsyncIterator[agent_service_pb2.AttachRequest],
        context: CallContext,
    ) -> AsyncIterator[agent_service_pb2.AttachResponse]:
        messages = aiter(requests)
        first = await first_message(messages, self._queries.limits.hello_sec)
        if first is None or not first.hello.agent_id:
            raise InvalidRequest("the first message of Attach has no hello with an agent_id; send one")
        self.hear_term(first.hello.term_proof)
        self._check_counts(first)
        event = await self._attached(first, context.peer(), caller_of(context).key_id)
        self._check_limits(event)
        await self._check_keys(event, context.peer())
        self._check_limits(event)  # other agents may have attached meanwhile
        outbox: AgentOutbox = Outbox(_MAX_UNSENT)
        older = self._outboxes.get(event.agent_id)
        if older is not None:
            older.close()
        self._outboxes[event.agent_id] = outbox
        when_over(lambda: self._drop(event, outbox))
        reader: asyncio.Task[None] | None = None
        try:
            await self._admit(event, outbox, context.peer())
            await self._take_reports(event.agent_id, first.reports)
            feed = PoisonFeed(self._engine, event.agent_id, self._shown_name(caller_of(context), first.hello))
            feed.note(first.found_poison)
            reading = self._read(event.agent_id, messages, outbox, feed)
            reader = asyncio.create_task(reading, name=f"agent {event.agent_id[-8:]}")
            yield self._message(await outbox.take(_MESSAGE_FENCES, 0) or [], feed, public_key=self._public_key)
            while (items := await outbox.take(_MESSAGE_FENCES, _HEARTBEAT_SEC)) is not None:
                yield self._message(items, feed)
                await asyncio.sleep(_GATHER_SEC)
        finally:
            if reader:
                reader.cancel()
            self._drop(event, outbox)

    def _check_counts(self, message: agent_service_pb2.AttachRequest) -> None:
        """Refuse a message with very many parts before processing it.

        Raises:
            LimitReached: more devices than an agent may serve, or reports of more.
        """
        most, devices, reports = self._queries.limits.max_devices_per_agent, message.hello.devices, message.reports
        if len(devices) > most:
            raise LimitReached(f"an agent may serve {most} devices, not {len(devices)}; start a second one")
        if len(reports) > 2 * most:
            raise LimitReached(f"{len(reports)} reports in one message; an agent has at most {most} devices")

    def _check_limits(self, event: ev.AgentAttached) -> None:
        """Refuse an agent whose devices exceed the limits.

        Raises:
            LimitReached: it names the exceeded limit.
        """
        queries, limits = self._queries, self._queries.limits
        if len(self._outboxes) >= limits.max_agents and event.agent_id not in self._outboxes:
            raise LimitReached(f"{len(self._outboxes)} agents are attached, which is the limit")
        known = [device for offered in event.devices if (device := queries.device(offered.name)) is not None]
        others = queries.device_count - len(known)
        if others + len(event.devices) > limits.max_devices:
            raise LimitReached(f"the fleet has {others} devices; at most {limits.max_devices} are allowed")
        size_bytes = queries.inventory_bytes - sum(len(device.description) for device in known)
        size_bytes += sum(len(offered.description) for offered in event.devices)
        if size_bytes > limits.max_inventory_bytes:
            raise LimitReached(
                f"with these devices, the fleet's inventories have {size_bytes} bytes, and at most "
                f"{limits.max_inventory_bytes} are kept; shorten the inventories"
            )

    async def _check_keys(self, event: ev.AgentAttached, peer: str) -> None:
        """Refuse an agent that offers device names bound to another key; bind unbound names to its own key.

        Raises:
            NotAllowed: a name belongs to another key; the message names the owner and the remedy.
            LimitReached: the key would exceed its quota of device names.
        """
        if not event.key_id:
            return  # without TLS
        for device in event.devices:
            owner = self._members.keys.get(device.name, event.key_id)
            if owner == event.key_id:
                continue
            self._tell_of(event, device.name, peer)
            known = self._queries.device(device.name)
            where = f" at {known.address}" if known is not None else ""
            raise NotAllowed(
                f"{device.name} belongs to the agent with the key {owner[:8]}{where}, this one has {event.key_id[:8]}; "
                f"if they are two machines, give one another 'name' in agent.yaml; if this one was set up anew, an "
                f"admin frees the name: fleet tracker unbind {device.name}"
            )
        names = [device.name for device in event.devices]
        self._check_names(names, event.key_id)
        await self._members.bind(names, event.key_id, self._engine.clock.now_sec())

    def _check_names(self, names: Sequence[str], key_id: str) -> None:
        new = [name for name in names if name not in self._members.keys]
        if not new:
            return
        most, own = self._queries.limits.max_names_per_agent, self._members.names_of(key_id)
        if len(own) + len(new) > most:
            former = f", {len(own)} of which it has already ('fleet tracker members' lists them)" if own else ""
            raise LimitReached(
                f"with {new[0]} and its other devices, this agent's key would have {len(own) + len(new)} device "
                f"names{former}; one key may have {most}: an admin frees names (fleet tracker unbind NAME) or starts "
                f"the tracker with a larger --devices-per-agent"
            )

    def close(self) -> None:
        """End all streams."""
        for outbox in self._outboxes.values():
            outbox.close()

    async def _admit(self, event: ev.AgentAttached, outbox: AgentOutbox, peer: str) -> None:
        for portion in _portions(event):
            if outbox.is_closed:
                return  # a newer stream replaced this one
            for effect in await self._engine.ask(portion):
                if isinstance(effect, ev.AttachRefused):
                    self._tell_of(event, effect.device_name, peer)
                    raise AlreadyExists(effect.message)
        names = [device.name for device in event.devices]
        logger.info("agent attached", extra={"agent": event.agent_id, "address": event.address, "devices": names[:10]})

    def _tell_of(self, other: ev.AgentAttached, device_name: str, peer: str) -> None:
        """Tell the agent that owns a device's name, and the log, that another agent claims it: only people can
        resolve that.
        """
        if not self._contested.is_news(device_name):
            return
        # Not the name of its host: two machines set up from one image have the same.
        address = reachable_address(f":{other.address.rpartition(':')[2]}", peer)
        device = self._queries.device(device_name)
        logger.warning(
            "an agent is refused, another one has its device's name",
            extra={
                "device": device_name,
                "address": address,
                "key": other.key_id,
                "has_it": "" if device is None else device.address,
                "bound_to": self._members.keys.get(device_name, ""),
            },
        )
        outbox = None if device is None or not device.is_attached else self._outboxes.get(device.agent_id)
        if outbox is not None:
            notice = agent_service_pb2.AttachNotice(
                kind=agent_service_pb2.ATTACH_NOTICE_KIND_NAME_WANTED,
                device_name=device_name,
                other_address=address,
                other_key_id=other.key_id,
            )
            outbox.put(notice)

    def _message(
        self,
        items: Sequence[agent_service_pb2.Fence | agent_service_pb2.AttachNotice],
        feed: PoisonFeed,
        *,
        public_key: bytes = b"",
    ) -> agent_service_pb2.AttachResponse:
        return agent_service_pb2.AttachResponse(
            tracker_time=timestamp(self._engine.clock.now_sec()),
            public_key=public_key,
            term_proof=self.term_proof if public_key else b"",
            other_tracker=self.other_tracker,
            fences=(item for item in items if isinstance(item, agent_service_pb2.Fence)),
            notices=(item for item in items if isinstance(item, agent_service_pb2.AttachNotice)),
            poison=feed.news(),
            forgotten_poison=feed.forgotten(),
        )

    async def _read(
        self,
        agent_id: str,
        messages: AsyncIterator[agent_service_pb2.AttachRequest],
        outbox: AgentOutbox,
        feed: PoisonFeed,
    ) -> None:
        try:
            while True:
                async with asyncio.timeout(_SILENCE_SEC):
                    message = await anext(messages, None)
                if message is None or outbox.is_closed:
                    return
                self._check_counts(message)
                await self._take_reports(agent_id, message.reports)
                feed.note(message.found_poison)
        except FleetError as error:
            outbox.fail(error)
        except TimeoutError:
            logger.warning("agent is silent, taken for gone", extra={"agent": agent_id})
        finally:
            outbox.close()

    def _shown_name(self, caller: Identity, hello: agent_service_pb2.AgentHello) -> str:
        """Return the name of an agent for others: without TLS the one that it chose."""
        name = self._members.display_name(caller) if caller.key_id else hello.agent_id
        return sanitize(name, MAX_SHOWN_CHARS)

    async def _take_reports(self, agent_id: str, reports: Sequence[agent_service_pb2.DeviceReport]) -> None:
        for portion in portions(reports, _PORTION_OF_REPORTS):
            await self._pace.turn()
            for report in portion:
                self._report(agent_id, report)

    def _report(self, agent_id: str, report: agent_service_pb2.DeviceReport) -> None:
        device = self._queries.device(report.device_name)
        if device is None or device.agent_id != agent_id:
            return
        if report.HasField("telemetry") and report.telemetry.ByteSize() <= _MAX_TELEMETRY_BYTES:
            sanitize_message(report.telemetry)
            at_sec = self._engine.clock.now_sec()
            self._engine.observers.on_telemetry(report.device_name, report.telemetry, at_sec)
        digest = checked_digest(report.bitstream_digest)
        is_healthy, reason, epochs = condition_of(report)
        is_ahead = self._queries.is_ahead(device, epochs[0])
        is_over = device.lease is not None and device.lease.epoch <= epochs[1]
        found = (device.is_healthy, device.reason, device.bitstream_digest)
        if is_ahead or is_over or found != (is_healthy, reason, digest):
            self._engine.submit(ev.DeviceReported(agent_id, report.device_name, is_healthy, reason, digest, *epochs))

    async def _attached(self, first: agent_service_pb2.AttachRequest, peer: str, key_id: str) -> ev.AgentAttached:
        """Check an agent's hello.

        Raises:
            InvalidRequest: a name, kind, label or address is malformed, too much is said, or a device is offered twice.
        """
        if len(first.hello.agent_id) > _MAX_AGENT_ID_CHARS:
            raise InvalidRequest(f"the agent_id has more than {_MAX_AGENT_ID_CHARS} characters")
        await self._pace.turn()
        reports = {report.device_name: report for report in first.reports}
        devices: list[ev.OfferedDevice] = []
        for portion in portions(first.hello.devices, _PORTION):
            await self._pace.turn()
            devices += (offered_device(device, reports.get(device.name)) for device in portion)
        if len({device.name for device in devices}) < len(devices):
            raise InvalidRequest("the agent offers one device name twice; names are unique in the fleet")
        return ev.AgentAttached(
            owned_id(key_id, first.hello.agent_id),
            reachable_address(first.hello.address, peer),
            tuple(devices),
            key_id=key_id,
            stream=next(self._streams),
            relay_address=checked_relay(first.hello.relay_address),
        )

    def _drop(self, event: ev.AgentAttached, outbox: AgentOutbox) -> None:
        outbox.close()
        if self._outboxes.get(event.agent_id) is not outbox:
            return
        del self._outboxes[event.agent_id]
        self._engine.submit(ev.AgentDetached(event.agent_id, event.stream))
        logger.info("agent detached", extra={"agent": event.agent_id})


def _portions(event: ev.AgentAttached) -> Iterator[ev.AgentAttached]:
    """Split an agent's devices into portions, so that other tasks get their turn during a large registration."""
    devices = event.devices
    later_names = tuple(offered.name for offered in devices[_PORTION:])
    yield replace(event, devices=devices[:_PORTION], later_names=later_names)
    for start in range(_PORTION, len(devices), _PORTION):
        yield replace(event, devices=devices[start : start + _PORTION], is_first=False)
