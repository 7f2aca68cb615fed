"""Build and measuring behind records, and records carried to another TVM version, on SQLite and on PostgreSQL."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from fleet.artifacts.artifact import Artifact
from fleet.domain.environment import environment_digest
from fleet.domain.making import Making, evaluator_facts
from fleet.domain.measuring import Evaluator
from fleet.domain.proving import Proof, ProofVerdict
from fleet.errors import NotFound
from fleet.library import JobState, Library, Record, RecordProgram, schema
from fleet.library.migrations import migrate
from tests.contract.library_records import MATMUL, SCOPE, numbers, record
from tests.contract.library_records import library as library
from tests.contract.test_library_migrations import connected

MADE = Making(object_digest="sha256:1", version="1.0", evaluator={"repeat": 3})
TODAY = Making(object_digest="sha256:1", version="2.0")
NEW = replace(SCOPE, tvm_version="0.28.0")
DAY = datetime(2026, 5, 1, tzinfo=UTC)


def add(library: Library, number: int = 1, **facts: object) -> Record:
    return library.add_record(record(number, making=MADE, created_at=DAY, checked=True, **facts))


def best(library: Library) -> list[int]:
    return numbers(library.best(MATMUL.shash, NEW, k=9, checked_only=True))


def test_a_record_keeps_its_first_making(library: Library) -> None:
    """Records from before have none, and a repeated store changes nothing."""
    first = add(library, uid="1")
    library.add_record(record(1, uid="1", making=TODAY))
    other = library.add_record(record(2))

    assert library.makings([first.id, other.id]) == {first.id: MADE}
    assert evaluator_facts(Evaluator(repeat=3)) == {"repeat": 3}


def test_a_carried_record_counts_for_the_other_version(library: Library) -> None:
    """It has the times, date, environment, features and proof of its original, which stays."""
    environment = {"kernel": "6.1"}
    program = RecordProgram(program_hash="ff", feature_version="v", stores=b"s")
    old = add(library, environment=environment, program=program, device_name="devices/a")
    library.add_proof(
        MATMUL.shash, SCOPE, old.trace_json, Proof(verdict=ProofVerdict.PROVEN, claimed_sec=1e-3, least_sec=1e-4)
    )

    new = library.carry(old.id, NEW.tvm_version, TODAY)

    assert new is not None
    assert (new.scope, new.run_secs, new.created_at, new.checked) == (NEW, old.run_secs, DAY, True)
    assert new.is_proven
    assert library.makings([new.id]) == {new.id: replace(TODAY, evaluator=MADE.evaluator)}
    assert library.carried() == {new.id: old.id}
    assert [time.environment for time in library.kept_times([NEW])] == [environment_digest(environment)]
    assert library.memory.programs(MATMUL.shash, NEW, feature_version="v").keys() == {old.trace_digest}
    assert (best(library), numbers(library.best(MATMUL.shash, SCOPE))) == ([1], [1])


def test_a_candidate_with_a_record_is_not_carried(library: Library) -> None:
    """A measurement by that version counts, also a failed one; a second carrying changes nothing."""
    first, second = add(library, 1), add(library, 2)
    library.add_record(record(1, None, scope=NEW))

    assert library.carry(first.id, NEW.tvm_version, TODAY) is None
    assert library.carry(second.id, NEW.tvm_version, TODAY) is not None
    assert library.carry(second.id, NEW.tvm_version, TODAY) is None
    assert best(library) == [2]
    with pytest.raises(NotFound):
        library.carry(9999, NEW.tvm_version, TODAY)


def test_a_record_is_carried_on_from_its_copy(library: Library) -> None:
    """The copy of a copy names the measured record, and goes with its job."""
    job = library.start_job(title="t")
    old = add(library, job_name=job.name)
    middle = library.carry(old.id, NEW.tvm_version, TODAY)
    assert middle is not None
    newest = library.carry(middle.id, "0.29.0", TODAY)
    assert newest is not None
    assert library.carried() == {middle.id: old.id, newest.id: old.id}

    library.finish_job(job.name, JobState.FINISHED)
    library.queue.revert(job.name)

    assert best(library) == []
    assert library.records(MATMUL.shash) == []


def test_a_carried_doubtful_time_stays_doubtful(library: Library) -> None:
    """Carrying takes no doubt away."""
    old = add(library, provenance={"disturbances": ["throttled"]})

    library.carry(old.id, NEW.tvm_version, TODAY)

    assert [time.is_disturbed for time in library.kept_times([NEW])] == [True]


def test_artifacts_of_the_best_records_are_kept(library: Library, tmp_path: Path) -> None:
    """Those of records that are no longer the best go; a carried record has that of its original."""
    first, second = add(library, 1), add(library, 2)
    made, out = Artifact.of_file(_file(tmp_path / "1.so")), tmp_path / "out"
    out.mkdir()
    library.keep_artifacts({first.id: made}, [first.id])
    copy = library.carry(first.id, NEW.tvm_version, TODAY)
    assert copy is not None

    found = library.write_artifacts([first.id, second.id, copy.id], out)
    assert {name: artifact.digest for name, artifact in found.items()} == {
        first.id: made.digest,
        copy.id: made.digest,
    }
    assert Path(found[first.id].path).read_bytes() == made.path.read_bytes()

    library.keep_artifacts({second.id: made}, [second.id])
    assert library.write_artifacts([first.id, second.id, copy.id], out).keys() == {second.id, copy.id}


def _file(path: Path) -> Path:
    path.write_bytes(b"code" * 100)
    return path


def test_an_older_schema_has_no_place_for_makings(url: str) -> None:
    """Carried records stay records there."""
    with Library.open(url) as library:
        library.add_workload(MATMUL)
        library.carry(add(library).id, NEW.tvm_version, TODAY)
    with connected(url) as connection:
        migrate(connection, schema.SCHEMA_VERSION, 8)

    with Library.open(url) as library:
        assert library.carried() == {}
        assert library.makings([1, 2]) == {}
        assert best(library) == [1]
