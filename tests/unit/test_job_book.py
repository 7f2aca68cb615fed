"""The library in which `fleet status` looks up facts about jobs that the tracker does not know."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet.cli.job_book import LibraryJobs
from fleet.errors import InvalidRequest, NotFound
from fleet.library import JobState, Library


def test_looking_makes_no_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Most users that look at a fleet have no library."""
    monkeypatch.setenv("FLEET_DATA_DIR", str(tmp_path))
    monkeypatch.delenv("FLEET_CONFIG", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("FLEET_LIBRARY", raising=False)

    with pytest.raises(NotFound, match="fleet status --library"):
        LibraryJobs(None).look("jobs/1", 80)

    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_jobs_are_in_the_library_that_is_set_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs are looked up in the configured library or a named one; a job of another library is not found."""
    path, config = tmp_path / "library.sqlite", tmp_path / "config.yaml"
    config.write_text(f"library: {path}\n")
    monkeypatch.setenv("FLEET_CONFIG", str(config))
    monkeypatch.setenv("FLEET_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.delenv("FLEET_LIBRARY", raising=False)
    with Library.open(path) as library:
        names = [library.queue.submit(title=title, spec={}).name for title in ("a", "b")]

    said = [LibraryJobs(None).cancel(names[0]), LibraryJobs(str(path)).cancel(names[1])]

    assert said == [f"{name} is cancelled" for name in names]
    with Library.open(path) as library:
        assert {library.queue.get(name).state for name in names} == {JobState.CANCELLED}
    with pytest.raises(NotFound, match="jobs/elsewhere is not in this library"):
        LibraryJobs(str(path)).cancel("jobs/elsewhere")


@pytest.mark.slow
def test_a_job_that_has_ended_is_not_stopped(tmp_path: Path) -> None:
    """The library's error is passed on unchanged."""
    path = tmp_path / "library.sqlite"
    with Library.open(path) as library:
        job = library.queue.submit(title="a", spec={})
        library.queue.take("o")
        library.queue.end(job.name, "o", JobState.FINISHED)

    with pytest.raises(InvalidRequest, match="is finished: there is nothing to cancel"):
        LibraryJobs(str(path)).cancel(job.name)
