"""The tracker's lease service: converts messages to events for the engine, and effects back to messages."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator

from fleet.base.text import sanitize
from fleet.domain.devices import holder_text
from fleet.domain.explanation import Explanation
from fleet.domain.leases import MOST_SET_DEVICES
from fleet.domain.reasons import checked_reason
from fleet.domain.tokens import TokenSigner, new_nonce
from fleet.errors import DeviceUnreachable, FleetError, InvalidRequest, LimitReached, NotFound
from fleet.identity.policy import check_owner
from fleet.identity.roles import Identity, Role
from fleet.tracker.account_clients import AccountClients
from fleet.tracker.core import events as ev
from fleet.tracker.core.admission import MAX_SHOWN_CHARS
from fleet.tracker.core.records import BookingEntry, RequestEntry
from fleet.tracker.engine import Engine
from fleet.tracker.forecaster import Forecaster
from fleet.tracker.judging import set_health
from fleet.tracker.members import Members
from fleet.tracker.messages import (
    ClientOutbox,
    booking_event,
    candidate_of,
    client_event,
    effect_to_proto,
    key_of,
    lease_of,
    owned_id,
    pending_of,
    refusal,
    request_to_proto,
)
from fleet.tracker.observers import Observer
from fleet.tracker.outbox import Outbox
from fleet.tracker.pace import Pace
from fleet.tracker.portions import paced
from fleet.tracker.reloading import Reloader
from fleet.tracker.streams import first_message, when_over
from fleet.tracker.view import FleetView
from fleet.tracker.wait_updates import WaitUpdates
from fleet.v1 import job_pb2, lease_service_pb2
from fleet.wire.explanations import explanation_to_proto
from fleet.wire.health import asked_mark
from fleet.wire.leases import lease_to_proto, reload_to_proto
from fleet.wire.peers import CallContext, caller_of
from fleet.wire.sanitize import sanitize_message

logger = logging.getLogger(__name__)

MAX_UNSENT = 50_000
"""Most events waiting for one client; at one more it loses its stream."""
_MESSAGE_EVENTS = 500
"""Most events in one message."""
_MOST_EVENTS = 4_096
"""Maximum events of a client in one message; ours sends 500."""
_TURN_EVENTS = 32
"""Events of one message taken before other clients get their turn: an event costs about 0.1 ms."""
_MAX_CLIENT_ID_CHARS = 128
_REVOKE = "LeaseService.RevokeLease"
_CANCEL = "LeaseService.CancelRequest"
_MAX_JOB_BYTES = 16 * 1024
_MAX_OPTIMIZER_BYTES = 1024
"""Jobs and optimizers are shown to everyone; a larger message is ignored."""


class LeaseServicer(Observer):
    """fleet.v1.LeaseService."""

    def __init__(
        self,
        engine: Engine,
        view: FleetView,
        members: Members,
        signer: TokenSigner,
        pace: Pace,
        reloader: Reloader,
        forecaster: Forecaster,
        *,
        max_unsent: int = MAX_UNSENT,
    ) -> None:
        self._engine = engine
        self._queries = engine.queries
        self._members = members
        self._pace = pace
        self._view = view
        self._reloader = reloader
        self._forecasts = forecaster
        self._signer = signer
        self._max_unsent = max_unsent
        self.outboxes: dict[str, ClientOutbox] = {}
        """Outboxes by client."""

        self._connected_by: dict[str, ev.ClientConnected] = {}
        """Caller of each stream."""

        self._accounts = AccountClients()
        self._other_tracker = lease_service_pb2.OtherTracker()

        self._updates = WaitUpdates(engine.queries, forecaster.of, pace)
        self._fleet_id = hashlib.sha256(signer.public_key).hexdigest()[:16]

    def on_effect(self, effect: ev.Effect) -> None:
        """Send an effect to its client, if connected."""
        if isinstance(effect, ev.BookingChanged):
            self._tell_account(effect.booking)
            return
        if not isinstance(effect, ev.ClientEffect):
            return
        outbox = self.outboxes.get(effect.client_id)
        if outbox is None:
            return
        if isinstance(effect, ev.Welcomed):
            leases = map(lease_to_proto, map(lease_of, effect.leases))
            welcome = lease_service_pb2.Welcome(
                tracker_id=self._queries.tracker_id,
                fleet_id=self._fleet_id,
                leases=leases,
                account=effect.account,
                may_ask_for_others=effect.may_ask_for_others,
                most_set_devices=MOST_SET_DEVICES,
            )
            outbox.put(lease_service_pb2.TrackerEvent(welcome=welcome))
            if self._other_tracker.address:
                outbox.put(_other_tracker_event(self._other_tracker))
            self._accounts.join(effect.client_id, effect.account)
            for booking in self._queries.bookings_of(effect.account):
                outbox.put(booking_event(booking, self._queries))
            return
        if isinstance(effect, ev.Queued):
            self._updates.tell_queued(effect.client_id, effect.request, outbox)
            return
        outbox.put(effect_to_proto(effect, self._queries, self._signer))

    async def open_leases(
        self,
        requests: AsyncIterator[lease_service_pb2.OpenLeasesRequest],
        context: CallContext,
    ) -> AsyncIterator[lease_service_pb2.OpenLeasesResponse]:
        messages = aiter(requests)
        limits = self._queries.limits
        first = await first_message(messages, limits.hello_sec)
        if first is None or not first.hello.client_id:
            raise InvalidRequest("the first message of OpenLeases has no hello with a client_id; send one")
        client_id = first.hello.client_id
        if len(client_id) > _MAX_CLIENT_ID_CHARS:
            raise InvalidRequest(f"the client_id has more than {_MAX_CLIENT_ID_CHARS} characters")
        caller = caller_of(context)
        client_id = owned_id(caller.key_id, client_id)
        connected = self._connected(client_id, caller, sanitize(first.hello.holder, MAX_SHOWN_CHARS))
        older = self.outboxes.get(client_id)
        if older is not None:
            older.close()
        else:
            self._check_limits(connected)
        outbox: ClientOutbox = Outbox(self._max_unsent)
        self.outboxes[client_id] = outbox
        self._connected_by[client_id] = connected
        self._engine.submit(connected)
        when_over(lambda: self._drop(client_id, outbox))
        reader = asyncio.create_task(self._read(client_id, first, messages, outbox), name=f"client {client_id[-8:]}")
        try:
            while (events := await outbox.take(_MESSAGE_EVENTS)) is not None:
                if events:
                    yield lease_service_pb2.OpenLeasesResponse(events=events)
        finally:
            reader.cancel()
            self._drop(client_id, outbox)

    async def revoke_lease(
        self, request: lease_service_pb2.RevokeLeaseRequest, context: CallContext
    ) -> lease_service_pb2.RevokeLeaseResponse:
        reason, lease = checked_reason(request.reason), self._queries.lease(request.lease_name)
        if lease is not None:
            check_owner(_REVOKE, caller_of(context), key_of(lease.client_id), what=lease.name)
        effects = await self._engine.ask(ev.Revoke(request.lease_name, reason))
        revoked = next((effect for effect in effects if isinstance(effect, ev.Revoked)), None)
        if revoked is None:
            raise NotFound(
                f"there is no live lease {request.lease_name[:MAX_SHOWN_CHARS]!r}; 'fleet leases' lists those there are"
            )
        logger.info("lease revoked", extra={"lease": request.lease_name, "reason": reason})
        return lease_service_pb2.RevokeLeaseResponse(lease=lease_to_proto(lease_of(revoked.lease)))

    async def cancel_request(
        self, request: lease_service_pb2.CancelRequestRequest, context: CallContext
    ) -> lease_service_pb2.CancelRequestResponse:
        caller, found = caller_of(context), self._queries.requests_named(request.request_id)
        for each in found:
            check_owner(
                _CANCEL, caller, key_of(each.client_id), what=f"the request of {holder_text(each.holder, each.note)}"
            )
        shown_id = sanitize(request.request_id, MAX_SHOWN_CHARS)
        if not found:
            raise NotFound(f"no request {shown_id!r} waits; 'fleet request list' lists those that do")
        last = request_to_proto(found[0], self._queries.standing(found[0]))
        reason = ": ".join(filter(None, (f"by {caller.name}", checked_reason(request.reason))))
        answers = [await self._engine.ask(ev.Cancel(each.client_id, each.request_id, reason)) for each in found]
        if not any(isinstance(effect, ev.Refused) for effects in answers for effect in effects):
            raise NotFound(f"request {shown_id!r} waits no more: it was served, or its client has left")
        logger.info("request cancelled", extra={"request": shown_id, "reason": reason})
        return lease_service_pb2.CancelRequestResponse(request=last)

    async def explain_request(
        self, request: lease_service_pb2.ExplainRequestRequest, _: object
    ) -> lease_service_pb2.ExplainRequestResponse:
        found = self._queries.requests_named(request.request_id)
        if not found:
            shown_id = sanitize(request.request_id, MAX_SHOWN_CHARS)
            raise NotFound(f"no request {shown_id!r} waits; 'fleet request list' lists those that do")
        return explanation_to_proto(await self._explain(found[0]))

    async def reset_epochs(
        self, request: lease_service_pb2.ResetEpochsRequest, _: object
    ) -> lease_service_pb2.ResetEpochsResponse:
        name = request.device_name
        if self._queries.device(name) is None:
            raise NotFound(f"there is no device {name[:MAX_SHOWN_CHARS]!r}; 'fleet devices' lists those there are")
        effects = await self._engine.ask(ev.ResetEpochs(name, new_nonce()))
        fence = next((effect for effect in effects if isinstance(effect, ev.Fence) and effect.is_reset), None)
        if fence is None:
            raise DeviceUnreachable(f"the agent of {name} is not attached, and needs the change; start it, then repeat")
        logger.warning("epochs reset", extra={"device": name, "epoch": fence.epoch})
        return lease_service_pb2.ResetEpochsResponse(epoch=fence.epoch)

    async def reload_tracker(
        self, _: lease_service_pb2.ReloadTrackerRequest, __: object
    ) -> lease_service_pb2.ReloadTrackerResponse:
        return reload_to_proto(await self._reloader.reload())

    async def set_health(
        self, request: lease_service_pb2.SetHealthRequest, context: CallContext
    ) -> lease_service_pb2.SetHealthResponse:
        mark = asked_mark(request, self._shown_name(caller_of(context)), self._engine.clock.now_sec())
        names = await set_health(self._engine, self._pace, request.selector, mark)
        return lease_service_pb2.SetHealthResponse(device_names=names)

    async def refresh_waits(self) -> None:
        """Report changed queue positions and reasons to clients; runs until cancelled."""
        await self._updates.run(self.outboxes)

    def tell_other(self, address: str, term: int) -> None:
        """Tell all clients, also later ones, the address of the fleet's other tracker, and this one's term.

        Args:
            address: empty if there is no other.
        """
        self._other_tracker = lease_service_pb2.OtherTracker(address=address, term=term)
        for outbox in self.outboxes.values() if address else ():
            outbox.put(_other_tracker_event(self._other_tracker))

    def _tell_account(self, booking: BookingEntry) -> None:
        """Tell the clients of its account that a booking lacks devices, or has all of them again."""
        event = booking_event(booking, self._queries)
        for client_id in self._accounts.of(booking.account):
            self.outboxes[client_id].put(event)

    async def _explain(self, request: RequestEntry) -> Explanation:
        """Explain why a request waits, in portions."""
        queries = self._queries
        (used_sec, share_had, share_due), omissions = await paced(queries.explained(request), self._pace)
        await self._pace.turn()
        return Explanation(
            request=pending_of(request, queries.standing(request), self._forecasts.of(request)),
            at_sec=self._engine.clock.now_sec(),
            account=request.account,
            weight=queries.weight_of(request.account),
            used_sec=used_sec,
            share_had=share_had,
            share_due=share_due,
            quota=queries.quota_of(request),
            device_count=queries.count(request.terms.selector),
            candidates=tuple(
                candidate_of(
                    device,
                    queries.next_booking(device),
                    queries.now_sec,
                    self._forecasts.free_at_sec(device.lease),
                )
                for device in queries.candidates(request)
            ),
            omissions=tuple(omissions),
        )

    def close(self) -> None:
        """End all streams."""
        for outbox in self.outboxes.values():
            outbox.close()

    def _connected(self, client_id: str, caller: Identity, said: str) -> ev.ClientConnected:
        """Return the event of a client's stream. The holder is the certificate's name; the client's own is a note."""
        if not caller.key_id:  # without TLS all clients belong to one account, so their names are trusted
            return ev.ClientConnected(client_id, said or "unknown", may_ask_for_others=True, is_admin=True)
        holder = self._shown_name(caller)
        note = "" if said == caller.name else said
        account, may_ask_for_others = self._members.account_of(caller.key_id)
        is_admin = caller.role is Role.ADMIN
        return ev.ClientConnected(client_id, holder, account, note, may_ask_for_others, is_admin)

    def _shown_name(self, caller: Identity) -> str:
        """Return the name of a member for others."""
        return sanitize(self._members.display_name(caller) if caller.key_id else caller.name, MAX_SHOWN_CHARS)

    def _check_limits(self, connected: ev.ClientConnected) -> None:
        """Refuse a stream beyond the limits.

        Raises:
            LimitReached: of everybody, or of this user.
        """
        limits = self._queries.limits
        if len(self.outboxes) >= limits.max_clients:
            raise LimitReached(f"{len(self.outboxes)} clients are connected, and no more may be; try again later")
        # Counted only if it can matter: a loop over all clients for each new one would be quadratic.
        if len(self.outboxes) >= limits.max_clients_per_user:
            own = sum(1 for other in self._connected_by.values() if other.account == connected.account)
            if own >= limits.max_clients_per_user:
                raise LimitReached(
                    f"{own} clients of {connected.holder} are connected, and no more may be; close some of them"
                )

    async def _read(
        self,
        client_id: str,
        first: lease_service_pb2.OpenLeasesRequest,
        messages: AsyncIterator[lease_service_pb2.OpenLeasesRequest],
        outbox: ClientOutbox,
    ) -> None:
        try:
            await self._take(client_id, first, outbox)
            async for message in messages:
                await self._take(client_id, message, outbox)
        except FleetError as error:
            outbox.fail(error)
        finally:
            outbox.close()

    async def _take(self, client_id: str, message: lease_service_pb2.OpenLeasesRequest, outbox: ClientOutbox) -> None:
        if len(message.events) > _MOST_EVENTS:
            raise InvalidRequest(f"{len(message.events)} events in one message; send at most {_MOST_EVENTS}")
        for count, event in enumerate(message.events):
            if outbox.is_closed:
                return  # a newer stream replaced this one: ignore its later messages
            if count % _TURN_EVENTS == 0:
                if count:
                    await asyncio.sleep(0)
                await outbox.wait_drained()
            if event.HasField("job"):
                if event.job.ByteSize() <= _MAX_JOB_BYTES:
                    self._show_job(client_id, event.job)
            elif event.HasField("optimizer"):
                if event.optimizer.ByteSize() <= _MAX_OPTIMIZER_BYTES:
                    self._show_optimizer(client_id, event.optimizer)
            else:
                self._submit(client_id, event, outbox)

    def _submit(self, client_id: str, message: lease_service_pb2.ClientEvent, outbox: ClientOutbox) -> None:
        try:
            event = client_event(client_id, message)
        except InvalidRequest as error:
            outbox.put(refusal(message.acquire.request_id, type(error), str(error)))
            return
        if event is not None:
            self._engine.submit(event)

    def _show_job(self, client_id: str, job: job_pb2.Job) -> None:
        sanitize_message(job)
        connected = self._connected_by[client_id]
        if connected.account:  # with TLS
            said = job.holder or connected.note
            job.holder, job.holder_note = connected.holder, said if said != connected.holder else ""
        self._view.set_job(connected.account or connected.holder, client_id, job)

    def _show_optimizer(self, client_id: str, optimizer: job_pb2.Optimizer) -> None:
        sanitize_message(optimizer)
        optimizer.holder = self._connected_by[client_id].holder
        self._view.set_optimizer(client_id, optimizer)

    def _drop(self, client_id: str, outbox: ClientOutbox) -> None:
        outbox.close()
        if self.outboxes.get(client_id) is not outbox:
            return
        del self.outboxes[client_id]
        del self._connected_by[client_id]
        self._accounts.leave(client_id)
        self._updates.forget(client_id)
        self._view.lose_client(client_id)
        self._engine.submit(ev.ClientLost(client_id))


def _other_tracker_event(other: lease_service_pb2.OtherTracker) -> lease_service_pb2.TrackerEvent:
    return lease_service_pb2.TrackerEvent(other_tracker=other)
