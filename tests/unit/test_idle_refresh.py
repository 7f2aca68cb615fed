"""Start of a batch of a refresh in idle time, and the used share of a day."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from fleet.domain.devices import DeviceState, DeviceStatus, Inventory
from fleet.domain.health import HealthMark, HealthState
from fleet.domain.leases import LeaseTerms, PendingRequest
from fleet.domain.scope import RecordScope
from fleet.domain.snapshot import Snapshot
from fleet.optimizer.refreshing.idle import DAY_SEC, DayUse, IdleRules, Interest
from fleet.optimizer.refreshing.idle_files import IdleFiles, pass_key
from fleet.testing import FakeClock

RULES = IdleRules(share=0.1)
OURS = "leases/ours"


def view(*wanted: str, lease: str = "", state: DeviceState = DeviceState.AVAILABLE, mark: str = "good") -> Snapshot:
    """Return a fleet of one device with requests of these selectors."""
    device = DeviceStatus(
        name="devices/a",
        inventory=Inventory(kind="simulated", device_model="sim"),
        state=state,
        lease_name=lease,
        mark=HealthMark(state=HealthState(mark)),
    )
    requests = tuple(PendingRequest(request_id=one, terms=LeaseTerms(selector=one)) for one in wanted)
    return Snapshot(devices=(device,), requests=requests)


def interest(clock: FakeClock) -> Interest:
    return Interest(device_name="devices/a", wanted_at_sec=clock.now_sec())


def test_a_batch_begins_after_a_quiet_minute() -> None:
    """Each request for the device begins the minute anew; requests for other devices do not."""
    clock = FakeClock()
    found = interest(clock)
    began_sec = clock.now_sec()
    clock.advance(30)
    found.note(view("name=b", "kind=cuda"), clock.now_sec())
    assert RULES.may_begin_at(found.last_sec(()), DayUse()) == began_sec + 60

    found.note(view("kind=simulated"), clock.now_sec())
    clock.advance(10)
    found.note(view(), clock.now_sec())
    assert RULES.may_begin_at(found.last_sec(()), DayUse()) == began_sec + 90


def test_a_request_of_a_newer_syntax_is_for_every_device() -> None:
    """Rather none than one batch too many."""
    clock = FakeClock()
    found = interest(clock)
    clock.advance(5)

    found.note(view("=,="), clock.now_sec())

    assert found.last_sec(()) == clock.now_sec()


def test_leases_of_others_are_no_quiet_time() -> None:
    """A client that was served at once never queued; the refresh's own leases do not count."""
    clock = FakeClock()
    found = interest(clock)
    began_sec = clock.now_sec()
    clock.advance(20)
    found.note(view(lease=OURS, state=DeviceState.LEASED), clock.now_sec())

    assert found.last_sec([OURS]) == began_sec
    assert found.last_sec([]) == began_sec + 20


@pytest.mark.parametrize(
    ("seen", "is_free"),
    [
        (view(), True),
        (view(lease="leases/x", state=DeviceState.LEASED), False),
        (view(state=DeviceState.OFFLINE), False),
        (view(mark="suspect"), False),
        (Snapshot(), False),
    ],
)
def test_a_batch_needs_a_free_and_healthy_device(seen: Snapshot, *, is_free: bool) -> None:
    """A suspect device serves a request that names it, and would give wrong times."""
    found = interest(FakeClock())
    found.note(seen, 0.0)
    assert found.is_free is is_free


def test_the_share_of_a_day_is_never_exceeded() -> None:
    """Batches as early as they may begin use the share within any 24 hours, and go on a day later."""
    rules = IdleRules(share=0.001, quiet_sec=0)
    used, now_sec, batches = DayUse(), 1_000_000.0, []
    while now_sec < 1_000_000.0 + 3 * DAY_SEC:
        now_sec = max(now_sec, rules.may_begin_at(-math.inf, used))
        used = used.with_batch(now_sec, rules.batch_sec)
        batches.append(now_sec)
        now_sec += rules.batch_sec

    most = 0.001 * DAY_SEC
    for end_sec in batches:
        assert sum(2.0 for one in batches if end_sec - DAY_SEC < one <= end_sec) <= most
    assert len(batches) >= 3 * (most // 2.0)
    assert used.used_sec(now_sec) <= most


def test_use_is_forgotten_after_a_day() -> None:
    """A minute counts until 24 hours after its end."""
    used = DayUse().with_batch(30.0, 2.0).with_batch(45.0, 1.5)

    assert used.used_sec(60.0 + DAY_SEC - 1) == 3.5
    assert used.used_sec(60.0 + DAY_SEC) == 0.0
    assert used.room_at(3.5) == -math.inf
    assert used.room_at(3.4) == 60.0 + DAY_SEC
    assert used.with_batch(60.0 + DAY_SEC, 1.0).sec_by_minute == {1441: 1.0}


def test_use_and_passes_outlast_a_restart(tmp_path: Path) -> None:
    """Each device and each scope has its own; a damaged file is an empty one."""
    files = IdleFiles(folder=tmp_path / "fleet")
    scope = RecordScope(target_json="llvm", device_model="sim", tvm_version="1")
    assert (files.use("devices/a"), files.passes()) == (DayUse(), {})

    files.write_use("devices/a", DayUse({7: 2.5}))
    files.note_pass(pass_key(scope), 12.0)

    again = IdleFiles(folder=tmp_path / "fleet")
    assert (again.use("devices/a"), again.use("devices/b")) == (DayUse({7: 2.5}), DayUse())
    assert again.passes() == {pass_key(scope): 12.0}
    for path in files.folder.iterdir():
        path.write_text('{"7": NaN, "8": "x"}')
    assert (again.use("devices/a"), again.passes()) == (DayUse(), {})
