"""Disturbed measurements are made again, a few times and not for ever."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import pytest

from fleet.artifacts import Artifact
from fleet.measuring import ErrorKind, Measurement, Trial
from fleet.optimizer import repeats
from fleet.optimizer.progress import JobProgress
from fleet.optimizer.repeats import Repeats, find_doubtful

BUSY = "waited 40% of its time for a busy processor"
DRIFT = "reference kernel 1.31 times its usual time"


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeats, "_PAUSES_SEC", (0.0, 0.0))


class ScriptedSeat:
    """Answers each call of `measure` with the next disturbances of each candidate; calm at the end of its script."""

    def __init__(self, *script: dict[str, str]) -> None:
        self._script = list(script)
        self.asked: list[list[str]] = []
        self.artifacts: list[list[str]] = []

    async def measure(
        self, artifacts: Sequence[Artifact], trials: Sequence[Trial]
    ) -> AsyncGenerator[Measurement, None]:
        disturbed = self._script.pop(0) if self._script else {}
        self.asked.append([trial.candidate_id for trial in trials])
        self.artifacts.append([artifact.digest for artifact in artifacts])
        for trial in trials:
            text = disturbed.get(trial.candidate_id, disturbed.get("*", ""))
            yield made(trial.candidate_id, len(self.asked), *([text] if text else []))


def made(candidate_id: str, sec: float = 1.0, *disturbances: str, **readings: Any) -> Measurement:
    provenance: dict[str, object] = {"disturbances": list(disturbances), **readings}
    return Measurement(candidate_id=candidate_id, run_secs=(sec,), provenance=provenance)


async def run(seat: ScriptedSeat, progress: JobProgress, names: str = "abc", times: int = 1) -> list[Measurement]:
    repeating = Repeats(seat, progress)  # type: ignore[arg-type]
    artifacts = [Artifact(path=Path(name), digest=f"sha256:{name}") for name in names]
    trials = [Trial(candidate_id=name, artifact_digest=f"sha256:{name}") for name in names]
    return [result for _ in range(times) async for result in repeating.measure(artifacts, trials)]


async def test_a_calm_batch_is_measured_once() -> None:
    """Nothing is said."""
    seat, progress = ScriptedSeat(), JobProgress()

    results = await run(seat, progress)

    assert [result.candidate_id for result in results] == ["a", "b", "c"]
    assert seat.asked == [["a", "b", "c"]]
    assert progress.repeated == 0


async def test_what_was_disturbed_and_only_that_is_measured_again() -> None:
    """The disturbed time is handed out too, to be stored; the later one counts."""
    notices: list[str] = []
    seat, progress = ScriptedSeat({"b": BUSY}), JobProgress(device_name="devices/pi", notice=notices.append)

    results = await run(seat, progress)

    assert seat.asked == [["a", "b", "c"], ["b"]]
    assert seat.artifacts[1] == ["sha256:b"]
    assert [(result.candidate_id, result.run_secs) for result in results][-1] == ("b", (2,))
    assert progress.repeated == 1
    assert notices == [f"devices/pi is disturbed ({BUSY}): measuring 1 again, and from now on whatever is disturbed"]


async def test_it_gives_a_batch_up_after_two_repeats() -> None:
    """The last times are taken as they are, marked."""
    seat, progress = ScriptedSeat({"*": BUSY}, {"*": BUSY}, {"*": BUSY}, {"*": BUSY}), JobProgress()

    results = await run(seat, progress)

    assert len(seat.asked) == 3
    assert results[-1].disturbances == (BUSY,)
    assert progress.repeated == 6


async def test_a_device_that_stays_busy_is_not_measured_three_times_for_ever() -> None:
    """Two batches in vain, then once each, until one is calm; its user hears of it once."""
    notices: list[str] = []
    busy = [{"*": BUSY}] * 8
    seat, progress = ScriptedSeat(*busy, {}, {"*": BUSY}, {}), JobProgress(notice=notices.append)

    await run(seat, progress, "a", times=7)

    assert len(seat.asked) == 6 + 2 + 1 + 2 + 1
    assert [text for text in notices if "stays disturbed" in text] == [
        f"the device stays disturbed ({BUSY}): its times are kept and marked, and not taken again until it is calm"
    ]


def test_a_failure_is_a_verdict_also_when_it_was_disturbed() -> None:
    """A crash is not measured again."""
    crash = Measurement(candidate_id="a", error=ErrorKind.CRASHED, provenance={"disturbances": [BUSY]})

    assert find_doubtful([crash]) == set()


def test_a_drift_speaks_against_all_since_the_reference_ran_last() -> None:
    """It ran before a and before c, where it had drifted: nobody knows when that began, but not before a."""
    calm, drifted = {"reference_sec": 1.0}, {"reference_sec": 1.31}
    measurements = [
        made("earlier", before={"reference_sec": 0.99}, after={"reference_sec": 0.99}),
        made("a", before=calm, after=calm),
        made("b", before=calm, after=calm),
        made("c", 1.0, DRIFT, before=drifted, after=drifted),
        made("later", before=calm, after=calm),
    ]

    assert find_doubtful(measurements) == {"a", "b", "c"}


def test_a_drift_at_the_end_of_a_batch_speaks_against_its_last_ones() -> None:
    """It ran right after the last."""
    calm = {"reference_sec": 1.0}
    measurements = [
        made("a", before=calm, after=calm),
        made("b", before=calm, after=calm),
        made("c", 1.0, DRIFT, before=calm, after={"reference_sec": 1.31}),
    ]

    assert find_doubtful(measurements) == {"a", "b", "c"}


def test_a_calm_end_leaves_all_as_it_is() -> None:
    """Readings of another moment are no drift."""
    measurements = [made("a", before={"reference_sec": 1.0}, after={"reference_sec": 1.01})]

    assert find_doubtful(measurements) == set()
