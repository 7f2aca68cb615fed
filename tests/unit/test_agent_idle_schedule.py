"""Times of the reference kernel on an idle device."""

from __future__ import annotations

import math

from device_agents.measuring.idle_schedule import EACH_SEC, SERIES_SEC, IdleSchedule
from fleet.tracker.core.siblings import LASTING_SEC


def runs_until(schedule: IdleSchedule, start_sec: float, end_sec: float) -> list[float]:
    """Return the times of runs, looked for every 10 s."""
    found = []
    for step in range(int((end_sec - start_sec) / 10.0) + 1):
        now_sec = start_sec + 10.0 * step
        if schedule.is_due(now_sec):
            schedule.note_run()
            found.append(now_sec)
    return found


def test_each_occasion_has_a_series_over_half_an_hour() -> None:
    """The next series begins after six idle hours."""
    schedule = IdleSchedule()
    schedule.begin(0.0)

    found = runs_until(schedule, 0.0, EACH_SEC + 3_600.0)

    assert found == [*SERIES_SEC, *(EACH_SEC + sec for sec in SERIES_SEC)]
    assert SERIES_SEC[-1] - SERIES_SEC[0] > LASTING_SEC


def test_no_run_is_due_before_an_occasion_or_under_a_lease() -> None:
    schedule = IdleSchedule()
    assert not schedule.is_due(1e9)
    schedule.begin(0.0)
    schedule.lease()

    assert not schedule.is_due(math.inf)


def test_a_device_is_idle_for_six_hours_before_the_next_run() -> None:
    schedule = IdleSchedule()
    schedule.begin(0.0)
    schedule.lease()
    schedule.release(100.0)

    assert runs_until(schedule, 100.0, 100.0 + EACH_SEC + 20.0) == [100.0 + EACH_SEC + SERIES_SEC[0]]


def test_an_occasion_under_a_lease_has_its_series_after_the_lease() -> None:
    """A fault that ended, or a tracker that came back."""
    schedule = IdleSchedule()
    schedule.lease()
    schedule.begin(50.0)
    assert not schedule.is_due(80.0)

    schedule.release(100.0)

    assert runs_until(schedule, 100.0, 1_000.0) == [100.0 + sec for sec in SERIES_SEC[:2]]
