"""Disturbed measurements are made again, a few times, within a budget, and not for ever."""

from __future__ import annotations

from fleet.domain.measuring import Clocks, Disturbance, DisturbanceKind, ErrorKind, Measurement, Trial
from fleet.optimizer.core.events import Measure
from fleet.optimizer.core.progress import JobProgress
from fleet.optimizer.core.repeats import find_doubtful
from tests.unit.optimizer_core import Script

BUSY = Disturbance(DisturbanceKind.CONTENTION, "waited 40% of its time for a busy processor")
DRIFT = Disturbance(DisturbanceKind.REFERENCE_DRIFT, "reference kernel 1.31 times its usual time")


def script(*disturbances: dict[str, Disturbance], total: int = 100, run_sec: float = 0.0) -> Script:
    """A job on a device with these disturbances in each round, and calm afterwards."""

    def answer(number: int, trial: Trial) -> Measurement:
        disturbed = disturbances[number - 1] if number <= len(disturbances) else {}
        found = disturbed.get(trial.candidate_id, disturbed.get("*"))
        return made(trial.candidate_id, number, *([found] if found else []), run_sec=run_sec)

    job = Script(progress=JobProgress(), total=total)
    job.answer = answer
    return job


def made(
    candidate_id: str, sec: float = 1.0, *disturbances: Disturbance, run_sec: float = 0.0, **readings: object
) -> Measurement:
    provenance = {"disturbances": [written(found) for found in disturbances], **readings}
    clocks = Clocks(run_sec=run_sec)
    return Measurement(candidate_id=candidate_id, run_secs=(sec,), provenance=provenance, clocks=clocks)


def written(disturbance: Disturbance) -> dict[str, str]:
    return {"kind": disturbance.kind.value, "text": disturbance.text}


def test_a_calm_batch_is_measured_once() -> None:
    """The user gets no notice."""
    job = script()

    job.propose(*"abc")

    assert job.rounds == [["a", "b", "c"]]
    assert job.notices == []
    assert job.core.progress.repeats.count == 0


def test_only_disturbed_measurements_are_repeated() -> None:
    """The new time counts; the user is notified once."""
    job = script({"b": BUSY})
    job.core.use_device("devices/pi", "a Pi")

    job.propose(*"abc")

    assert job.rounds == [["a", "b", "c"], ["b"]]
    again = job.happened(Measure)[1]
    assert isinstance(again, Measure)
    assert [built.digest for built in again.artifacts] == ["sha256:b"]
    assert [record.run_sec for record in job.core.workload("w").records] == [1, 2, 1]
    assert job.core.progress.repeats.count == 1
    assert job.notices == [
        f"devices/pi is disturbed ({BUSY.text}); disturbed measurements are repeated, for up to 25% of the measuring "
        "time"
    ]


def test_a_disturbed_time_teaches_less_until_there_is_a_calm_one() -> None:
    """Records for the search and the cost model carry the doubt about a time."""
    job = script({"a": BUSY, "b": BUSY}, {"b": BUSY}, {"b": BUSY})

    job.propose(*"abc")

    item = job.core.workload("w")
    assert [False, True, False] == [record.is_disturbed for record in item.records]
    assert {"a": False, "b": True, "c": False} == {record.trace_json: record.is_disturbed for record in item.records}


def test_it_gives_a_batch_up_after_two_repeats() -> None:
    """The last times are kept and marked."""
    job = script({"*": BUSY}, {"*": BUSY}, {"*": BUSY}, {"*": BUSY})

    job.propose(*"abc")

    assert len(job.rounds) == 3
    assert job.core.progress.repeats.count == 6


def test_a_device_that_stays_busy_is_not_measured_three_times_for_ever() -> None:
    """Two batches are repeated without success, then none until one is calm; the user is notified once."""
    job = script(*[{"*": BUSY}] * 8, {}, {"*": BUSY}, {})

    for name in "abcdefg":
        job.propose(name)

    assert len(job.rounds) == 6 + 2 + 1 + 2 + 1
    assert [text for text in job.notices if "stays disturbed" in text] == [
        f"the device stays disturbed ({BUSY.text}); its times are kept, with a note, and no longer repeated until a "
        "batch is undisturbed"
    ]


def test_repeats_have_a_budget() -> None:
    """Eight trials were measured a hundred times on a machine that was busy now and then; now repeats may add a
    quarter.
    """
    job = script(*[{"*": BUSY}, {}] * 20, total=8, run_sec=1.0)

    for first in (0, 4):
        job.propose(*map(str, range(first, first + 4)))

    repeats = job.core.progress.repeats
    assert [len(names) for names in job.rounds] == [4, 2, 4]
    assert (repeats.count, repeats.device_sec, repeats.budget_sec) == (2, 2.0, 2.0)
    assert repeats.is_spent
    assert [text for text in job.notices if "their limit" in text] == [
        f"the device is still disturbed ({BUSY.text}), and repeated measurements have reached their limit of 25% of "
        "the measuring time; later disturbed times are kept, with a note"
    ]


def test_the_fastest_are_repeated_first() -> None:
    """The budget goes to the best candidates."""
    job = script({"*": BUSY}, total=4, run_sec=1.0)
    plain = job.answer
    job.answer = lambda number, trial: made(
        trial.candidate_id, 9 - int(trial.candidate_id), *plain(number, trial).disturbances, run_sec=1.0
    )

    job.propose(*"0123")

    assert job.rounds == [["0", "1", "2", "3"], ["3"]]


def test_a_failure_is_a_verdict_also_when_it_was_disturbed() -> None:
    """A crash is not measured again."""
    crash = Measurement(candidate_id="a", error=ErrorKind.CRASHED, provenance={"disturbances": [written(BUSY)]})

    assert find_doubtful([crash]) == set()


def test_a_drift_speaks_against_all_since_the_reference_ran_last() -> None:
    """The reference kernel ran before a, and before c, when it had drifted: a, b and c are in doubt."""
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
    """The reference ran right after the last measurement."""
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
