"""The contract of every library, on SQLite and on PostgreSQL."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fleet.domain.measuring import ErrorKind
from fleet.errors import InvalidRequest, LibraryError, NotFound
from fleet.library import JobState, Library, ModelRun, RecordKind, StoredWorkload, schema
from fleet.library.engine import database_url
from tests.contract.library_records import MATMUL, SCOPE, numbers, record
from tests.contract.library_records import library as library
from tests.programs import here


def test_a_reopened_library_has_the_same_content(url: str) -> None:
    """Everything stored is unchanged after closing and opening."""
    new = record(
        1,
        run_secs=(0.1 + 0.2, 1e-9, 3.0),
        device_name="devices/pi4-03",
        device_fingerprint="f00",
        artifact_digest="sha256:12",
        provenance={"before": {"temp_c": 51.5, "note": "\x00é"}, "spread": math.inf},
        checked=True,
        created_at=datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC),
        uid="u1",
    )
    with Library.open(url) as library:
        library.add_workload(MATMUL)
        job = library.start_job(title="m", conditions={"trials": 64, "shape": [1, 2]}, tuner="evolutionary")
        stored = library.add_record(replace(new, job_name=job.name, program=None))

    with Library.open(url) as library:
        [found] = library.records(MATMUL.shash)
        again = library.job(job.name).job
        workload = library.workload(MATMUL.shash)

    assert found == stored
    assert found == replace(new, job_name=job.name, program=None, id=found.id, trace_digest=found.trace_digest)
    assert workload == MATMUL
    assert (again.conditions, again.tuner, again.trials_done) == ({"trials": 64, "shape": [1, 2]}, "evolutionary", 1)


def test_a_repeated_store_keeps_one_record(library: Library) -> None:
    """A writer that lost the answer may store the same uid again and gets the first record."""
    first = library.add_record(record(1, 1e-3, uid="u1"))
    second = library.add_record(record(1, 9e-3, uid="u1"))

    assert first == second
    assert len(library.records()) == 1


def test_records_are_stored_all_or_none(library: Library) -> None:
    """One impossible record in a batch leaves the others out too."""
    with pytest.raises(NotFound, match="99"):
        library.add_records([record(1), record(2, workload="99")])
    with pytest.raises(InvalidRequest, match="neither"):
        library.add_records([record(1), record(2, run_secs=())])
    with pytest.raises(InvalidRequest, match="nan"):
        library.add_record(record(1, math.nan))
    with pytest.raises(NotFound, match="jobs/none"):
        library.add_record(record(1, job_name="jobs/none"))

    assert library.records() == []


def test_the_limit_keeps_the_newest(library: Library) -> None:
    """`records` is oldest first, and a limit drops the oldest."""
    library.add_records([record(number) for number in range(5)])

    assert numbers(library.records(limit=2)) == [3, 4]
    assert numbers(library.records(with_errors=False)) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("is_together", [False, True])
def test_a_workload_is_kept_once_and_completed(library: Library, is_together: bool) -> None:
    """Adding a known hash keeps the first name and program, and fills in missing fields."""
    known = [
        StoredWorkload(shash="18", name="first", mod_json="{}"),
        StoredWorkload(shash="18", name="second", mod_json="[]", flop=7.0, args=MATMUL.args),
        StoredWorkload(shash="18", name="third", mod_json="[]", flop=8.0),
    ]
    for workloads in [known] if is_together else [[one] for one in known]:
        library.add_workloads(workloads)

    expected = StoredWorkload(shash="18", name="first", mod_json="{}", flop=7.0, args=MATMUL.args)
    assert library.workload("18") == expected
    assert [w.name for w in library.find_workloads("f*")] == ["first"]
    assert [w.name for w in library.find_workloads("18")] == ["first"]


def test_a_workload_is_found_by_the_operator_in_its_program(library: Library) -> None:
    """The program is read where the name says nothing."""
    block = [{"type": "s_tir.SBlock", "data": {"name_hint": 1}}, {"data": "T_matmul_NN"}]
    args = (*MATMUL.args[:1] * 2, MATMUL.args[1])
    library.add_workload(replace(MATMUL, shash="19", name="main", mod_json=json.dumps({"nodes": block}), args=args))

    assert [w.shash for w in library.find_workloads("matmul 64*")] == ["19"]
    assert [(w.shash, w.name) for w in library.outlines()] == [("17", "matmul"), ("19", "main")]


def test_a_job_summary_has_its_workloads_trials_and_errors(library: Library) -> None:
    """The summary has the job's own workloads in their order, with their trials, errors, best and baseline."""
    library.add_workload(StoredWorkload(shash="18", name="conv", mod_json="{}"))
    job = library.start_job(title="squeezenet", trials_total=64)
    library.add_job_workloads(job.name, {"18": 3.0, MATMUL.shash: 1.0})
    library.add_job_workloads(job.name, {"18": 4.0})
    library.add_records([record(1, 2e-3), record(2, None), record(3, 4e-3, kind=RecordKind.BASELINE)])
    library.add_records(
        [
            record(4, 3e-3, job_name=job.name),
            record(5, None, job_name=job.name),
            record(6, 9e-3, kind=RecordKind.BASELINE, job_name=job.name),
        ]
    )
    library.add_model_run(ModelRun(job_name=job.name, untuned_ms=270.0, tuned_ms=9.0, max_abs_error=1e-6))

    summary = library.job(job.name)

    assert (summary.job.trials_done, summary.job.trials_failed, summary.job.trials_total) == (2, 1, 64)
    library.mark_checked(library.add_record(record(7, 4e-3, job_name=job.name)).id)
    (_, compared) = library.job(job.name).workloads
    assert compared.best_sec == 4e-3, "a fast one may be wrong: one that was checked counts first"
    conv, matmul = summary.workloads
    assert (conv.workload.name, conv.weight, conv.trials, conv.best_sec) == ("conv", 4.0, 0, None)
    assert (matmul.trials, dict(matmul.errors)) == (2, {ErrorKind.CRASHED: 1})
    assert (matmul.untuned_sec, matmul.best_sec) == (9e-3, 3e-3)
    assert summary.model_runs[0].tuned_ms == 9.0
    assert summary.model_runs[0].onnxruntime_ms is None


def test_a_continued_job_reports_the_best_of_both_jobs(library: Library) -> None:
    """Its trials are its own; its best is that of both jobs, as its user was shown, without later records."""
    first, other = library.start_job(title="w"), replace(SCOPE, tvm_version="0.1")
    library.add_job_workloads(first.name, {MATMUL.shash: 1.0})
    library.add_records(
        [
            record(1, 2e-3, job_name=first.name),
            record(2, 9e-3, kind=RecordKind.BASELINE, job_name=first.name),
            replace(record(3, 1e-3), scope=other),
        ]
    )
    second = library.start_job(title="w")
    library.add_job_workloads(second.name, {MATMUL.shash: 1.0})
    (nothing_yet,) = library.job(second.name).workloads
    library.add_record(record(4, 3e-3, job_name=second.name))
    library.add_record(record(5, 1e-3))

    (summary,) = library.job(second.name).workloads

    assert (nothing_yet.trials, nothing_yet.best_sec) == (0, None)
    assert (summary.trials, summary.untuned_sec, summary.best_sec) == (1, 9e-3, 2e-3)


def test_a_writable_library_is_reported(library: Library) -> None:
    """The check precedes long work, so that its results can be stored; it changes nothing."""
    job = library.start_job(title="m")

    library.check_writable()

    assert library.jobs() == [job]


def test_a_job_ends_once_named_and_may_be_ended_again(library: Library) -> None:
    """Its state, message, end and report are kept; RUNNING is no end; unknown jobs are NotFound."""
    job = library.start_job(title="m", holder="me@here")
    assert (job.state, job.pid, job.ended_at) == (JobState.RUNNING, os.getpid(), None)

    failed = library.finish_job(job.name, JobState.FAILED, "no device\x00", report={"reports": [{"trials": 1}]})

    assert (failed.state, failed.message) == (JobState.FAILED, "no device")
    assert library.finish_job(job.name, JobState.FAILED).report == {"reports": [{"trials": 1}]}
    assert failed.ended_at is not None
    assert failed.ended_at - failed.started_at < timedelta(minutes=5)
    assert failed.started_at.tzinfo is not None
    with pytest.raises(InvalidRequest):
        library.finish_job(job.name, JobState.RUNNING)
    for call in (library.job, lambda name: library.finish_job(name, JobState.FINISHED)):
        with pytest.raises(NotFound, match="jobs/none"):
            call("jobs/none")


def test_unknown_records_are_not_found(library: Library) -> None:
    """Marking an unknown record raises an error."""
    for mark in (library.mark_checked, library.mark_wrong):
        with pytest.raises(NotFound, match="4711"):
            mark(4711)


def test_the_newest_jobs_come_first(library: Library) -> None:
    """`jobs` lists newest first, up to a limit."""
    names = [library.start_job(title=str(number)).name for number in range(3)]

    assert [job.name for job in library.jobs(limit=2)] == [names[2], names[1]]


@pytest.mark.slow
def test_a_killed_process_leaves_its_job_interrupted(url: str) -> None:
    """kill -9 leaves every committed record, and a job that reads as INTERRUPTED, ended at its last sign of life."""
    code = f"""
import time
from tests.contract.library_records import MATMUL, record
from fleet.library import Library
library = Library.open({url!r})
library.add_workload(MATMUL)
job = library.start_job(title="m")
for number in range(1_000_000):
    library.add_record(record(number, job_name=job.name))
    print(number, flush=True)
"""
    process = subprocess.Popen([sys.executable, "-c", code], env=here(), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    acknowledged = [int(process.stdout.readline()) for _ in range(50)]
    process.send_signal(signal.SIGKILL)
    acknowledged += [int(line) for line in process.stdout.read().splitlines() if line]
    process.wait()
    process.stdout.close()

    with Library.open(url) as library:
        [job] = library.jobs()
        stored = numbers(library.records(job_name=job.name))

    assert set(acknowledged) <= set(stored)
    assert (job.state, job.ended_at) == (JobState.INTERRUPTED, job.touched_at)
    assert job.touched_at > job.started_at


@pytest.mark.slow
def test_two_processes_write_at_once_without_loss(url: str) -> None:
    """Two writers that even create the library together store 250 records each."""
    code = f"""
import sys
from tests.contract.library_records import MATMUL, record
from fleet.library import Library
sys.stdin.readline()
with Library.open({url!r}) as library:
    library.add_workload(MATMUL)
    for number in range(250):
        library.add_record(record(number, device_name=sys.argv[1]))
"""
    writers = [
        subprocess.Popen([sys.executable, "-c", code, name], env=here(), stdin=subprocess.PIPE, text=True)
        for name in ("a", "b")
    ]
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.close()
    assert [writer.wait(100) for writer in writers] == [0, 0]

    with Library.open(url) as library:
        found = library.records()
    for name in ("a", "b"):
        assert numbers([entry for entry in found if entry.device_name == name]) == list(range(250))


def test_threads_share_a_library(library: Library) -> None:
    """Calls from several threads at once all arrive."""
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: library.add_record(record(number)), range(40)))

    assert sorted(numbers(library.records())) == list(range(40))


@pytest.mark.slow
def test_jobs_may_add_the_same_workloads_in_any_order(url_of_postgres: str) -> None:
    """Two jobs of one model begin at once with different parts of it, and neither is refused."""
    both_have_one = threading.Barrier(2)
    first, second = MATMUL, replace(MATMUL, shash="18")

    def in_turn(*workloads: StoredWorkload) -> Iterator[StoredWorkload]:
        yield workloads[0]
        with contextlib.suppress(threading.BrokenBarrierError):  # the other waits until this one is done
            both_have_one.wait(1.0)
        yield workloads[1]

    with Library.open(url_of_postgres) as library, ThreadPoolExecutor(2) as pool:
        orders = in_turn(first, second), in_turn(second, first)
        list(pool.map(library.add_workloads, orders))

        assert {workload.shash for workload in library.find_workloads()} == {"17", "18"}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25, deadline=None)
@given(text=st.text(st.characters(exclude_categories=()), max_size=20), key=st.text(max_size=5))
def test_any_text_can_be_stored(library: Library, text: str, key: str) -> None:
    """Whatever bytes a crash or a file name holds, the record is stored; only zero bytes and surrogates are changed."""
    job = library.start_job(title=text, holder=text)
    scope = replace(SCOPE, device_model=text)
    new = record(1, None, error_message=text, scope=scope, provenance={key: key}, job_name=job.name)

    stored = library.add_record(new)

    assert stored.error_message == text.replace("\0", "").encode("utf-8", "replace").decode()
    assert stored.provenance == {key: key}


def test_another_schema_version_is_refused(url: str) -> None:
    """The error for a library of another version names the version and the remedy."""
    with Library.open(url) as library:
        library.add_workload(MATMUL)
    engine = sa.create_engine(database_url(url))
    with engine.begin() as connection:
        connection.execute(schema.library.update().values(schema_version=99))
    engine.dispose()

    with pytest.raises(LibraryError, match=r"version 99.*newer tvm-fleet"):
        Library.open(url)


def test_a_foreign_database_is_refused(url: str) -> None:
    """Tables of another program are left unchanged."""
    engine = sa.create_engine(database_url(url))
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE jobs (x INTEGER)"))
    engine.dispose()

    with pytest.raises(LibraryError, match="another program"):
        Library.open(url)
