"""An observer of the tracker that logs grants, ends of leases, plans of bookings and demands to give way.

The tracker finds it by the entry point that `install` writes, its log's path in CHAOS_TRACKER_LOG, and the state
directory with its term in CHAOS_TRACKER_STATE. A kill can cut off the last lines of a tracker's life, which its journal
has.
"""

from __future__ import annotations

import os
from pathlib import Path

from fleet.tracker.core import events as ev
from fleet.tracker.core.records import Changes
from fleet.tracker.observers import GROUP, Observer
from fleet.tracker.replica.standing import read_standing
from tests.chaos.history import Log, What

LOG, STATE = "CHAOS_TRACKER_LOG", "CHAOS_TRACKER_STATE"


def install(folder: Path) -> None:
    """Write the distribution with the entry point into a folder, to be put on PYTHONPATH."""
    distribution = folder / "chaos_observer-1.dist-info"
    distribution.mkdir(parents=True)
    (distribution / "METADATA").write_text("Metadata-Version: 2.1\nName: chaos-observer\nVersion: 1\n")
    (distribution / "entry_points.txt").write_text(f"[{GROUP}]\nchaos = {__name__}:TrackerLog\n")


def purpose(holder: str, size: int) -> str:
    """Return the purpose of a request, which tells the size of its set."""
    return f"{holder} {size}"


def tracker_log() -> Log:
    """Open the log of the tracker in this process."""
    path = Path(os.environ[LOG])
    return Log(path, path.stem)


class TrackerLog(Observer):
    """Writes a line for each effect that the checker needs."""

    def __init__(self) -> None:
        self._log = tracker_log()
        self._log.write(What.OPENED, term=read_standing(Path(os.environ[STATE])).term)

    def on_change(self, changes: Changes) -> None:
        """Write a line for each changed booking, and for each device with another lease."""
        for name, device in changes.leases.items():
            lease = device.lease if device is not None else None
            self._log.write(What.HOLDS, device=name, lease=lease.name if lease is not None else "")
        for name, entry in changes.bookings.items():
            self._log.write(
                What.BOOKED,
                booking=name,
                names=[device for device in entry.device_names if device] if entry else [],
                starts_at_sec=entry.starts_at_sec if entry else 0.0,
                ends_at_sec=entry.ends_at_sec if entry else 0.0,
            )

    def on_effect(self, effect: ev.Effect) -> None:
        """Write the line."""
        match effect:
            case ev.Granted(is_repeat=False):
                lease = effect.lease
                self._log.write(
                    What.GRANTED,
                    device=lease.device_name,
                    lease=lease.name,
                    epoch=lease.epoch,
                    run=f"{lease.client_id}/{lease.request_id}",
                    account=lease.account,
                    lease_class=lease.terms.lease_class,
                    booking=lease.terms.booking,
                    starts_at_sec=lease.granted_at_sec,
                    ends_at_sec=lease.ends_at_sec,
                    lasts_sec=lease.expires_at_sec - lease.granted_at_sec,
                    of_set=f"{lease.client_id}/{effect.set_id}" if effect.set_id else "",
                    number=int(lease.terms.purpose.rsplit(" ", 1)[-1]) if effect.set_id else 1,
                )
            case ev.LeaseEnded(lease=lease) if lease is not None:
                self._log.write(What.OVER, device=lease.device_name, lease=lease.name, text=effect.end)
            case ev.YieldWanted(wanted=wanted):
                request = "/".join(wanted.request_key) if wanted.request_key is not None else ""
                self._log.write(What.DEMANDED, lease=wanted.lease_name, run=request)
            case ev.Queued(request=request):
                self._log.write(What.QUEUED, run="/".join(request.key))
