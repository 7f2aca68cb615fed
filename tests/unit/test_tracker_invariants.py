"""The tracker's state keeps its promises under any order of events, with the journal beside it."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fleet.domain.health import HealthMark, HealthState
from fleet.domain.leases import LeaseClass, LeaseTerms
from fleet.domain.selectors import device_labels, parse_selector
from fleet.errors import Cancelled, NotFound, WaitTimeout
from fleet.testing import Ledger
from fleet.tracker.core import events as ev
from fleet.tracker.core.invariants import validate
from fleet.tracker.core.records import Durable, LeaseEnd, TrackerLimits, member_ids
from fleet.tracker.core.share_policy import Quota, SharePolicy
from fleet.tracker.core.state import TrackerState

AGENTS = ("agent-0", "agent-1")
CLIENTS = ("client-0", "client-1", "client-2")
NAMES = tuple(f"devices/d{i}" for i in range(4))
SELECTORS = ("cpu", "*", "name=d0", "arch=arm", "kind=cpu,arch!=arm", "name=d*", "gpu", "=", "bitstream=one")
PREFERENCES = ("", "bitstream=one", "bitstream!=two", "arch=arm", "arch=arm,bitstream=o*", "name=d2", "=")
BITSTREAMS = ("", "one", "two")
LIMITS = TrackerLimits(max_waiting=6, remembered_ends=5)
POLICIES = (
    SharePolicy(half_life_sec=60.0, starvation_sec=30.0),
    SharePolicy(
        half_life_sec=600.0,
        weights={"holder-1": 2.0},
        class_quotas={
            "": {LeaseClass.INTERACTIVE: Quota(leases=1), LeaseClass.BATCH: Quota(device_sec_per_day=900.0)},
            "holder-2": {LeaseClass.NORMAL: Quota(leases=1, longest_sec=20.0)},
        },
    ),
)


def offered(index: int, *, is_healthy: bool = True) -> ev.OfferedDevice:
    arch = "arm" if index % 2 else "x86_64"
    labels = device_labels(NAMES[index], "cpu", {"arch": arch})
    return ev.OfferedDevice(name=NAMES[index], kind="cpu", labels=labels, description=b"", is_healthy=is_healthy)


def comparable(durable: Durable, day: int) -> object:
    """Return the durable part of a state: all but attachment and health of devices, the accounts of requests, and use
    of other days.
    """
    devices = {
        device.name: (
            device.kind,
            device.labels,
            device.description,
            device.address,
            device.agent_id,
            device.epoch,
            device.lease and dataclasses.astuple(device.lease),
        )
        for device in durable.devices
    }
    requests = {
        request.key: dataclasses.astuple(dataclasses.replace(request, account="")) for request in durable.requests
    }
    uses = {use.account: use.day_sec for use in durable.uses if use.day == day and use.day_sec}
    bookings = [(each.name, each.account, each.starts_at_sec, each.device_names) for each in durable.bookings]
    return devices, requests, uses, dict(durable.health), sorted(bookings)


def is_of_a_set(effect: ev.Effect) -> bool:
    """Return True for a grant or a wait of a set, which any event may bring."""
    match effect:
        case ev.Granted():
            return bool(effect.set_id)
        case ev.Queued():
            return bool(effect.request.terms.also)
    return False


class TrackerMachine(RuleBasedStateMachine):
    """Feeds events to a state and its journal, and keeps a model of their effects."""

    def __init__(self) -> None:
        super().__init__()
        self._journal = Ledger()
        self.now = 1_000_000.0
        self.waiting: set[tuple[str, str]] = set()
        self.ended: set[str] = set()
        self.newest_epoch: dict[str, int] = {}
        self.request_count = 0
        self.streams = dict.fromkeys(AGENTS, 0)
        self.sets: dict[tuple[str, str], tuple[str, ...]] = {}
        """Further selectors of each set."""
        self.unsaid: list[ev.AgentAttached] = []
        """Outstanding parts of hellos, of newer and of older streams."""

    @initialize()
    def start(self) -> None:
        self.state = TrackerState.restore(self._journal.open(self.now), self.now, LIMITS)
        self.apply(ev.AgentAttached(AGENTS[0], "h:1", (offered(0), offered(1))))
        self.apply(ev.ClientConnected(CLIENTS[0], "someone@here"))

    def apply(self, event: ev.Event) -> list[ev.Effect]:
        effects = self.state.apply(event, self.now)
        self._journal.write(self.state.take_changes())
        for effect in effects:
            self._check_effect(effect)
        return effects

    def _check_effect(self, effect: ev.Effect) -> None:
        match effect:
            case ev.Queued(client_id, request):
                self.waiting.add((client_id, request.request_id))
            case ev.Granted(client_id, lease, is_repeat):
                assert lease.name not in self.ended
                if effect.set_id and effect.member == 0:
                    self._check_whole(effect)
                if not is_repeat:
                    assert lease.epoch > self.newest_epoch.get(lease.device_name, 0)
                    self.newest_epoch[lease.device_name] = lease.epoch
                self.waiting.discard((client_id, lease.request_id))
            case ev.Refused(client_id, request_id, error_class, _):
                was_waiting = (client_id, request_id) in self.waiting
                assert not was_waiting or error_class in (Cancelled, WaitTimeout, NotFound)
                self.waiting.discard((client_id, request_id))
            case ev.LeaseEnded(lease_name=lease_name, end=end):
                # UNKNOWN is also the answer if another client names a live lease.
                if end is not LeaseEnd.UNKNOWN or lease_name not in self.state.leases:
                    self.ended.add(lease_name)
            case ev.Renewed(_, lease):
                assert lease.name not in self.ended
            case ev.Fence(_, device_name, epoch):
                lease_now = self.state.devices[device_name].lease
                assert lease_now is None or lease_now.epoch > epoch

    def _check_whole(self, first: ev.Granted) -> None:
        """A set's first member comes with all others."""
        client, set_id = self.state.clients[first.client_id], first.set_id
        ids = member_ids(set_id, LeaseTerms(selector="", also=self.sets[first.client_id, set_id]))
        assert all(each in client.leases for each in ids)

    @rule(
        client=st.sampled_from(CLIENTS),
        selectors=st.lists(st.sampled_from(SELECTORS), min_size=2, max_size=3),
        lease_class=st.sampled_from(LeaseClass),
        max_sec=st.sampled_from([None, 8.0]),
        wait_timeout_sec=st.sampled_from([0.0, 2.0]),
    )
    def acquire_set(
        self,
        client: str,
        selectors: list[str],
        lease_class: LeaseClass,
        max_sec: float | None,
        wait_timeout_sec: float,
    ) -> None:
        self.request_count += 1
        selector, *also = selectors
        terms = LeaseTerms(
            selector=selector,
            also=tuple(also),
            lease_class=lease_class,
            max_sec=max_sec,
            wait_timeout_sec=wait_timeout_sec,
        )
        self.sets[client, f"r{self.request_count}"] = terms.also
        self.apply(ev.Acquire(client, f"r{self.request_count}", terms))

    @rule(sec=st.sampled_from([0.0, 0.5, 3.0, 11.0, 31.0, 400.0]))
    def pass_time(self, sec: float) -> None:
        self.now += sec
        self.apply(ev.Tick())

    @rule(
        agent=st.sampled_from(AGENTS),
        indices=st.sets(st.integers(0, 3)),
        is_healthy=st.booleans(),
        first=st.sampled_from([1, 4]),
    )
    def attach(self, agent: str, indices: set[int], is_healthy: bool, first: int) -> None:
        devices = tuple(offered(index, is_healthy=is_healthy) for index in sorted(indices))
        self.streams[agent] += 1
        said = ev.AgentAttached(agent, "h:1", devices[:first], stream=self.streams[agent])
        self.unsaid += [dataclasses.replace(said, devices=(each,), is_first=False) for each in devices[first:]]
        self.apply(dataclasses.replace(said, later_names=tuple(each.name for each in devices[first:])))

    @precondition(lambda self: self.unsaid)
    @rule(pick=st.integers(0, 10))
    def attach_more(self, pick: int) -> None:
        self.apply(self.unsaid.pop(pick % len(self.unsaid)))

    @rule(agent=st.sampled_from(AGENTS), is_late=st.booleans())
    def detach(self, agent: str, is_late: bool) -> None:
        self.apply(ev.AgentDetached(agent, self.streams[agent] - is_late))

    @rule(
        agent=st.sampled_from(AGENTS),
        name=st.sampled_from(NAMES),
        is_healthy=st.booleans(),
        bitstream=st.sampled_from(BITSTREAMS),
    )
    def report(self, agent: str, name: str, is_healthy: bool, bitstream: str) -> None:
        self.apply(ev.DeviceReported(agent, name, is_healthy, "" if is_healthy else "too hot", bitstream))

    @rule(client=st.sampled_from(CLIENTS), account=st.sampled_from(["", "lab"]), may_ask_for_others=st.booleans())
    def connect(self, client: str, account: str, may_ask_for_others: bool) -> None:
        # A client's requests of an older stream wait again once they are repeated.
        self.waiting = {key for key in self.waiting if key[0] != client}
        connected = ev.ClientConnected(client, "someone@here", account, may_ask_for_others=may_ask_for_others)
        self.apply(connected)

    @rule(client=st.sampled_from(CLIENTS))
    def lose(self, client: str) -> None:
        self.waiting = {key for key in self.waiting if key[0] != client}
        self.apply(ev.ClientLost(client))

    @rule(
        client=st.sampled_from(CLIENTS),
        selector=st.sampled_from(SELECTORS),
        priority=st.sampled_from([0, 0, 1, -1, 5, 1000]),
        ttl_sec=st.sampled_from([0.0, 1.0, 5.0, 1000.0]),
        max_sec=st.sampled_from([None, 0.0, 8.0]),
        wait_timeout_sec=st.sampled_from([0.0, 0.0, 2.0]),
        lease_class=st.sampled_from(LeaseClass),
        repeats=st.booleans(),
        prefer=st.sampled_from(PREFERENCES),
        account_name=st.sampled_from(["", "", "lab", "guest"]),
    )
    def acquire(
        self,
        client: str,
        selector: str,
        priority: int,
        ttl_sec: float,
        max_sec: float | None,
        wait_timeout_sec: float,
        lease_class: LeaseClass,
        repeats: bool,
        prefer: str,
        account_name: str,
    ) -> None:
        self.request_count += not repeats
        request_id = f"r{self.request_count}"
        labels_by_name = {
            name: self.state.devices[name].labels
            for name in self.state.matching.free_devices()
            if lease_class is not LeaseClass.BATCH or selector == "name=d0" or name not in self.state.matching.suspects
        }
        entry = self.state.clients.get(client)
        account = self.state.accounts.account(account_name or entry.account) if entry else None
        effects = self.apply(
            ev.Acquire(
                client,
                request_id,
                LeaseTerms(
                    selector=selector,
                    lease_class=lease_class,
                    priority=priority,
                    ttl_sec=ttl_sec,
                    max_sec=max_sec,
                    wait_timeout_sec=wait_timeout_sec,
                    purpose="test",
                    prefer=prefer,
                    account=account_name,
                ),
            )
        )
        may_ask = entry is not None and (entry.may_ask_for_others or account_name in ("", entry.account))
        own = [effect for effect in effects if not is_of_a_set(effect)]
        for effect in own:
            match effect:
                case ev.Granted(_, lease, False) if not repeats and entry and lease.client_id == client:
                    assert may_ask
                    assert (account_name or entry.account) == lease.account
                case ev.Granted(_, lease, False) if prefer and labels_by_name:
                    fitting = [n for n, labels in labels_by_name.items() if parse_selector(selector).matches(labels)]
                    liked = {n for n in fitting if parse_selector(prefer).matches(labels_by_name[n])}
                    assert not liked or lease.device_name in liked
                case ev.Queued() if not repeats and account and not account.is_blocked(lease_class):
                    assert not any(parse_selector(selector).matches(labels) for labels in labels_by_name.values())

    @rule(client=st.sampled_from(CLIENTS), back=st.integers(0, 5))
    def cancel(self, client: str, back: int) -> None:
        self.apply(ev.Cancel(client, f"r{self.request_count - back}"))

    @precondition(lambda self: self.state.leases)
    @rule(pick=st.integers(0, 10), client=st.sampled_from((*CLIENTS, "")))
    def release(self, pick: int, client: str) -> None:
        lease = list(self.state.leases.values())[pick % len(self.state.leases)]
        self.apply(ev.Release(client or lease.client_id, lease.name))

    @precondition(lambda self: self.state.leases)
    @rule(pick=st.integers(0, 10), client=st.sampled_from((*CLIENTS, "", "")))
    def renew(self, pick: int, client: str) -> None:
        lease = list(self.state.leases.values())[pick % len(self.state.leases)]
        self.apply(ev.Renew(client or lease.client_id, lease.name))

    @precondition(lambda self: self.ended)
    @rule(pick=st.integers(0, 10), client=st.sampled_from(CLIENTS))
    def renew_an_ended_lease(self, pick: int, client: str) -> None:
        name = sorted(self.ended)[pick % len(self.ended)]
        effects = self.apply(ev.Renew(client, name))
        assert not any(isinstance(effect, ev.Renewed) for effect in effects)
        assert any(isinstance(effect, ev.LeaseEnded) and effect.lease_name == name for effect in effects)

    @precondition(lambda self: self.state.leases)
    @rule(pick=st.integers(0, 10))
    def revoke(self, pick: int) -> None:
        name = list(self.state.leases)[pick % len(self.state.leases)]
        self.apply(ev.Revoke(name, "needed elsewhere"))
        assert name not in self.state.leases

    @rule()
    def fail_journal_after_a_grant(self) -> None:
        """Fail as the engine does on a full disk: grants of the failed turn are revoked."""
        self.apply(ev.ClientConnected(CLIENTS[0], "someone@here"))
        self.waiting = {key for key in self.waiting if key[0] != CLIENTS[0]}
        self.request_count += 1
        effects = self.state.apply(ev.Acquire(CLIENTS[0], f"r{self.request_count}", LeaseTerms(selector="*")), self.now)
        grants = tuple(effect.lease for effect in effects if isinstance(effect, ev.Granted))
        for effect in effects:
            if not isinstance(effect, ev.Granted):
                self._check_effect(effect)
        for effect in self.state.apply(ev.JournalFailed(grants, "disk full"), self.now):
            if not isinstance(effect, ev.Refused):
                self._check_effect(effect)
        assert not any(lease.name in self.state.leases for lease in grants)

    @precondition(lambda self: self.state.journal_trouble)
    @rule()
    def recover_journal(self) -> None:
        self.apply(ev.JournalRecovered())

    @rule(names=st.sets(st.sampled_from(NAMES), min_size=1), state=st.sampled_from(HealthState), until=st.booleans())
    def mark_health(self, names: set[str], state: HealthState, until: bool) -> None:
        until_sec = self.now + 20.0 if until and not state.is_open else None
        mark = HealthMark(state=state, by="root", at_sec=self.now, reason="test", until_sec=until_sec)
        self.apply(ev.MarkHealth(tuple(sorted(names)), mark))

    @rule(
        client=st.sampled_from(CLIENTS),
        selector=st.sampled_from(SELECTORS),
        in_sec=st.sampled_from([0.0, 20.0, 500.0, 90_000.0]),
        for_sec=st.sampled_from([0.0, 10.0, 1000.0]),
        device_count=st.sampled_from([1, 1, 2]),
    )
    def book(self, client: str, selector: str, in_sec: float, for_sec: float, device_count: int) -> None:
        entry = self.state.clients.get(client)
        account = entry.account if entry else "lab"
        starts_at_sec = self.now + in_sec
        self.apply(
            ev.Book(
                selector=selector,
                device_count=device_count,
                starts_at_sec=starts_at_sec,
                ends_at_sec=starts_at_sec + for_sec,
                holder="someone@here",
                account=account,
            )
        )

    @precondition(lambda self: self.state.bookings.entries)
    @rule(client=st.sampled_from(CLIENTS), pick=st.integers(0, 10), wait_timeout_sec=st.sampled_from([0.0, 2.0]))
    def acquire_booked(self, client: str, pick: int, wait_timeout_sec: float) -> None:
        self.request_count += 1
        name = list(self.state.bookings.entries)[pick % len(self.state.bookings.entries)]
        terms = LeaseTerms(selector="", booking=name, wait_timeout_sec=wait_timeout_sec)
        self.apply(ev.Acquire(client, f"r{self.request_count}", terms))

    @precondition(lambda self: self.state.bookings.entries)
    @rule(pick=st.integers(0, 10))
    def cancel_booking(self, pick: int) -> None:
        name = list(self.state.bookings.entries)[pick % len(self.state.bookings.entries)]
        self.apply(ev.CancelBooking(name))
        assert name not in self.state.bookings.entries

    @rule(policy=st.sampled_from(POLICIES))
    def change_policy(self, policy: SharePolicy) -> None:
        self.apply(ev.PolicyChanged(policy))

    @rule(away_sec=st.sampled_from([0.0, 5.0, 60.0]))
    def restart(self, away_sec: float) -> None:
        """A kill -9: only the journal's content survives."""
        self._journal.write(self.state.take_changes())
        day, boot = self.state.accounts.day, self.state.boot
        before = comparable(self.state.durable(), day)
        self.now += away_sec
        durable = self._journal.open(self.now)
        assert before == comparable(durable, day)
        assert durable.boot > boot
        self.waiting.clear()
        self.state = TrackerState.restore(durable, self.now, LIMITS, policy=self.state.accounts.policy)
        self.apply(ev.Tick())

    @invariant()
    def everything_holds(self) -> None:
        if hasattr(self, "state"):
            validate(self.state)

    @invariant()
    def requests_leave_only_as_promised(self) -> None:
        if hasattr(self, "state"):
            queued = {request.key for request in self.state.waiting.first(len(self.state.waiting))}
            queued |= {key for key, entry in self.state.sets.entries.items() if entry.is_told}
            queued |= {key for booking in self.state.bookings.entries.values() for key in booking.requests}
            assert self.waiting == queued


TestTrackerMachine = pytest.mark.slow(TrackerMachine.TestCase)
TestTrackerMachine.settings = settings(
    max_examples=150, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)
