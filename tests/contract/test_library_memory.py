"""Learning data of a library, on SQLite and on PostgreSQL."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from fleet.cost_model.feature_codec import FEATURE_VERSION, NO_PROGRAM, pack_program, unpack_rows
from fleet.domain.keys import NO_TRACE, trace_digest
from fleet.domain.measuring import ErrorKind
from fleet.domain.scope import RecordScope
from fleet.domain.workload import Workload
from fleet.errors import InvalidRequest
from fleet.library import Library, Record, RecordKind, RecordProgram, StoredWorkload
from fleet.model_schedules import without_static
from fleet.optimizer.recall import recall
from fleet.optimizer.records_of_others import RecordsOfOthers

SCOPE = RecordScope(target_json='{"kind":"llvm"}', device_model="m", tvm_version="0.27")
OTHER_BOARD = replace(SCOPE, device_model="other")
OTHER_TARGET = replace(SCOPE, target_json='{"kind":"llvm","mcpu":"other"}')
WORKLOAD = Workload(name="w", weight=1, mod_json="{}", shash="1", flop=1.0, args=())
ROWS = np.array([[1.0, 0.5, 26.02], [0.0, 3.25, 1.0]], np.float32)
PROGRAM = pack_program(17, ROWS)
DISTURBED = {"disturbances": [{"kind": "THROTTLED", "text": "hot"}]}


@pytest.fixture
def library(url: str) -> Iterator[Library]:
    with Library.open(url) as library:
        library.add_workload(StoredWorkload(shash="1", name="w", mod_json="{}"))
        yield library


def record(number: int, sec: float | None = 1.0, **facts: object) -> Record:
    """A record of candidate `number`; no time means that it crashed."""
    given: dict[str, object] = {
        "workload": "1",
        "scope": SCOPE,
        "trace_json": f"[[{number}],[]]",
        "run_secs": () if sec is None else (sec,),
        "error": ErrorKind.CRASHED if sec is None else None,
        "program": PROGRAM,
    }
    return Record(**(given | facts))  # type: ignore[arg-type]


def static(number: int, error: ErrorKind | None = None, scope: RecordScope = SCOPE) -> Record:
    """Such records are reported until they have features. The newest come first within the limit; features of
    another version count as missing, candidates that never ran do not.
    """
    return record(number, 1.0 if error is None else None, kind=RecordKind.STATIC, error=error, scope=scope)


def numbers(found: list[Record]) -> list[str]:
    return [entry.trace_json for entry in found]


def test_a_record_keeps_its_program(library: Library) -> None:
    """The hash and the features are found by the trace, within the requested scope."""
    library.add_record(record(1))
    library.add_record(record(2, program=None))

    found = library.memory.programs("1", SCOPE, feature_version=FEATURE_VERSION)

    assert found == {trace_digest("[[1],[]]"): PROGRAM}
    assert found[trace_digest("[[1],[]]")].program_hash == "0000000000000011"
    np.testing.assert_array_equal(unpack_rows(PROGRAM.stores), ROWS.astype(np.float16))
    assert library.memory.programs("1", replace(SCOPE, device_model="other"), feature_version=FEATURE_VERSION) == {}
    assert library.memory.programs("1", SCOPE, feature_version="another") == {}


def test_a_continued_job_gets_the_program_hashes_of_its_records(library: Library) -> None:
    """A continued job reads program hashes instead of replaying traces, and the marks of doubtful times."""
    library.add_record(record(1))
    library.add_record(record(2, program=None, provenance=DISTURBED))
    library.add_record(record(3, None, program=None, error=ErrorKind.BUILD_FAILED))

    [progress] = recall(library, [WORKLOAD], SCOPE)

    found = {item.trace_json: (item.program, item.is_disturbed) for item in progress.records}
    assert found == {"[[1],[]]": (17, False), "[[2],[]]": (None, True), "[[3],[]]": (None, False)}


def test_a_continued_job_gets_the_candidates_that_crashed_a_device(library: Library) -> None:
    """Candidates that could not be built, or were too slow, do not count."""
    library.add_record(record(1, None, kind=RecordKind.STATIC))
    library.add_record(record(2, None, error=ErrorKind.DEVICE_FAULTED))
    library.add_records([record(3), record(4, None, error=ErrorKind.TIMEOUT)])
    library.add_record(record(5, None, scope=OTHER_BOARD))

    [progress] = recall(library, [WORKLOAD], SCOPE)

    assert progress.poison == {trace_digest(f"[[{number}],[]]") for number in (1, 2, 5)}


@pytest.mark.parametrize(
    ("stored", "has_failed"),
    [
        pytest.param([], False, id="none"),
        pytest.param([static(1)], False, id="right"),
        pytest.param([static(1, ErrorKind.CRASHED)], True, id="crashed"),
        pytest.param([static(1, ErrorKind.WRONG_OUTPUT)], True, id="wrong"),
        pytest.param([static(1, ErrorKind.BUILD_FAILED)], True, id="not built"),
        pytest.param([static(1, ErrorKind.LEASE_ENDED)], False, id="not run"),
        pytest.param([static(1, ErrorKind.DEVICE_FAULTED)], False, id="the device was lost"),
        pytest.param([static(1, ErrorKind.CRASHED), static(2)], False, id="a newer one is right"),
        pytest.param([static(1), static(2, ErrorKind.TIMEOUT)], True, id="the newest counts"),
        pytest.param([static(1, ErrorKind.CRASHED), static(1, ErrorKind.LEASE_ENDED)], True, id="not run since"),
        pytest.param([static(1, ErrorKind.CRASHED, OTHER_BOARD)], True, id="crashed on another board"),
        pytest.param([static(1, ErrorKind.TIMEOUT, OTHER_BOARD)], False, id="slow on another board"),
        pytest.param(
            [static(1, ErrorKind.CRASHED, OTHER_BOARD), static(1)], False, id="crashed on another board alone"
        ),
        pytest.param([static(1, ErrorKind.CRASHED, OTHER_TARGET)], False, id="crashed on something else"),
        pytest.param([record(1, None)], False, id="a candidate"),
    ],
)
def test_models_do_without_a_static_schedule_that_failed(
    library: Library, stored: list[Record], has_failed: bool
) -> None:
    """It may have failed here, or crashed on another board of the same target."""
    for each in stored:
        library.add_record(each)

    assert without_static(library, [WORKLOAD], SCOPE) == ({"1": NO_TRACE} if has_failed else {})


def test_records_without_features_are_found_until_they_have_them(library: Library) -> None:
    """The newest come first within the limit; features of another version count as missing, candidates that never ran
    do not.
    """
    library.add_records([record(number, program=None) for number in range(3)])
    library.add_record(record(3, program=replace(PROGRAM, feature_version="older")))
    library.add_record(record(4))
    library.add_record(record(5, None, program=None, error=ErrorKind.BUILD_FAILED))
    memory = library.memory

    newest = memory.without_features(FEATURE_VERSION, limit=2)
    memory.add_programs({entry.id: NO_PROGRAM for entry in newest})
    rest = memory.without_features(FEATURE_VERSION, workload="1", within=SCOPE, limit=9)
    memory.add_programs({entry.id: PROGRAM for entry in rest})

    assert numbers(newest) == ["[[2],[]]", "[[3],[]]"]
    assert numbers(rest) == ["[[0],[]]", "[[1],[]]"]
    assert memory.without_features(FEATURE_VERSION, limit=9) == []
    assert len(memory.programs("1", feature_version=FEATURE_VERSION)) == 5


def test_samples_are_one_a_candidate_by_the_time_that_counts(library: Library) -> None:
    """A calm time stands, a disturbed one only where there is no other; failures count, wrong candidates do not."""
    library.add_records([record(1, 1.0), record(1, 2.0, provenance=DISTURBED), record(2, 3.0, provenance=DISTURBED)])
    library.add_records([record(3, None), record(4, 4.0), record(5, 5.0, kind=RecordKind.STATIC)])
    library.add_record(record(6, 6.0, kind=RecordKind.BASELINE))
    wrong = library.add_record(record(7, 7.0))
    library.mark_wrong(wrong.id)

    found = library.memory.samples(FEATURE_VERSION, limit=100)

    assert [(sample.run_sec, sample.is_disturbed) for sample in found] == [
        (1.0, False),
        (3.0, True),
        (math.inf, False),
        (4.0, False),
        (5.0, False),
    ]
    assert {(sample.workload, sample.device_model) for sample in found} == {("1", "m")}
    assert [sample.run_sec for sample in library.memory.samples(FEATURE_VERSION, limit=2)] == [4.0, 5.0]


@pytest.mark.parametrize("model", ["virtual", "emulated Pi 4", "Pi 4 (simulated)"])
def test_simulated_times_are_not_learnt_from(library: Library, model: str) -> None:
    """Simulated devices are recognized by their facts, or by their name if the library has no facts."""
    library.memory.note_device("virtual", {"is_simulated": True})
    library.memory.note_device("m", {"is_simulated": False, "core_count": 4})
    library.add_record(record(1, 1.0, scope=replace(SCOPE, device_model=model)))
    library.add_record(record(2, 2.0))

    assert [sample.run_sec for sample in library.memory.samples(FEATURE_VERSION, limit=9)] == [2.0]
    assert library.memory.device_facts()["m"] == {"is_simulated": False, "core_count": 4}


def test_the_newest_facts_of_a_device_stay(library: Library) -> None:
    """One row a model, however many records."""
    library.memory.note_device("m", {"core_count": 4})
    library.memory.note_device("m", {"core_count": 8})

    assert library.memory.device_facts() == {"m": {"core_count": 8}}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 70_000.0])
def test_features_that_are_no_numbers_are_refused(value: float) -> None:
    """A model that learns from one NaN predicts only NaN."""
    with pytest.raises(InvalidRequest, match="not finite, or beyond half floats"):
        pack_program(1, np.array([[1.0, value]], np.float32))


@pytest.mark.parametrize("stores", [b"", b"\x02\x00", PROGRAM.stores[:-5], PROGRAM.stores[:4] + b"nonsense"])
def test_damaged_features_are_refused(stores: bytes) -> None:
    """They are reported as such, whatever is damaged."""
    with pytest.raises(InvalidRequest, match="stored features cannot be read"):
        unpack_rows(stores)


@pytest.mark.parametrize("sec", [math.nan, math.inf, -1.0, 1e7, 3e10])
def test_absurd_times_are_refused(library: Library, sec: float) -> None:
    """No kernel runs for months; nothing of the batch is stored."""
    with pytest.raises(InvalidRequest, match="impossible times"):
        library.add_records([record(1), record(2, sec)])

    assert library.records() == []


def test_a_schedule_that_does_not_apply_has_no_rows() -> None:
    """This is stored, so that its features are not computed again."""
    assert unpack_rows(NO_PROGRAM.stores).shape == (0, 0)
    assert RecordProgram(feature_version=FEATURE_VERSION, stores=NO_PROGRAM.stores) == NO_PROGRAM


def test_records_of_other_jobs_are_found_after_a_record(library: Library) -> None:
    """Only newer trials of the scope by other jobs, with their programs where these are known."""
    job, other = (library.start_job(title=title).name for title in ("mine", "theirs"))
    newest = library.add_record(record(1, job_name=other)).id
    library.add_record(record(2, job_name=job))
    library.add_record(record(3, job_name=other, program=None))
    library.add_record(record(4, scope=OTHER_BOARD, job_name=other))
    library.add_record(static(5))
    library.add_record(record(6))

    assert library.newest_record() > newest
    found = library.memory.observations_after(
        newest, workloads=["1"], within=SCOPE, except_job=job, feature_version=FEATURE_VERSION
    )

    assert [(entry.trace_json, entry.program, entry.stores) for entry in found] == [
        ("[[3],[]]", None, b""),
        ("[[6],[]]", 17, PROGRAM.stores),
    ]


def test_news_of_other_jobs_include_their_best_and_their_refuted_candidates(library: Library) -> None:
    """Records from between the reading of the library and the first look are among them; damaged features cost nothing
    but the features.
    """
    job, other = (library.start_job(title=title).name for title in ("mine", "theirs"))
    others = RecordsOfOthers(library=library, job_name=job, scope=SCOPE, workloads=["1"], first=library.newest_record())
    right, wrong, damaged = library.add_records(
        [
            record(1, 2.0, job_name=other),
            record(2, 1.0, job_name=other),
            record(3, 3.0, job_name=other, program=replace(PROGRAM, stores=b"no features")),
        ]
    )
    library.mark_checked(right.id)
    library.mark_checked(damaged.id)

    first = others.read()["1"]
    library.mark_wrong(wrong.id)
    library.add_record(record(4, 4.0, job_name=other))
    second = others.read()["1"]

    assert [(one.run_sec, one.has_features) for one in first.observations] == [(2.0, True), (1.0, True), (3.0, False)]
    assert first.right == {"[[1],[]]": 2.0, "[[3],[]]": 3.0}
    assert [one.run_sec for one in second.observations] == [4.0]
    assert second.refuted == {"[[2],[]]"}
    assert others.read() == {}
