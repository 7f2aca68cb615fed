"""Draws the documentation's picture of `fleet status`: a lab that is made up, in the application itself.

    python scripts/status_picture.py [FILE]

Without a file, docs/how-to/fleet-status.svg. Run it after a change of the application, and look at the picture.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import NoReturn

from rich.console import RenderableType

from fleet.dashboard.app import FleetApp
from fleet.domain.bookings import Booking
from fleet.domain.devices import DeviceState, DeviceStatus, Telemetry
from fleet.domain.jobs import JobStatus
from fleet.domain.leases import Lease, LeaseTerms, PendingRequest
from fleet.domain.snapshot import Snapshot
from fleet.domain.waits import Forecast
from fleet.errors import NotFound

PICTURE = Path(__file__).parents[1] / "docs/how-to/fleet-status.svg"
SIZE = (100, 22)
"""Columns and lines of the terminal."""

_NOW_SEC = 1_800_000_000.0
_FETCHED_FONT = re.compile(r"@font-face \{.*?\}\s*", flags=re.DOTALL)
"""Nothing of the documentation is fetched from elsewhere: a reader's own fixed font will do."""


def leased(name: str, holder: str, held_min: float, trials_per_min: float, temp_c: float) -> DeviceStatus:
    return DeviceStatus(
        name=f"devices/{name}",
        state=DeviceState.LEASED,
        lease_name=f"leases/{name}",
        holder=holder,
        granted_at_sec=_NOW_SEC - held_min * 60,
        telemetry=Telemetry(trials=900, trials_per_min=trials_per_min, temp_c=temp_c),
    )


def free(name: str, temp_c: float) -> DeviceStatus:
    return DeviceStatus(name=f"devices/{name}", state=DeviceState.AVAILABLE, telemetry=Telemetry(temp_c=temp_c))


LAB = Snapshot(
    tracker_version="0.1.0",
    started_at_sec=_NOW_SEC - 3.47 * 86_400,
    taken_at_sec=_NOW_SEC,
    grant_count=1207,
    request_count=2,
    devices=(
        leased("lab1-cpu", "bob@lab", 5, 412, 66),
        free("lab1-cuda0", 38),
        leased("pi4-1", "ann@desk", 10, 38, 61),
        leased("pi4-2", "ann@desk", 10, 37, 63),
        leased("pi4-3", "bob@lab", 1, 41, 58),
        DeviceStatus(
            name="devices/pi4-4",
            state=DeviceState.FAULTED,
            reason="the reference kernel takes 31 % longer than it did: something slows this board down",
        ),
        free("pi4-5", 44),
        DeviceStatus(name="devices/pi4-6", reason="its agent is not attached"),
        free("pi4-10", 43),
        leased("zynq-1", "cy@lab", 66, 12, 52),
        free("zynq-2", 49),
    ),
    requests=(
        PendingRequest(
            request_id="1",
            holder="dora@ci",
            terms=LeaseTerms(selector="kind=raspberry_pi,rack=3"),
            asked_at_sec=_NOW_SEC - 40,
            reason="pi4-1 and pi4-2 are held by ann@desk for 10 min",
            forecast=Forecast(from_sec=_NOW_SEC + 90, expected_sec=_NOW_SEC + 200, by_sec=_NOW_SEC + 500),
        ),
        PendingRequest(
            request_id="2",
            holder="bob@lab",
            terms=LeaseTerms(selector="name=zynq-1"),
            asked_at_sec=_NOW_SEC - 12,
            position=1,
            reason="zynq-1 is held by cy@lab for 1 h 06 min",
            forecast=Forecast(from_sec=_NOW_SEC + 600, expected_sec=_NOW_SEC + 1_500, by_sec=_NOW_SEC + 4_000),
        ),
    ),
    jobs=(
        JobStatus(
            name="jobs/2",
            title="bert-base.onnx",
            trials_done=1480,
            trials_total=4096,
            trials_failed=31,
            best_us=21_400,
            untuned_us=237_500,
            activity="measuring matmul 384x768x768",
        ),
        JobStatus(
            name="jobs/1",
            title="squeezenet.onnx",
            trials_done=880,
            trials_total=1024,
            trials_failed=2,
            best_us=31_800,
            untuned_us=413_400,
            activity="measuring conv2d 3x3 16x54x54",
        ),
    ),
)


class OneMoment:
    """A tracker that shows one snapshot for ever. It is looked at, and asked for nothing."""

    address = "tracker.lab:9290"
    holder = "ann@desk"
    is_connected = True

    async def watch(self, min_interval_sec: float = 1.0) -> AsyncGenerator[Snapshot, None]:
        yield LAB
        await asyncio.Event().wait()

    async def history(self, device_name: str) -> list[Telemetry]:
        return []

    async def revoke(self, lease_name: str, reason: str = "") -> Lease:
        raise NotFound(lease_name)

    async def cancel_request(self, request_id: str, reason: str = "") -> PendingRequest:
        raise NotFound(request_id)

    async def cancel_booking(self, name: str) -> Booking:
        raise NotFound(name)

    def watch_bookings(self, on_change: Callable[[Booking], object]) -> None:
        """Do nothing: nothing changes."""


class NoJobs:
    """A library without the jobs."""

    def look(self, job_name: str, width: int) -> RenderableType:
        return ""

    def cancel(self, job_name: str) -> NoReturn:
        raise NotFound(job_name)


async def draw() -> str:
    """Return the screen as SVG once it shows the lab."""
    app = FleetApp(OneMoment(), NoJobs())
    async with asyncio.timeout(30), app.run_test(size=SIZE) as pilot:
        while LAB.jobs[-1].title not in (picture := app.export_screenshot(title="fleet status")):
            await pilot.pause(0.1)
    return _FETCHED_FONT.sub("", picture)


def main(path: Path) -> None:
    path.write_text(asyncio.run(draw()))
    print(f"wrote {path}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURE)
