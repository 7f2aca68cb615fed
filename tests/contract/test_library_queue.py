"""The contract of the job queue, on SQLite and on PostgreSQL: one optimizer for a job, one job for a candidate."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar

import pytest
import sqlalchemy as sa

from fleet.domain.measuring import ErrorKind
from fleet.domain.scope import RecordScope
from fleet.errors import InvalidRequest, LibraryError, NotFound
from fleet.library import JobState, Library, Record, Standing, StoredWorkload, schema
from fleet.library.engine import database_url
from fleet.library.queue import CLAIM_SEC, claim_end
from fleet.testing import eventually_sync
from tests.programs import here

T = TypeVar("T")

SCOPE = RecordScope(target_json='{"kind":"llvm"}', device_model="pi4", tvm_version="0.27.0")
PI5 = RecordScope(target_json='{"kind":"llvm"}', device_model="pi5", tvm_version="0.27.0")
TRACES = {f"d{number}": f"[[{number}],[]]" for number in range(4)}


@pytest.fixture
def library(url: str) -> Iterator[Library]:
    with Library.open(url) as library:
        library.add_workload(StoredWorkload(shash="1", name="w", mod_json="{}"))
        yield library


def submitted(library: Library, title: str = "a", priority: int = 0, tracker: str = "") -> str:
    return library.queue.submit(title=title, spec={"tracker": tracker}, priority=priority).name


def taken(library: Library, optimizer: str) -> str:
    job = library.queue.take(optimizer)
    assert job is not None
    return job.name


def expire(url: str, name: str) -> None:
    """Expire a job's claim, as if its optimizer had been silent for long."""
    engine = sa.create_engine(database_url(url))
    with engine.begin() as connection:
        owner = sa.select(schema.jobs.c.id).where(schema.jobs.c.name == name).scalar_subquery()
        past = datetime.now(UTC) - timedelta(seconds=1)
        orders = schema.job_orders
        connection.execute(orders.update().where(orders.c.job_id == owner).values(claimed_until=past))
    engine.dispose()


@contextmanager
def meanwhile(url: str, call: Callable[[], T]) -> Iterator[tuple[sa.Connection, Future[T]]]:
    """Yield a transaction that has changed all jobs, and a call that waits for it."""
    engine = sa.create_engine(database_url(url))
    with ThreadPoolExecutor(1) as pool, engine.begin() as connection:
        connection.execute(schema.jobs.update().values(message="changes"))
        called = pool.submit(call)
        waiting = sa.text("SELECT count(*) FROM pg_locks WHERE NOT granted")
        eventually_sync(lambda: connection.scalar(waiting) or called.done())
        yield connection, called
    engine.dispose()


def record(number: int, job: str, scope: RecordScope = SCOPE, error: ErrorKind | None = None) -> Record:
    secs = () if error else (1e-3,)
    return Record(workload="1", scope=scope, trace_json=f"[[{number}],[]]", run_secs=secs, error=error, job_name=job)


def digests(library: Library, count: int) -> dict[str, str]:
    """Traces by the digests of their records."""
    from fleet.library import trace_digest

    return {trace_digest(f"[[{number}],[]]"): f"[[{number}],[]]" for number in range(count)}


def test_the_most_urgent_job_goes_first_then_the_oldest(library: Library) -> None:
    """A job waits until it is taken, and stores its optimizer."""
    names = [submitted(library, title, priority) for title, priority in (("a", 0), ("b", 10), ("c", 0))]
    assert [library.queue.get(name).state for name in names] == [JobState.QUEUED] * 3

    order = [taken(library, "o") for _ in range(3)]

    assert order == [names[1], names[0], names[2]]
    assert library.queue.take("o") is None
    job = library.queue.get(names[0])
    assert (job.state, job.optimizer, job.is_queued) == (JobState.RUNNING, "o", True)


def test_an_optimizer_claims_jobs_of_its_fleet_and_of_no_fleet(library: Library) -> None:
    """A job for another tracker stays for that tracker's optimizers."""
    names = [submitted(library, tracker=tracker) for tracker in ("there:1", "here:1", "")]

    found = [library.queue.take("o", tracker="here:1") for _ in range(3)]

    assert [job.name if job else None for job in found] == [names[1], names[2], None]


def test_a_fleet_is_identified_by_its_trackers_name_not_address(library: Library) -> None:
    """One tracker has many addresses, and 127.0.0.1 is another one on each machine, so the tracker's own name
    decides.
    """
    specs = [
        {"tracker": address, "fleet_id": fleet_id} for address, fleet_id in (("a:1", "f"), ("b:1", "g"), ("b:1", ""))
    ]
    names = [library.queue.submit(title="m", spec=spec).name for spec in specs]

    found = [library.queue.take("o", tracker="b:1", fleet_id="f") for _ in range(3)]

    assert [job.name if job else None for job in found] == [names[0], names[2], None]


@pytest.mark.slow
def test_of_many_optimizers_one_gets_each_job(library: Library) -> None:
    """Each job goes to one optimizer even if many ask at the same time."""
    names = {submitted(library) for _ in range(6)}

    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda n: library.queue.take(f"o{n}"), range(6)))

    assert {job.name for job in found if job} == names


def test_an_expired_claim_goes_to_the_next_optimizer(library: Library, url: str) -> None:
    """The first optimizer learns of the loss at its next renewal, and can neither report on the job nor end it."""
    name = submitted(library)
    assert taken(library, "first") == name
    assert library.queue.renew("first", [name]) == {name: Standing.KEPT}

    expire(url, name)
    assert taken(library, "second") == name

    assert library.queue.renew("first", [name]) == {name: Standing.LOST}
    library.queue.tell(name, "first", {"kinds": []})
    assert not library.queue.end(name, "first", JobState.FAILED, message="no")
    job = library.queue.get(name)
    assert (job.state, job.optimizer, job.progress) == (JobState.RUNNING, "second", None)
    assert library.queue.end(name, "second", JobState.FINISHED, report={"reports": []})
    assert library.queue.get(name).report == {"reports": []}


@pytest.mark.slow
def test_a_renewal_and_the_end_of_a_job_do_not_wait_for_each_other(url_of_postgres: str) -> None:
    """Each locks the job before its order; of two that wait for each other, PostgreSQL ends one."""
    with Library.open(url_of_postgres) as library:
        name = submitted(library)
        assert taken(library, "o") == name
        with meanwhile(url_of_postgres, lambda: library.queue.renew("o", [name])) as (ending, renewal):
            ending.execute(schema.job_orders.update().values(report={"reports": []}))

        assert renewal.result() == {name: Standing.KEPT}


@pytest.mark.slow
def test_a_job_that_was_just_claimed_anew_is_not_taken_for_abandoned(url_of_postgres: str) -> None:
    """Of several optimizers that race for an expired claim, the second waits for the first, and finds the job taken."""
    with Library.open(url_of_postgres) as library:
        name = submitted(library)
        assert taken(library, "first") == name
        expire(url_of_postgres, name)
        with meanwhile(url_of_postgres, lambda: library.queue.take("third")) as (taking, third):
            taking.execute(schema.job_orders.update().values(optimizer="second", claimed_until=claim_end()))

        assert third.result() is None
        assert library.queue.renew("second", [name]) == {name: Standing.KEPT}


@pytest.mark.slow
def test_a_job_that_is_cancelled_while_it_goes_back_into_the_queue_is_cancelled(url_of_postgres: str) -> None:
    """Its former optimizer is gone, so no other process would see the request to stop."""
    with Library.open(url_of_postgres) as library:
        name = submitted(library)
        assert taken(library, "first") == name
        with meanwhile(url_of_postgres, lambda: library.queue.cancel(name)) as (interrupting, cancelled):
            interrupting.execute(schema.jobs.update().values(state=JobState.QUEUED.value))
            interrupting.execute(schema.job_orders.update().values(optimizer="", is_stop_asked=False))

        assert cancelled.result().state is JobState.CANCELLED


@pytest.mark.slow
def test_the_job_of_a_killed_optimizer_waits_for_the_next(library: Library, url: str) -> None:
    """On one machine its end is seen at once, without waiting for the claim to expire."""
    name = submitted(library)
    code = f"""
import os, signal
from fleet.library import Library
assert Library.open({url!r}).queue.take("killed") is not None
os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", code], env=here(), check=False)
    assert library.queue.renew("somebody else", [name]) == {name: Standing.LOST}

    assert taken(library, "next") == name


def test_a_waiting_job_is_cancelled_at_once_and_a_running_one_is_asked_to_stop(library: Library) -> None:
    """Either may be resumed, and is taken again; a finished one may be neither cancelled nor resumed."""
    waiting, running = submitted(library), submitted(library, priority=1)
    assert taken(library, "o") == running

    assert library.queue.cancel(waiting).state is JobState.CANCELLED
    assert library.queue.cancel(running).is_stop_asked
    assert library.queue.renew("o", [running]) == {running: Standing.STOP_ASKED}
    assert library.queue.end(running, "o", JobState.CANCELLED)

    assert library.queue.resume(running).state is JobState.QUEUED
    assert taken(library, "o") == running
    assert library.queue.renew("o", [running]) == {running: Standing.KEPT}
    library.queue.end(running, "o", JobState.FINISHED)
    for refused in (library.queue.cancel, library.queue.resume):
        with pytest.raises(InvalidRequest, match=running):
            refused(running)
    with pytest.raises(NotFound):
        library.queue.cancel("jobs/none")


@pytest.mark.parametrize("how", ["fell silent", "was stopped"])
def test_a_job_that_was_asked_to_stop_is_cancelled_although_its_optimizer_goes_away(
    library: Library, url: str, how: str
) -> None:
    """No other optimizer runs it; its user may resume it."""
    name = submitted(library)
    assert taken(library, "first") == name
    library.queue.cancel(name)

    if how == "fell silent":
        expire(url, name)
    else:
        assert library.queue.end(name, "first", JobState.QUEUED, message="it waits for another")

    assert library.queue.take("second") is None
    job = library.queue.get(name)
    assert (job.state, job.message, job.is_stop_asked) == (JobState.CANCELLED, "cancelled", False)
    assert job.ended_at is not None
    library.queue.resume(name)
    assert taken(library, "second") == name


def test_a_job_of_this_process_cannot_be_cancelled_or_resumed_from_elsewhere(library: Library) -> None:
    """It belongs to the user of that command; the error says so."""
    job = library.start_job(title="own")

    with pytest.raises(InvalidRequest, match="fleet tune"):
        library.queue.cancel(job.name)
    library.finish_job(job.name, JobState.INTERRUPTED)
    with pytest.raises(InvalidRequest, match="the same command"):
        library.queue.resume(job.name)


def test_records_of_a_reverted_job_are_kept_but_unused(library: Library) -> None:
    """Neither the best nor the trials of a workload count them, and other jobs may measure them, until it is undone."""
    kept, reverted = (library.start_job(title=title).name for title in "ab")
    library.add_records([record(0, kept), record(1, reverted), record(2, reverted)])
    with pytest.raises(InvalidRequest, match="cancel it first"):
        library.queue.revert(kept)
    library.finish_job(reverted, JobState.FINISHED)

    assert library.queue.revert(reverted).reverted_at is not None
    assert [entry.job_name for entry in library.best("1", SCOPE, k=9)] == [kept]
    assert library.trial_counts(["1"], SCOPE) == {"1": 1}
    assert library.queue.get(reverted).trials_done == 2
    assert len(library.records()) == 1
    assert len(library.records(job_name=reverted, with_reverted=True)) == 2
    measured = digests(library, 3)
    assert library.claims.take(kept, "1", SCOPE, measured) == set(list(measured)[1:])

    assert library.queue.revert(reverted, is_undone=True).reverted_at is None
    assert len(library.best("1", SCOPE, k=9)) == 3


def test_a_reverted_job_is_not_resumed_before_that_is_undone(library: Library) -> None:
    """It would begin anew, and its new records would count although it is marked as reverted."""
    name = submitted(library)
    assert taken(library, "o") == name
    library.add_record(record(0, name))
    library.queue.end(name, "o", JobState.CANCELLED)
    library.queue.revert(name)

    with pytest.raises(InvalidRequest, match="is reverted"):
        library.queue.resume(name)
    library.queue.revert(name, is_undone=True)

    assert library.queue.resume(name).state is JobState.QUEUED


def test_a_candidate_is_one_jobs_at_a_time(library: Library) -> None:
    """A job does not get another job's claims, gets its own again, and devices have separate claims."""
    first, second = (library.start_job(title=title, optimizer=title).name for title in "ab")
    some = dict(list(TRACES.items())[:2])

    assert library.claims.take(first, "1", SCOPE, some) == {"d0", "d1"}
    assert library.claims.take(second, "1", SCOPE, TRACES) == {"d2", "d3"}
    assert library.claims.take(first, "1", SCOPE, TRACES) == {"d0", "d1"}
    assert library.claims.take(second, "1", PI5, some) == {"d0", "d1"}


@pytest.mark.parametrize("state", [JobState.FINISHED, JobState.INTERRUPTED])
def test_a_job_that_ended_in_its_own_process_keeps_no_claims(library: Library, state: JobState) -> None:
    """It is continued only from its records; its claims once kept a second copy of all traces."""
    job = library.start_job(title="own", optimizer="o").name
    library.claims.take(job, "1", SCOPE, TRACES)
    assert library.claims.in_flight(job, SCOPE) == {"1": TRACES}

    library.finish_job(job, state)

    assert library.claims.in_flight(job, SCOPE) == {}


@pytest.mark.slow
def test_concurrent_claims_are_disjoint(library: Library) -> None:
    """Every candidate goes to exactly one."""
    names = [library.start_job(title=str(n), optimizer=str(n)).name for n in range(4)]

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda name: library.claims.take(name, "1", SCOPE, TRACES), names))

    assert sorted(digest for granted in found for digest in granted) == sorted(TRACES)


@pytest.mark.parametrize("how", ["expired", "ended"])
def test_the_claims_of_a_job_that_runs_no_more_are_free(library: Library, url: str, how: str) -> None:
    """Its optimizer fell silent, or the job was stopped."""
    first, second = (library.start_job(title=title, optimizer=title).name for title in "ab")
    library.claims.take(first, "1", SCOPE, TRACES)

    if how == "expired":
        expire(url, first)
    else:
        library.finish_job(first, JobState.FAILED)

    assert library.claims.take(second, "1", SCOPE, TRACES) == set(TRACES)


def test_a_candidate_with_a_record_is_not_claimed_unless_it_never_ran(library: Library) -> None:
    """A lost lease is no result of the candidate."""
    job, other = (library.start_job(title=title, optimizer=title).name for title in "ab")
    library.add_records([record(0, other), record(1, other, error=ErrorKind.LEASE_ENDED)])
    traces = digests(library, 3)

    assert library.claims.take(job, "1", SCOPE, traces) == set(list(traces)[1:])


@pytest.mark.parametrize(("error", "is_held_back"), [(ErrorKind.CRASHED, True), (ErrorKind.TIMEOUT, False)])
def test_a_candidate_that_broke_one_device_is_not_sent_to_another(
    library: Library, error: ErrorKind, is_held_back: bool
) -> None:
    """A crash elsewhere holds the candidate back; one that was only slow there may be fast here."""
    job = library.start_job(title="a", optimizer="a").name
    library.add_record(record(0, job, PI5, error))

    found = library.claims.take(job, "1", SCOPE, digests(library, 1))

    assert bool(found) is not is_held_back


def test_a_continued_job_gets_the_unfinished_candidates(library: Library) -> None:
    """Claimed candidates without a record are listed with their traces, for each workload."""
    job = library.start_job(title="a", optimizer="a").name
    traces = digests(library, 3)
    library.claims.take(job, "1", SCOPE, traces)
    library.add_record(record(1, job))

    left = {digest: trace for digest, trace in traces.items() if trace != "[[1],[]]"}
    assert library.claims.in_flight(job, SCOPE) == {"1": left}
    assert library.claims.in_flight(job, PI5) == {}


def test_jobs_share_a_workload_from_their_first_claim_until_they_leave(library: Library) -> None:
    """In another scope, and once a job has ended or left, a workload is not shared."""
    first, second, ended = (library.start_job(title=title, optimizer=title).name for title in "abc")
    for number, name in enumerate((first, second, ended)):
        library.claims.take(name, "1", SCOPE, {f"d{number}": f"[[{number}],[]]"})
    assert library.claims.sharers(first, "1", SCOPE) == {second, ended}
    assert library.claims.sharers(first, "1", PI5) == frozenset()

    library.finish_job(ended, JobState.FAILED)
    assert library.claims.sharers(first, "1", SCOPE) == {second}
    library.claims.leave(second, ["1"], PI5)
    assert library.claims.sharers(first, "1", SCOPE) == {second}
    library.claims.leave(second, ["1"], SCOPE)
    assert library.claims.sharers(first, "1", SCOPE) == frozenset()


def test_a_job_is_charged_its_part_of_shared_trials(library: Library) -> None:
    """Of trials of its own, and of those of another job that name it; nothing of another scope, or of a stranger's."""
    first, second, third = (library.start_job(title=title, optimizer=title).name for title in "abc")
    for name in (first, second):
        library.add_job_workloads(name, {"1": 1.0})
    made: list[tuple[str, RecordScope, dict[str, object]]] = [
        (first, SCOPE, {"device_sec": 1.0}),
        (first, SCOPE, {"device_sec": 2.0, "shared_with": [second]}),
        (second, SCOPE, {"device_sec": 4.0, "shared_with": [first]}),
        (second, SCOPE, {"device_sec": 8.0}),
        (second, PI5, {"device_sec": 16.0, "shared_with": [first]}),
        (third, SCOPE, {"device_sec": "much", "shared_with": first}),
    ]
    stored = library.add_records(
        replace(record(number, job, scope), provenance=provenance)
        for number, (job, scope, provenance) in enumerate(made)
    )

    assert library.claims.charges(first, SCOPE).device_sec == 1.0 + 1.0 + 2.0
    assert library.claims.charges(second, SCOPE).device_sec == 1.0 + 2.0 + 8.0
    assert library.claims.charges(first, PI5).device_sec == 8.0
    assert library.claims.charges(third, SCOPE).device_sec == 0.0
    later = library.claims.charges(first, SCOPE, after=stored[1].id)
    assert later.device_sec == 2.0
    assert library.claims.charges(first, SCOPE, after=later.newest).device_sec == 0.0


def test_optimizers_are_known_while_they_are_alive(library: Library) -> None:
    """Optimizers are listed until they leave."""
    name = library.queue.register(tracker="here:1", holder="me@here")
    library.queue.alive(name)
    assert [(item.name, item.tracker) for item in library.queue.optimizers()] == [(name, "here:1")]

    library.queue.leave(name)
    assert library.queue.optimizers() == []


def test_an_optimizer_that_was_cut_off_comes_back(library: Library, url: str) -> None:
    """An optimizer that registers meanwhile does not remove the other from the list for good."""
    name = library.queue.register(tracker="here:1", holder="me@here")
    engine = sa.create_engine(database_url(url))
    with engine.begin() as connection:
        past = datetime.now(UTC) - timedelta(minutes=1)
        connection.execute(schema.optimizers.update().values(alive_until=past))
    engine.dispose()
    other = library.queue.register(tracker="here:1", holder="me@here")
    assert [item.name for item in library.queue.optimizers()] == [other]

    library.queue.alive(name)

    assert [item.name for item in library.queue.optimizers()] == [name, other]


@pytest.mark.parametrize("content", [b"", bytes(range(256)) * (5 << 12) + b"end"], ids=["empty", "large"])
def test_a_models_file_comes_out_as_it_went_in(library: Library, tmp_path: Path, content: bytes) -> None:
    """Files of any size come back, even empty ones, which folders of models contain; equal files are stored once."""
    (tmp_path / "in").write_bytes(content)

    first, again = (library.model_files.add(tmp_path / "in") for _ in range(2))
    library.model_files.write(first, tmp_path / "out")

    assert first == again
    assert (tmp_path / "out").read_bytes() == content
    with pytest.raises(NotFound, match="submit the model again"):
        library.model_files.write("sha256:none", tmp_path / "none")
    with pytest.raises(LibraryError):
        library.model_files.add(tmp_path / "missing")


def test_others_write_while_a_large_file_is_stored(library: Library, tmp_path: Path) -> None:
    """Each part is a transaction, so that they wait for one part, and not for gigabytes."""
    commits: list[sa.Connection] = []
    note = commits.append  # the very object that is removed again
    (tmp_path / "in").write_bytes(bytes(9 << 20))
    sa.event.listen(sa.Engine, "commit", note)
    try:
        library.model_files.add(tmp_path / "in")
    finally:
        sa.event.remove(sa.Engine, "commit", note)

    assert sum(connection.get_execution_options().get("is_write", False) for connection in commits) == 3


def test_a_killed_upload_is_completed_by_the_next_upload(library: Library, url: str, tmp_path: Path) -> None:
    """The next upload of the file adds any missing part."""
    content = bytes(range(256)) * (5 << 12)
    (tmp_path / "in").write_bytes(content)
    digest = library.model_files.add(tmp_path / "in")
    engine = sa.create_engine(database_url(url))
    with engine.begin() as connection:
        connection.execute(schema.model_parts.delete().where(schema.model_parts.c.part == 1))
    engine.dispose()

    library.model_files.add(tmp_path / "in")

    library.model_files.write(digest, tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == content


def test_a_claim_outlives_the_pause_between_two_renewals() -> None:
    """Many times over, so that a busy machine loses no job."""
    from fleet.jobs.claim import RENEW_SEC

    assert CLAIM_SEC >= 20 * RENEW_SEC


def test_jobs_are_chosen_by_all_their_tags(library: Library) -> None:
    """Tags are kept sorted and once, of submitted jobs and of others."""
    waiting = library.queue.submit(title="a", spec={}, tags=["b", "a", "b"])
    started = library.start_job(title="b", tags=["b"])

    assert (waiting.tags, started.tags) == (("a", "b"), ("b",))
    assert [job.name for job in library.jobs(tags=["b"])] == [started.name, waiting.name]
    assert [job.name for job in library.jobs(tags=["a", "b"])] == [waiting.name]
    assert library.jobs(tags=["c"]) == []
