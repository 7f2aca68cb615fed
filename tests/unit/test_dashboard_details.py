"""Details of one row, its actions, and the lines at the edge of the screen."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console, RenderableType
from rich.segment import Segment
from textual.color import Color

from fleet.dashboard.actions import CancelJob, CancelRequest, Revoke
from fleet.dashboard.head import away_line, head_line, keys_line
from fleet.dashboard.keys import ALL_KEYS, FILTER_HINTS, hints
from fleet.dashboard.panes import JOBS
from fleet.dashboard.plain_signs import PlainSigns
from fleet.dashboard.selection import action_for, details_of
from fleet.domain.devices import DeviceState, DeviceStatus, Inventory, Telemetry
from fleet.domain.jobs import JobState, JobStatus, Remaining
from fleet.domain.leases import Lease, LeaseTerms, PendingRequest
from fleet.domain.snapshot import Snapshot
from tests.unit.test_dashboard_view import NOW_SEC, busy_fleet

HELD = DeviceStatus(
    name="devices/pi4-03",
    state=DeviceState.LEASED,
    holder="ann@desk",
    lease_name="leases/7",
    granted_at_sec=NOW_SEC - 75,
    inventory=Inventory(kind="cpu", labels={"rack": "3"}, facts={"cooling": "[fan]"}),
    telemetry=Telemetry(temp_c=61.2, trials=9),
)
LEASE = Lease(
    name="leases/7",
    device_name=HELD.name,
    epoch=3,
    expires_at_sec=NOW_SEC + 20,
    ends_at_sec=NOW_SEC + 7200,
    purpose="fleet tune a.onnx",
)


def text_of(shown: RenderableType, width: int = 100) -> str:
    console = Console(file=StringIO(), width=width, color_system=None)
    console.print(shown)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_a_devices_details_are_state_facts_and_holder() -> None:
    """The details include the lease, as in `fleet leases`. Brackets in names are no markup."""
    text = text_of(details_of(HELD, Snapshot(devices=(HELD,), leases=(LEASE,)), NOW_SEC))

    for needed in (
        "ann@desk (leases/7, for 1 min)",
        "renews within 20 s, ends in 2 h 00 min at the latest",
        "fleet tune a.onnx",
        "rack=3",
        "61 °C",
        "[fan]",
    ):
        assert needed in text


def test_a_requests_details_are_the_devices_that_would_do() -> None:
    """The devices are listed with their holders, in natural order."""
    wanted = PendingRequest(
        request_id="r", holder="bob@lab", terms=LeaseTerms(selector="cpu"), position=2, reason="all are held"
    )
    names = ("pi-10", "pi-9")
    devices = tuple(replace(HELD, name=f"devices/{name}") for name in names)
    other = DeviceStatus(name="devices/gpu", inventory=Inventory(kind="cuda"))

    text = text_of(details_of(wanted, Snapshot(devices=(*devices, other), requests=(wanted,)), NOW_SEC))

    assert "2 are served before it" in text
    assert "2 of 3 devices would do" in text
    assert text.index("pi-9") < text.index("pi-10")
    assert "ann@desk for 1 min" in text
    assert "gpu" not in text


def test_the_devices_of_a_request_may_be_many() -> None:
    """They are counted, not all listed; a selector of a newer tracker is shown as it is."""
    many = tuple(DeviceStatus(name=f"devices/pi-{at}", inventory=Inventory(kind="cpu")) for at in range(60))
    wanted = PendingRequest(request_id="r", terms=LeaseTerms(selector="cpu"))
    assert "and 10 more" in text_of(details_of(wanted, Snapshot(devices=many), NOW_SEC))

    unreadable = replace(wanted, terms=LeaseTerms(selector="words of a newer tracker"))
    assert "words of a newer tracker" in text_of(details_of(unreadable, Snapshot(devices=many), NOW_SEC))


def test_a_jobs_details_have_its_full_name_and_progress() -> None:
    """The details have the full name, as taken by other commands, and the progress."""
    job = busy_fleet().jobs[0]

    text = text_of(details_of(job, busy_fleet(), NOW_SEC))

    assert "jobs/1" in text
    assert "48/64, 2 failed, 0 repeated" in text
    assert "3.46 ms, untuned 270 ms" in text


def test_a_jobs_details_have_the_prioritizers_reason() -> None:
    """The details have the prioritizer's reason as a sentence."""
    why = "8 candidates of conv2d 3x3: 4 batches should gain 2 ms +- 1 ms; 0.8 s of the device each"

    text = text_of(details_of(JobStatus(name="jobs/1", decision=why), Snapshot(), NOW_SEC))

    assert why in " ".join(text.split())


def test_a_jobs_details_have_its_remaining_time_and_gain() -> None:
    """As `fleet tune` shows them; wide tables have both as columns, and a job that does not search has neither."""
    left = Remaining(from_sec=50.0, expected_sec=61.0, by_sec=90.0)
    job = JobStatus(name="jobs/1", left=left, rest_share=0.0123)

    text = " ".join(text_of(details_of(job, Snapshot(), NOW_SEC)).split())
    [left_cell, gain_cell] = [
        str(column.cell(job, NOW_SEC)) for column in JOBS.columns if column.title in ("left", "to gain")
    ]

    assert "about 61 s of search left (50 to 90), its next tenth should gain 1.2%" in text
    assert (left_cell, gain_cell) == ("1 min", "1.2%")
    assert "left" not in text_of(details_of(JobStatus(name="jobs/1"), Snapshot(), NOW_SEC))


def test_available_actions_name_their_object() -> None:
    """A lease is taken, a wait ended, a job stopped until it has ended; a free device is left alone."""
    revoke = action_for(HELD)
    assert isinstance(revoke, Revoke)
    assert revoke.lease_name == "leases/7"
    assert "Take pi4-03 from ann@desk?" in revoke.question
    cancel = action_for(PendingRequest(request_id="r7", holder="bob@lab", terms=LeaseTerms(selector="kind=cpu")))
    assert isinstance(cancel, CancelRequest)
    assert cancel.request_id == "r7"
    assert "the request of bob@lab for kind=cpu" in cancel.question
    for state in JobState:
        action = action_for(JobStatus(name="jobs/1", state=state))
        assert isinstance(action, CancelJob) is (state.value in ("QUEUED", "RUNNING", "INTERRUPTED"))
    assert action_for(DeviceStatus(name="devices/free")) is None
    assert action_for(None) is None


@pytest.mark.parametrize("width", [20, 40, 80, 120])
def test_narrow_footers_keep_the_help_key(width: int) -> None:
    """The key for the list of all keys is shown even on the narrowest terminal."""
    keys = keys_line(hints(action_for(HELD), is_open=True), width=width).plain
    head = head_line(busy_fleet(), NOW_SEC, "127.0.0.1:9290", width=width).plain

    assert len(keys) <= width
    assert keys.startswith("q quit") or width < 40
    assert "? keys" in keys
    assert "127.0.0.1:9290" in head
    assert len(head) <= width
    assert ("x revoke lease" in keys) is (width >= 80)
    assert ("20 waiting" in head) is (width >= 40)


def test_keys_are_read_at_each_call() -> None:
    """A job is stopped, not revoked; no key is offered that does nothing."""
    job = keys_line(hints(action_for(JobStatus(name="jobs/1")), is_open=True), width=200).plain
    nothing = keys_line(hints(None, is_open=False), width=200).plain

    assert "x stop job" in job
    assert "esc" in job
    assert "x " not in nothing
    assert "esc" not in nothing
    assert keys_line(FILTER_HINTS, width=80).plain == "enter keep  esc close"
    assert {"/", "x", "z", "q"} < {key for key, _ in ALL_KEYS}


def test_an_absent_tracker_is_reported_with_the_time() -> None:
    """The line has the time of the loss and the time since then."""
    line = away_line("lab:9290", "14:03:12", 75.0).plain
    assert line == "tracker lab:9290 away since 14:03:12 (1 min), trying again"


def test_ascii_replacements_keep_the_width() -> None:
    """The layout stays; characters that the encoding has are kept."""
    text = "61 °C ━━╌╌ ⣿ pi… ↓ 漢 ▃ 7 µs"
    filter_ = PlainSigns("ascii")

    (plain,) = filter_.apply([Segment(text)], Color(0, 0, 0))

    assert filter_.enabled
    assert plain.text == "61  C ##-- * pi~ v ??   7 us"
    assert plain.cell_length == Segment(text).cell_length
    assert [Segment("é °")] == PlainSigns("latin-1").apply([Segment("é °")], Color(0, 0, 0))
    assert not PlainSigns("utf-8").enabled
