"""One definition of the best time, in all places: the newest undisturbed time of the fastest right candidate."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet.domain.keys import NO_TRACE, trace_digest
from fleet.domain.measuring import ErrorKind, Measurement, Trial
from fleet.domain.scope import RecordScope
from fleet.export.choice import choose
from fleet.library import Library, Record, RecordKind, StoredWorkload
from fleet.optimizer.core import events as ev
from fleet.optimizer.core.candidates import Candidate
from fleet.optimizer.core.job import BASELINE
from fleet.optimizer.recall import recall
from tests.unit.optimizer_core import Script, workload

pytestmark = pytest.mark.slow

SCOPE = RecordScope(target_json='{"kind":"llvm"}', device_model="board", tvm_version="0.27")
DISTURBED = {"disturbances": [{"kind": "contention", "text": "others computed"}]}


class Remembered(Script):
    """A job with a real library for its results."""

    def __init__(self, library: Library) -> None:
        self._library = library
        super().__init__(*recall(library, [workload()], SCOPE), scope=SCOPE)

    def _perform(self, effect: ev.Effect) -> None:
        match effect:
            case ev.Store(measurement=measurement):
                record = Record(
                    workload=effect.candidate.workload,
                    scope=SCOPE,
                    trace_json=effect.candidate.trace_json,
                    run_secs=measurement.run_secs,
                    error=measurement.error,
                    kind=RecordKind.BASELINE if effect.candidate.is_baseline else RecordKind.CANDIDATE,
                    provenance=measurement.provenance,
                    checked=effect.is_checked,
                )
                stored = self._library.add_record(record)
                self.store(ev.Stored(effect, stored.id, float(stored.id)))
            case ev.MarkChecked():
                self._library.mark_checked(effect.record_id)
            case ev.MarkWrong():
                self._library.mark_wrong(effect.record_id, effect.message)
            case _:
                super()._perform(effect)


@pytest.fixture
def library(tmp_path: Path) -> Iterator[Library]:
    with Library.open(tmp_path / "library.sqlite") as opened:
        yield opened


def measured(rng: random.Random, trial: Trial) -> Measurement:
    """A time, or the crash of a candidate; every third time is disturbed, and takes longer."""
    if trial.candidate_id not in ("w", BASELINE) and rng.random() < 0.1:
        return Measurement(candidate_id=trial.candidate_id, error=ErrorKind.CRASHED, signal=11)
    is_disturbed = rng.random() < 0.33
    sec = rng.uniform(1.0, 1.5) * (1.3 if is_disturbed else 1.0)
    return Measurement(
        candidate_id=trial.candidate_id, run_secs=(sec,), provenance=dict(DISTURBED) if is_disturbed else {}
    )


@pytest.mark.parametrize("seed", range(4))
def test_a_job_and_the_library_agree_on_the_best_at_every_moment(library: Library, seed: int) -> None:
    """They agree through repeats, wrong candidates, crashes and run-offs, and for the next job, which begins with known
    records.
    """
    rng = random.Random(seed)
    seen = []
    for number in range(2):
        job = Remembered(library)
        job.answer = lambda _, trial: measured(rng, trial)
        item = job.core.workload("w")
        digests = [f"{number}-{index}" for index in range(12)]
        job.verdicts = dict.fromkeys(rng.sample(digests, 2), ev.Verdict.WRONG)
        steps: list[ev.Event] = [ev.BaselinesWanted(["w"])] if math.isinf(item.untuned_sec) else []
        for start in range(0, 12, 4):
            some = digests[start : start + 4]
            steps += [
                ev.Proposed("w", tuple(Candidate(digest=one, trace_json=f'[["{one}"],[]]') for one in some)),
                ev.BatchWanted("w", some),
            ]
        job.build_baseline()
        for step in [*steps, ev.RunOffWanted("w")]:
            job.run(step)
            best, untuned = library.best("w", SCOPE, checked_only=True), library.baseline("w", SCOPE)
            assert item.best_sec == (best[0].median_sec if best else math.inf)
            assert item.best_trace == (best[0].trace_json if best else None)
            assert item.untuned_sec == (untuned.median_sec if untuned else math.inf)
            seen.append(item.best_sec)

    assert len(set(seen)) > 2


def test_an_export_reports_the_time_of_its_schedules(library: Library) -> None:
    """An export reports times of schedules alone, even if times in the whole model, which are longer, decided."""
    own = workload()
    library.add_workload(StoredWorkload(shash=own.shash, name=own.name, mod_json=own.mod_json))
    fast, chosen = '[["fast"],[]]', '[["chosen"],[]]'
    facts = {"workload": own.shash, "scope": SCOPE, "checked": True}
    compared = {"compared": [trace_digest(fast), trace_digest(chosen)]}
    _, alone, _ = library.add_records(
        [
            Record(**facts, trace_json=fast, run_secs=(1e-6,)),  # type: ignore[arg-type]
            Record(**facts, trace_json=chosen, run_secs=(2e-6,), kind=RecordKind.STATIC),  # type: ignore[arg-type]
            Record(**facts, trace_json=chosen, run_secs=(9e-6,), kind=RecordKind.IN_PLACE, provenance=compared),  # type: ignore[arg-type]
        ]
    )

    choice = choose(library, [own], SCOPE)

    assert choice.traces == {own.shash: chosen}
    assert [(used.uid, used.median_sec) for used in choice.records] == [(alone.uid, 2e-6)]


def test_an_export_has_no_static_schedule_that_failed(library: Library) -> None:
    """A failed static schedule is skipped even without an alternative; an unchecked one is used."""
    failed, tried = workload("failed"), workload("tried")
    for own in (failed, tried):
        library.add_workload(StoredWorkload(shash=own.shash, name=own.name, mod_json=own.mod_json))
        crashed = Record(
            workload=own.shash, scope=SCOPE, trace_json="[[1],[]]", error=ErrorKind.CRASHED, kind=RecordKind.STATIC
        )
        library.add_record(crashed)
    library.add_record(Record(workload=tried.shash, scope=SCOPE, trace_json="[[2],[]]", run_secs=(1e-6,)))

    choice = choose(library, [failed, tried], SCOPE)

    assert choice.traces == {failed.shash: NO_TRACE}
    assert choice.records == ()
