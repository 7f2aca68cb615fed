"""Measures again what was disturbed, a few times and not for ever.

The agent says with every time what speaks against it. A disturbed time is stored like any other; then the candidate is
measured again after a pause, and the newest time of a candidate is what counts, here as in the library. On a machine
that stays busy this ends: after some batches in vain the times are taken as they are, marked, until one is calm.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing

from fleet.artifacts import Artifact
from fleet.measuring import Measurement, Trial
from fleet.optimizer.progress import JobProgress
from fleet.optimizer.seat import Seat

_PAUSES_SEC = (0.2, 1.0)
"""Before each repeat: what disturbs is often over in a moment."""

_VAIN_BATCHES = 2
"""Batches in a row that stayed disturbed in spite of all repeats, after which no more are tried."""

_DRIFT = "reference kernel"
"""How a disturbance by a drift begins."""


class Repeats:
    """Measures trials of one job."""

    def __init__(self, seat: Seat, progress: JobProgress) -> None:
        self._seat = seat
        self._progress = progress
        self._vain_batches = 0

    async def measure(
        self, artifacts: Sequence[Artifact], trials: Sequence[Trial]
    ) -> AsyncGenerator[Measurement, None]:
        """Measure all trials, in order, and then those again that were disturbed. The last measurement of each counts.

        Raises:
            DeviceUnreachable: as Seat.measure.
        """
        seen: list[Measurement] = []
        async with aclosing(self._seat.measure(artifacts, trials)) as measurements:
            async for measurement in measurements:
                seen.append(measurement)
                yield measurement
        for pause_sec in _PAUSES_SEC:
            doubtful = find_doubtful(seen)
            if not doubtful:
                self._vain_batches = 0
                return
            if self._vain_batches >= _VAIN_BATCHES:
                return
            trials = [trial for trial in trials if trial.candidate_id in doubtful]
            self._tell(seen, len(trials))
            await asyncio.sleep(pause_sec)
            seen.clear()
            wanted = {trial.artifact_digest for trial in trials}
            again = [artifact for artifact in artifacts if artifact.digest in wanted]
            async with aclosing(self._seat.measure(again, trials)) as measurements:
                async for measurement in measurements:
                    seen.append(measurement)
                    self._progress.repeated += 1
                    yield measurement
        self._note_end(seen)

    @property
    def _device(self) -> str:
        return self._progress.device_name or "the device"

    def _tell(self, seen: Iterable[Measurement], count: int) -> None:
        self._progress.say(f"measuring {count} again: {main_disturbance(seen)}")
        if not self._progress.repeated:
            self._progress.notice(
                f"{self._device} is disturbed ({main_disturbance(seen)}): measuring {count} again, and from now on "
                "whatever is disturbed"
            )

    def _note_end(self, seen: Sequence[Measurement]) -> None:
        if not find_doubtful(seen):
            self._vain_batches = 0
            return
        self._vain_batches += 1
        if self._vain_batches == _VAIN_BATCHES:
            self._progress.notice(
                f"{self._device} stays disturbed ({main_disturbance(seen)}): its times are kept and marked, and not "
                "taken again until it is calm"
            )


def find_doubtful(measurements: Iterable[Measurement]) -> set[str]:
    """Return the candidates whose times something speaks against, of measurements in the order in which they were made.

    A drift of the reference kernel speaks against all that was measured since it ran last: nobody knows when it began.
    """
    doubtful: set[str] = set()
    since: list[str] = []
    latest = None
    for measurement in measurements:
        before, after = (_reference_sec(measurement, when) for when in ("before", "after"))
        has_drifted = any(text.startswith(_DRIFT) for text in measurement.disturbances)
        if before != latest:  # it ran right before this one
            doubtful.update(since if has_drifted else ())
            since.clear()
        if measurement.error is None:
            since.append(measurement.candidate_id)
            doubtful.update([measurement.candidate_id] if measurement.disturbances else ())
        if after != before:  # it ran right after this one
            doubtful.update(since if has_drifted else ())
            since.clear()
        latest = after
    return doubtful


def main_disturbance(measurements: Iterable[Measurement]) -> str:
    """Return what disturbed most of them, in words."""
    counts = Counter(text for measurement in measurements for text in measurement.disturbances)
    return max(counts, key=lambda text: counts[text], default="no reason given")


def _reference_sec(measurement: Measurement, when: str) -> object:
    readings = measurement.provenance.get(when)
    return readings.get("reference_sec") if isinstance(readings, Mapping) else None
