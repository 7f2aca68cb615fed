"""Texts from a shared library and messages of agents reach a terminal without control characters."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from fleet.cli.job_book import LibraryJobs
from fleet.cli.main import app
from fleet.cli.terminal import CleanConsole
from fleet.domain.scope import RecordScope
from fleet.library import JobState, Library, Record, StoredWorkload
from fleet.v1 import measurement_pb2
from fleet.wire.measurements import measurement_from_proto
from fleet.workloads.programs import matmul

EVIL = "\x1b[31mred\x1b]0;title\x07\x9b2J\u202eback\rover"
CONTROLS = "\x1b\x07\x9b\u202e\r"


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A library with control characters in every text that a user may choose."""
    name = str(tmp_path / "library.sqlite")
    program = matmul(8)
    with Library.open(name) as library:
        job = library.start_job(title=EVIL, holder=EVIL, tuner=EVIL)
        workload = StoredWorkload(shash="1", name=EVIL, mod_json=program.mod_json)
        library.add_workload(workload)
        library.add_job_workloads(job.name, {"1": 1.0})
        scope = RecordScope(target_json='{"kind": "llvm"}', device_model=EVIL, tvm_version="1")
        library.add_record(Record(workload="1", scope=scope, run_secs=(1e-3,), trace_json="[]", job_name=job.name))
        library.finish_job(job.name, JobState.FAILED, EVIL)
        library.queue.register(tracker=EVIL, holder=EVIL)
    return name


@pytest.mark.slow
def test_no_text_of_a_library_controls_a_terminal(path: str) -> None:
    """Tables and sentences of all commands that show such texts are free of control characters."""
    with Library.open(path) as library:
        (job,) = library.jobs()
    commands = [
        ("jobs", "list"),
        ("jobs", "show", job.name),
        ("jobs", "watch", job.name),
        ("jobs", "resume", job.name),
        ("library", "best", "--tvm-version", "all"),
        ("library", "best", "no such workload"),
        ("optimizer", "list"),
        ("report", job.name, "--format", "markdown"),
        ("report", job.name, "--format", "html"),
    ]
    for words in commands:
        done = CliRunner().invoke(app, [*words, "--library", path], env={"COLUMNS": "250"}, prog_name="fleet")

        assert [sign for sign in CONTROLS if sign in done.stdout + done.stderr] == [], words
        assert done.stdout + done.stderr != ""


def test_no_job_controls_the_application(path: str) -> None:
    """Job details in `fleet status` are rendered by another console."""
    with Library.open(path) as library:
        (job,) = library.jobs()
    console = Console(file=io.StringIO(), width=200)
    console.print(LibraryJobs(path).look(job.name, 200))

    assert isinstance(console.file, io.StringIO)
    assert [sign for sign in CONTROLS if sign in console.file.getvalue()] == []
    assert "red" in console.file.getvalue()


def test_styles_of_ours_stay() -> None:
    """Only control characters inside texts are removed."""
    console = CleanConsole(
        file=io.StringIO(), force_terminal=True, color_system="standard", highlight=False, markup=False
    )
    console.print(f"a{EVIL}", style="bold")

    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue() == "\x1b[1ma[31mred]0;title2Jbackover\x1b[0m\n"


def test_the_message_of_an_agent_is_words() -> None:
    """Clients sanitize received texts: the agent may be an attacker's."""
    message = measurement_pb2.Measurement(candidate_id="1", error_message=f"first\nsecond {EVIL}")
    found = measurement_from_proto(message)

    assert found.error_message == "first\nsecond [31mred]0;title2Jbackover"
