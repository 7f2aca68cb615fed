"""Processor time of the page's two largest views: 200 boards, and 2,000 waiting requests, 1,000 of them listed."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

if not __package__:  # run as a file: python benchmarks/web_page.py
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import common
from fleet.domain.devices import DeviceState, DeviceStatus, Inventory, Telemetry
from fleet.domain.leases import LeaseTerms, PendingRequest
from fleet.domain.snapshot import Snapshot
from fleet.domain.waits import Forecast
from fleet.web import views
from fleet.web.pages import Pages
from fleet.web.sessions import Right, Session
from fleet.web.tables import View

_BUDGET_MS = 100.0
_BOARDS, _LISTED, _WAITING = 200, 1000, 2000
_NOW_SEC = 1.8e9


def _board(number: int) -> DeviceStatus:
    return DeviceStatus(
        name=f"devices/pi4-{number}",
        inventory=Inventory(kind="cpu", labels={"rack": str(number % 9)}),
        state=DeviceState.LEASED,
        holder=f"user{number % 30}@lab",
        lease_name=f"leases/{number}",
        granted_at_sec=_NOW_SEC - number,
        telemetry=Telemetry(temp_c=51.5, load_1min=1.0, trials=900, trials_per_min=70.0),
    )


def _request(number: int) -> PendingRequest:
    held = f"devices/pi4-{number % _BOARDS} is held by user{number % 30}@lab for {number} s"
    return PendingRequest(
        request_id=f"{number:032x}",
        holder=f"user{number % 40}@lab",
        terms=LeaseTerms(selector="kind=cpu,rack=3"),
        asked_at_sec=_NOW_SEC - number,
        position=number,
        reason=f"none of {_BOARDS} matching devices is free: {held}",
        forecast=Forecast(from_sec=_NOW_SEC + 5, expected_sec=_NOW_SEC + 60 + number, by_sec=_NOW_SEC + 9000),
    )


def _pages() -> dict[str, Callable[[], bytes]]:
    """Return functions that render the pages anew."""
    snapshot = Snapshot(
        devices=tuple(map(_board, range(_BOARDS))),
        requests=tuple(map(_request, range(_LISTED))),
        request_count=_WAITING,
        taken_at_sec=_NOW_SEC,
    )
    pages, session = Pages("127.0.0.1:9290"), Session(right=Right.ACT, csrf="secret", ends_at_sec=_NOW_SEC)

    def boards() -> bytes:
        grid, counts = views.fleet_grid(snapshot, View(), _NOW_SEC), views.counts(snapshot)
        return whole(pages.part("fleet", grid=grid, is_away=False, counts=counts))

    def queue() -> bytes:
        return whole(pages.part("queue", grid=views.queue_grid(snapshot, View(), _NOW_SEC), is_away=False))

    def whole(live: str) -> bytes:
        return bytes(pages.page("live", session, live=live, title="Fleet", path="/", filter="").body)

    return {"200 boards": boards, "2,000 waiting requests": queue}


def _measure(render: Callable[[], bytes], rounds: int) -> tuple[float, int]:
    """Return the median processor time [ms] and the size [bytes] of a page."""
    size_bytes = len(render())  # also compiles the templates
    times_ms = []
    for _ in range(rounds):
        began_sec = time.process_time()
        render()
        times_ms.append((time.process_time() - began_sec) * 1e3)
    return statistics.median(times_ms), size_bytes


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    options = common.make_parser("web_page", __doc__ or "", rounds=20).parse_args(argv)
    machine = common.machine()
    found = {name: _measure(render, 1 if options.quick else options.rounds or 20) for name, render in _pages().items()}
    rows = [(name, f"{ms:.1f} ms", f"{size_bytes / 1e3:.0f} kB") for name, (ms, size_bytes) in found.items()]
    common.print_table("pages", ("page", "processor time", "size"), rows, common.doubts(machine, quick=options.quick))
    figures = {
        "name": "web_page",
        "unit": "both pages [ms of the processor]",
        "budget": _BUDGET_MS,
        "ours": round(sum(ms for ms, _ in found.values()), 1),
        "page_ms": {name: round(ms, 1) for name, (ms, _) in found.items()},
        "quick": options.quick,
        "machine": machine,
    }
    common.print_json(figures, wanted=options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
