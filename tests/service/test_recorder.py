"""A job's results while its library is away."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from fleet.artifacts.artifact import Artifact
from fleet.base.version import package_version
from fleet.building.built_candidate import BuiltCandidate
from fleet.domain.environment import environment_digest
from fleet.domain.making import Making, evaluator_facts
from fleet.domain.measuring import Measurement
from fleet.domain.origin import Origin, Source
from fleet.errors import LibraryDamaged, LibraryError, LibraryReadOnly
from fleet.library import Library, Record, StoredWorkload
from fleet.optimizer.core.candidates import Candidate
from fleet.optimizer.core.events import Store, Stored
from fleet.optimizer.recorder import Recorder
from fleet.testing import eventually
from tests.service.test_optimizer_loop import conditions

RESULT = Store(
    candidate=Candidate(workload="w", digest="a", trace_json="[1]", origin=Origin(source=Source.SPACE, knobs="x=4")),
    device_name="devices/d",
    measurement=Measurement(
        candidate_id="a", run_secs=(1.0,), provenance={"epoch": 3, "environment": {"kernel": "6.1"}}
    ),
)


class Forgetful(Library):
    """A library that loses its first answer to a store."""

    has_answered = False

    def add_records(self, new: Iterable[Record]) -> list[Record]:
        stored = super().add_records(new)
        if not self.has_answered:
            self.has_answered = True
            raise LibraryError("the connection is lost")
        return stored


class Fixed(Library):
    """A library that may only be read by now."""

    def add_records(self, new: Iterable[Record]) -> list[Record]:
        raise LibraryReadOnly("it may only be read")


class Damaged(Library):
    """A library with overwritten pages."""

    def add_records(self, new: Iterable[Record]) -> list[Record]:
        raise LibraryDamaged("it is damaged")


@pytest.fixture(params=[Library])
def library(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Library]:
    kind: type[Library] = request.param
    with kind.open(tmp_path / "library.sqlite") as library:
        library.add_workload(StoredWorkload(shash="w", name="w", mod_json="{}"))
        yield library


async def stored(library: Library, folder: Path) -> list[Stored]:
    """Store a result of a new job."""
    recorder = Recorder(library, conditions(folder, library.start_job(title="t").name))
    return [each async for each in recorder.store([RESULT])]


async def test_a_result_outlasts_its_library(
    library: Library, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The result is stored after the database restarts, and the job loses nothing."""
    with closing(sqlite3.connect(tmp_path / "library.sqlite", isolation_level=None)) as database:
        database.execute("CREATE TRIGGER away BEFORE INSERT ON records BEGIN SELECT RAISE(ABORT, 'restarting'); END")
        storing = asyncio.create_task(stored(library, tmp_path))
        await eventually(lambda: "unavailable, retrying" in caplog.text or storing.done())
        database.execute("DROP TRIGGER away")

    assert [each.record_id for each in await storing] == [each.id for each in library.records("w")]
    [record] = library.records("w")
    assert Origin.of_record(record.provenance, "") == RESULT.candidate.origin


async def test_a_result_has_the_environment_of_its_measurement(library: Library, tmp_path: Path) -> None:
    """The environment is stored once for all of its records, and not in their provenance."""
    await stored(library, tmp_path)

    [record] = library.records("w")
    [scope] = library.scopes()
    [time] = library.kept_times([scope])
    assert (record.provenance["epoch"], "environment" in record.provenance) == (3, False)
    assert time.environment == environment_digest({"kernel": "6.1"})


async def test_a_result_has_the_digest_of_its_object_code(library: Library, tmp_path: Path) -> None:
    """The version that built it and the evaluator are stored with it."""
    wanted = conditions(tmp_path, library.start_job(title="t").name)
    artifact = Artifact(path=tmp_path / "a.so", digest="sha256:a", object_digest="sha256:o")
    candidate = replace(RESULT.candidate, build=BuiltCandidate(artifact=artifact, features=None))

    _ = [each async for each in Recorder(library, wanted).store([replace(RESULT, candidate=candidate)])]

    [record] = library.records("w")
    facts = evaluator_facts(wanted.evaluator)
    assert library.makings([record.id]) == {
        record.id: Making(object_digest="sha256:o", version=package_version(), evaluator=facts)
    }


@pytest.mark.parametrize("library", [Forgetful], indirect=True)
async def test_a_result_is_stored_once_although_its_answer_is_lost(library: Library, tmp_path: Path) -> None:
    """If the connection ends between the commit and its answer, the retry does not store a second record."""
    [one] = await stored(library, tmp_path)

    assert [each.id for each in library.records("w")] == [one.record_id]


@pytest.mark.parametrize("library", [Fixed, Damaged], indirect=True)
async def test_a_library_that_stays_as_it_is_is_not_waited_for(library: Library, tmp_path: Path) -> None:
    """A read-only or damaged library does not recover by waiting, so the job ends with the reason."""
    with pytest.raises((LibraryReadOnly, LibraryDamaged)):
        await stored(library, tmp_path)
