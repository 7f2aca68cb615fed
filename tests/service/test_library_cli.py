"""`fleet library` on a real file, as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fleet.cli.main import app
from fleet.library import JobState, Library, ModelRun, NewRecord, RecordKind, Workload
from fleet.measuring import ErrorKind


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A library with one finished job."""
    path = str(tmp_path / "library.sqlite")
    facts = {"workload": "1", "target_json": "llvm", "device_model": "pi4", "tvm_version": "0.27.0"}
    with Library.open(path) as library:
        library.add_workload(Workload(shash="1", name="fused_conv2d", mod_json="{}", flop=2e6))
        job = library.start_job(title="squeezenet", trials_total=3)
        facts["job_name"] = job.name
        library.add_job_workloads(job.name, {"1": 2.0})
        library.add_records(
            [
                NewRecord(**facts, trace_json="[[1],[]]", run_secs=(1e-3,)),  # type: ignore[arg-type]
                NewRecord(**facts, trace_json="[[2],[]]", run_secs=(2e-3,)),  # type: ignore[arg-type]
                NewRecord(**facts, trace_json="[[3],[]]", error=ErrorKind.TIMEOUT),  # type: ignore[arg-type]
                NewRecord(**facts, run_secs=(8e-3,), kind=RecordKind.BASELINE),  # type: ignore[arg-type]
                NewRecord(**(facts | {"device_model": "pi5"}), trace_json="[[1],[]]", run_secs=(5e-4,)),  # type: ignore[arg-type]
            ]
        )
        library.add_model_run(ModelRun(job_name=job.name, untuned_ms=270.0, tuned_ms=9.0))
        library.finish_job(job.name, JobState.FINISHED)
    return path


def fleet(*args: str) -> tuple[int, str, str]:
    """Exit code, stdout, stderr."""
    result = CliRunner().invoke(app, ["library", *args], env={"COLUMNS": "200"}, prog_name="fleet")
    return result.exit_code, result.stdout, result.stderr


def test_best_shows_each_device_model_by_itself(path: str) -> None:
    """Times of two kinds of hardware stand in two rows, each with its own speed-up."""
    code, out, _ = fleet("best", "fused_*", "--library", path)

    assert code == 0
    assert [line.split()[:3] for line in out.splitlines()[1:]] == [
        ["fused_conv2d", "pi4", "1000.0"],
        ["fused_conv2d", "pi5", "500.0"],
    ]
    assert "8.0x" in out
    assert "best [us]" in out


def test_an_unchecked_candidate_is_not_best_where_others_were_checked(path: str) -> None:
    """Fast but never compared with the unscheduled program: it may be wrong. Where none was compared, it counts."""
    with Library.open(path) as library:
        slower = next(r for r in library.records("1", device_model="pi4") if r.trace_json == "[[2],[]]")
        library.mark_checked(slower.id)

    _, out, _ = fleet("best", "--library", path)

    assert [line.split()[1:3] for line in out.splitlines()[1:]] == [["pi4", "2000.0"], ["pi5", "500.0"]]


def test_records_without_a_target_stand_by_themselves(path: str) -> None:
    """What an import left without target is listed beside the others, once."""
    with Library.open(path) as library:
        library.add_record(
            NewRecord(
                workload="1",
                target_json="",
                device_model="pi4",
                tvm_version="",
                trace_json="[[7],[]]",
                run_secs=(3e-3,),
            )
        )

    rows = json.loads(fleet("best", "--library", path, "--json")[1])

    assert [(row["target"], row["best_us"]) for row in rows] == [("llvm", 1000.0), ("llvm", 500.0), ("", 3000.0)]


def test_best_gives_data(path: str) -> None:
    """--json has everything needed to use a record, and the filters hold."""
    code, out, _ = fleet("best", "--library", path, "--json", "--device-model", "pi4", "--top", "2")

    assert code == 0
    first, second = json.loads(out)
    assert (first["best_us"], first["untuned_us"], first["gflops"]) == (1000.0, 8000.0, 2.0)
    assert first["trace"] == "[[1],[]]"
    assert second["best_us"] == 2000.0


def test_a_jobs_name_can_be_copied_from_a_narrow_terminal(path: str) -> None:
    """At 80 columns the name stays in one piece."""
    [job] = json.loads(fleet("jobs", "--library", path, "--json")[1])
    result = CliRunner().invoke(app, ["library", "jobs", "--library", path], env={"COLUMNS": "80"})
    assert job["name"] in result.stdout


@pytest.mark.parametrize("what", ["jobs", "best"])
def test_lists_fit_a_narrow_terminal(path: str, what: str) -> None:
    """At 80 columns a row with a common name stays on one line."""
    result = CliRunner().invoke(app, ["library", what, "--library", path], env={"COLUMNS": "80"})
    rows = len(json.loads(fleet(what, "--library", path, "--json")[1]))
    assert len(result.stdout.splitlines()) == 1 + rows


def test_jobs_are_listed_and_shown(path: str) -> None:
    """The list names the job; by its name it is shown with its workloads and the model's latency."""
    code, out, _ = fleet("jobs", "--library", path, "--json")
    [job] = json.loads(out)
    assert (code, job["state"], job["trials_done"], job["trials_failed"]) == (0, "FINISHED", 3, 1)

    assert job["name"] in fleet("jobs", "--library", path)[1]
    shown = fleet("jobs", job["name"].removeprefix("jobs/"), "--library", path)[1]
    assert "1 TIMEOUT" in shown
    assert "tuned 9.00 ms" in shown
    data = json.loads(fleet("jobs", job["name"], "--library", path, "--json")[1])
    assert data["workloads"][0]["errors"] == {"TIMEOUT": 1}


def test_records_travel_through_files(path: str, tmp_path: Path) -> None:
    """What one library exports another imports, once."""
    out_dir, other = str(tmp_path / "out"), str(tmp_path / "other.sqlite")
    code, _, err = fleet("export", out_dir, "--library", path, "--device-model", "pi4")
    assert (code, err.strip()) == (0, f"Exported 2 records of 1 workloads to {out_dir}.")

    for expected in ("Imported 2 records of 1 workloads.", "Imported 2 records of 1 workloads, 2 of them known."):
        code, _, err = fleet("import", out_dir, "--device-model", "pi4", "--library", other)
        assert (code, err.strip()) == (0, expected)


def test_an_unusable_library_is_one_line(tmp_path: Path) -> None:
    """No traceback: what is wrong, and exit code 1."""
    path = tmp_path / "text"
    path.write_text("no database " * 99)

    code, out, err = fleet("jobs", "--library", str(path))

    assert (code, out) == (1, "")
    assert err.splitlines() == [f"error: sqlite:///{path} is no SQLite database; name another --library"]


def test_an_unknown_job_is_named(path: str) -> None:
    """And the message says how to find those that there are."""
    code, _, err = fleet("jobs", "none", "--library", path)

    assert code == 1
    assert "no job 'jobs/none'; `fleet library jobs` lists them" in err


def test_an_import_needs_a_device_model(tmp_path: Path) -> None:
    """Leaving it out is a usage error."""
    assert fleet("import", str(tmp_path))[0] == 2


@pytest.mark.slow
def test_looking_into_a_library_needs_no_tvm() -> None:
    """The library, its command and the adapters' package load without TVM or numpy."""
    code = "import sys, fleet.cli.library, fleet.metaschedule; print({'tvm', 'numpy'} & set(sys.modules))"

    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"


def test_a_disturbed_best_is_said(path: str) -> None:
    """In words for people, with its reasons for scripts; a calm one says nothing."""
    facts = {"workload": "1", "target_json": "llvm", "device_model": "pi5", "tvm_version": "0.27.0"}
    _, calm, _ = fleet("best", "--library", path)
    with Library.open(path) as library:
        provenance = {"disturbances": ["throttled: thermal"]}
        library.add_record(NewRecord(**facts, trace_json="[[9],[]]", run_secs=(1e-4,), provenance=provenance))  # type: ignore[arg-type]

    _, shown, _ = fleet("best", "--library", path)
    _, told, _ = fleet("best", "--library", path, "--json")

    assert "disturbed" not in calm
    assert "measured while something disturbed the device, see --json: fused_conv2d" in shown
    assert [row["disturbances"] for row in json.loads(told)] == [[], ["throttled: thermal"]]
