"""Rows of a snapshot's panes, their order, and their size in lines and columns."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.dashboard.heights import ROOMY_LINES, lay_out, share
from fleet.dashboard.panes import DEVICES, JOBS, QUEUE, Choice, arrange, parse_filter
from fleet.dashboard.selection import PANES, find, make_sheets
from fleet.dashboard.sheet import Sheet, make_sheet
from fleet.domain.devices import DeviceState, DeviceStatus, Inventory, Telemetry
from fleet.domain.jobs import JobState, JobStatus
from fleet.domain.leases import LeaseTerms, PendingRequest
from fleet.domain.selectors import parse_selector
from fleet.errors import InvalidRequest
from tests.unit.test_dashboard_view import NOW_SEC, busy_fleet

WIDTHS = (40, 60, 80, 120, 200)


def boards(count: int) -> tuple[DeviceStatus, ...]:
    """Boards in the order of a tracker, which compares names letter by letter."""
    return tuple(sorted((DeviceStatus(name=f"devices/pi-{at}") for at in range(count)), key=lambda board: board.name))


def device_sheet(devices: tuple[DeviceStatus, ...], choice: Choice, width: int = 80) -> Sheet:
    return make_sheet(DEVICES, devices, choice, NOW_SEC, width=width, total=len(devices), address="lab:9290")


def test_devices_are_in_the_order_in_which_people_count() -> None:
    """ "pi-2" stands before "pi-10", by itself and sorted by name."""
    natural = [f"devices/pi-{at}" for at in range(12)]

    assert natural == [board.name for board in arrange(DEVICES, boards(12), Choice())]
    assert natural == [board.name for board in arrange(DEVICES, boards(12), Choice(sort_by="device"))]
    assert natural[::-1] == [board.name for board in arrange(DEVICES, boards(12), Choice(is_turned=True))]


@pytest.mark.parametrize(("is_turned", "expected"), [(False, "hot warm cold a b"), (True, "cold warm hot a b")])
def test_numbers_are_sorted_largest_first_and_unknown_ones_last(is_turned: bool, expected: str) -> None:
    """Unknown numbers stay at the end in reverse order, too."""
    temps = {"a": None, "cold": 20.0, "hot": 90.0, "b": None, "warm": 50.0}
    devices = [DeviceStatus(name=f"devices/{name}", telemetry=Telemetry(temp_c=temp)) for name, temp in temps.items()]

    found = arrange(DEVICES, devices, Choice(sort_by="temp", is_turned=is_turned))

    assert expected.split() == [device.name.removeprefix("devices/") for device in found]


@pytest.mark.parametrize("pane", [DEVICES, QUEUE, JOBS], ids=lambda pane: pane.title)
def test_every_column_sorts(pane: object) -> None:
    """Sorting by any column neither loses a row nor fails, even if all fields are unknown."""
    fleet = busy_fleet()
    things = {
        "devices": (*fleet.devices, DeviceStatus(name="devices/new")),
        "queue": (*fleet.requests, PendingRequest(request_id="r2")),
        "jobs": (*fleet.jobs, JobStatus(name="jobs/new")),
    }[pane.title]  # type: ignore[attr-defined]

    for column in pane.columns:  # type: ignore[attr-defined]
        for is_turned in (False, True):
            found = arrange(pane, things, Choice(sort_by=column.title, is_turned=is_turned))  # type: ignore[arg-type]
            assert sorted(map(pane.name, things)) == sorted(map(pane.name, found))  # type: ignore[attr-defined]


def test_a_filter_is_a_selector() -> None:
    """The dashboard takes the selectors of `fleet devices`, and a device's changing state and holder."""
    cpu = DeviceStatus(
        name="devices/pi",
        state=DeviceState.LEASED,
        holder="ann@desk",
        inventory=Inventory(kind="cpu", labels={"rack": "3"}),
    )
    gpu = DeviceStatus(name="devices/gpu", state=DeviceState.AVAILABLE, inventory=Inventory(kind="cuda"))

    def shown(text: str) -> list[DeviceStatus]:
        return arrange(DEVICES, [cpu, gpu], Choice(selector=parse_filter(text)))

    assert [cpu] == shown("cpu") == shown("rack=3") == shown("name=p*") == shown("state=leased,holder=ann*")
    assert [gpu] == shown("cuda") == shown("state=free") == shown("kind!=cpu")
    assert [gpu, cpu] == shown("") == shown(" ") == shown("*")
    with pytest.raises(InvalidRequest, match="'Rack 3', character 1"):
        shown("Rack 3")


def test_filters_match_holders_kinds_and_titles() -> None:
    """Requests match by holder and kind; jobs by title, holder and state."""
    requests = [
        PendingRequest(request_id="1", holder="ann@desk", terms=LeaseTerms(selector="kind=cpu,arch=x86_64")),
        PendingRequest(request_id="2", holder="bob@lab", terms=LeaseTerms(selector="words of a newer tracker")),
    ]
    jobs = [
        JobStatus(name="jobs/1", title="bert.onnx", state=JobState.RUNNING),
        JobStatus(name="jobs/2", title="tiny.onnx", state=JobState.FAILED),
    ]

    assert requests[:1] == arrange(QUEUE, requests, Choice(selector=parse_selector("cpu")))
    assert requests[1:] == arrange(QUEUE, requests, Choice(selector=parse_selector("holder=bob*")))
    assert jobs[:1] == arrange(JOBS, jobs, Choice(selector=parse_selector("title=bert*")))
    assert jobs[1:] == arrange(JOBS, jobs, Choice(selector=parse_selector("state=failed")))


@pytest.mark.parametrize("width", WIDTHS)
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    """Texts are cut; numbers stay whole."""
    fleet = busy_fleet()
    long = DeviceStatus(
        name="devices/a-board-with-a-name-longer-than-a-narrow-terminal-is-wide",
        holder="somebody@a-machine.with.a.long.name.example.org",
        granted_at_sec=NOW_SEC - 3700,
    )
    fleet = replace(fleet, devices=(*fleet.devices, long))
    choices = dict.fromkeys(PANES, Choice())

    sheets = make_sheets(fleet, choices, NOW_SEC, width=width, address="lab:9290")

    for sheet in sheets.values():
        lines = [sheet.header, *(sheet.line(at) for at in range(len(sheet.names)))]
        assert max(line.cell_len for line in lines) <= width
    jobs = [sheets["jobs"].line(at).plain for at in range(2)]
    assert "48/64 (2 bad)" in jobs[0]
    assert ("1 h 01 min" in "".join(sheets["devices"].line(at).plain for at in range(5))) is (width >= 60)


def test_the_header_counts_and_shows_the_order() -> None:
    """The header shows the counts of shown and all rows, the sort column and its direction."""
    fleet = boards(12)

    assert device_sheet(fleet, Choice()).header.plain.startswith("device 12 ")
    some = device_sheet(fleet, Choice(selector=parse_selector("name=pi-1*"), sort_by="temp"))
    assert some.header.plain.startswith("device 3/12 ")
    assert "temp ↓" in some.header.plain
    assert "temp ↑" in device_sheet(fleet, Choice(sort_by="temp", is_turned=True)).header.plain
    assert "device ↑ 12" in device_sheet(fleet, Choice(sort_by="device")).header.plain


def test_an_empty_pane_gives_the_reason() -> None:
    """An empty pane and a filter without a match have different notes."""
    assert "attach one with: fleet agent serve --tracker lab:9290" in device_sheet((), Choice()).note
    none = device_sheet(boards(3), Choice(selector=parse_selector("cuda")))
    assert ("none of 3 matches kind=cuda", ()) == (none.note, none.names)


def test_a_title_is_found_where_it_stands() -> None:
    """A click on a column's title finds its column; beyond the last one there is none."""
    sheet = device_sheet(boards(3), Choice())

    for shape in sheet.shapes:
        x = sheet.header.plain.index(shape.title)
        assert shape.title == sheet.title_at(x)
    assert not sheet.title_at(1000)


def test_a_row_is_found_again_by_its_name() -> None:
    """Each name of a sheet leads to the thing that it is about."""
    fleet = busy_fleet()
    sheets = make_sheets(fleet, dict.fromkeys(PANES, Choice()), NOW_SEC, width=80, address="lab:9290")

    for pane, things in zip(PANES, (fleet.devices, fleet.requests, fleet.bookings, fleet.jobs), strict=True):
        assert list(things) == [find(fleet, pane, name) for name in sheets[pane].names]
    assert find(fleet, "jobs", "jobs/gone") is None


@given(st.integers(0, 200), st.lists(st.integers(0, 2000), min_size=1, max_size=5))
def test_lines_are_shared_fairly(available: int, wanted: list[int]) -> None:
    """Lines are used up as long as a pane wants more; each pane gets all that it wants or at least an equal share."""
    given_lines = share(available, wanted)

    assert sum(given_lines) == min(available, sum(wanted))
    for lines, want in zip(given_lines, wanted, strict=True):
        assert lines <= want
        assert lines >= min(want, available // len(wanted))


def test_twenty_boards_leave_room_for_the_queue_and_the_jobs() -> None:
    """On 80 x 24 the queue and the jobs are shown completely, and devices have the rest."""
    lines, details = lay_out(22, [20, 3, 2])

    assert ([15, 4, 3], 0) == (lines, details)


def test_a_zoomed_pane_gets_the_remaining_space() -> None:
    """The other panes keep their headers."""
    assert [20, 1, 1] == lay_out(22, [1000, 1000, 1000], zoomed=0)[0]


@pytest.mark.parametrize("available", [5, 22, ROOMY_LINES, 38, 60])
def test_details_get_all_lines_or_at_least_half(available: int) -> None:
    """On a terminal with few lines, the details replace the panes."""
    lines, details = lay_out(available, [20, 3, 2], is_detailed=True)

    assert available == sum(lines) + details
    assert details >= available / 2
    assert (sum(lines) == 0) is (available < ROOMY_LINES)
