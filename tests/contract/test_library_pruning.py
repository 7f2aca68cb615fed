"""Pruning of a library, on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from fleet.cost_model.feature_codec import FEATURE_VERSION
from fleet.errors import NotFound
from fleet.library import JobState, Library, NewSnapshot

LATER = datetime.now(UTC) + timedelta(days=1)
"""Later than everything that a test makes."""


@pytest.fixture
def library(url: str) -> Iterator[Library]:
    with Library.open(url) as library:
        yield library


def publish(library: Library, *contents: bytes, publishes: bool = True) -> list[str]:
    """Store snapshots one after the other; return their digests."""
    term = library.memory.stand("test", lease_sec=60)
    assert term is not None
    made = [
        NewSnapshot(
            content=content,
            feature_version=FEATURE_VERSION,
            record_count=1,
            workloads={},
            last_record_id=number,
            metrics={},
        )
        for number, content in enumerate(contents)
    ]
    digests = [term.publish(one, publishes=publishes).digest for one in made]
    term.close()
    return digests


def submitted(library: Library, path: Path, content: bytes = b"model") -> tuple[str, str]:
    """Submit a job with one model file; return its name and the file's digest."""
    path.write_bytes(content)
    digest = library.model_files.add(path)
    return library.queue.submit(title="m", spec={"files": {"m.onnx": digest}}).name, digest


def end(library: Library, name: str, progress: dict[str, object] | None = None) -> None:
    job = library.queue.take("o")
    assert job is not None
    assert job.name == name
    library.queue.tell(name, "o", progress or {})
    library.queue.end(name, "o", JobState.FINISHED)


def left(library: Library) -> list[bytes]:
    return [one.content for one in library.memory.snapshots()]


def test_the_newest_snapshots_and_the_one_in_use_stay(library: Library) -> None:
    """The snapshot in use stays at any age, even after worse ones."""
    first = publish(library, b"old", b"in use")
    publish(library, b"worse", b"worse, too", publishes=False)

    gone = library.prune(newest=1, made_before=LATER)

    assert gone.snapshots == (first[0], *gone.snapshots[1:])
    assert left(library) == [b"in use", b"worse, too"]
    assert len(gone.snapshots) == 2
    assert gone.size_bytes == len(b"old" + b"worse")
    used = library.memory.newest_snapshot(FEATURE_VERSION)
    assert used is not None
    assert used.content == b"in use"


def test_recent_rows_are_kept(library: Library) -> None:
    """Everything newer than the given days stays."""
    publish(library, b"a", b"b")

    assert library.prune(newest=0, made_before=datetime.now(UTC) - timedelta(days=1)).snapshots == ()
    assert left(library) == [b"a", b"b"]


def test_a_kept_job_keeps_its_snapshot_and_its_model(library: Library, tmp_path: Path) -> None:
    """The newest, waiting and running jobs are kept; of the others the row and the records stay."""
    snapshots = publish(library, b"of the old job", b"of the newer job", b"in use")
    old, old_file = submitted(library, tmp_path / "m.onnx")
    end(library, old, {"kinds": [{"snapshot": snapshots[0]}]})
    newer, _ = submitted(library, tmp_path / "m.onnx", b"another model")
    end(library, newer, {"kinds": [{"snapshot": snapshots[1]}]})

    told = library.prune(newest=1, made_before=LATER, is_trial=True)
    gone = library.prune(newest=1, made_before=LATER)

    assert told == gone
    assert (gone.snapshots, gone.model_files) == ((snapshots[0],), (old_file,))
    assert library.queue.get(old).state is JobState.FINISHED
    with pytest.raises(NotFound, match="submit the model again"):
        library.model_files.write(old_file, tmp_path / "restored")


def test_queued_jobs_are_kept(library: Library, tmp_path: Path) -> None:
    """A job in the queue may be months old."""
    _, digest = submitted(library, tmp_path / "m.onnx")

    assert library.prune(newest=0, made_before=LATER).model_files == ()
    library.model_files.write(digest, tmp_path / "restored")
    assert (tmp_path / "restored").read_bytes() == b"model"
