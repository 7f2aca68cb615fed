"""`fleet library` and `fleet jobs` on a real file, as a user runs them."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fleet.cli.main import app
from fleet.domain.measuring import ErrorKind, TensorSpec
from fleet.domain.scope import RecordScope
from fleet.library import JobState, Library, ModelRun, NewSnapshot, Record, RecordKind, StoredWorkload

PI4 = RecordScope(target_json="llvm", device_model="pi4", tvm_version=importlib.metadata.version("apache-tvm"))
PI5 = replace(PI4, device_model="pi5")

LONG_TARGET = '{"kind":"llvm","mcpu":"sapphirerapids","num-cores":128,"mtriple":"x86_64-unknown-linux-gnu"}'
CONVOLUTION = (
    TensorSpec((1, 16, 55, 55), "float32"),
    TensorSpec((64, 16, 3, 3), "float32"),
    TensorSpec((1, 64, 55, 55), "float32", is_output=True),
)
OPERATOR = "conv2d 3x3 16->64 55x55"


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A library with one finished job."""
    path = str(tmp_path / "library.sqlite")
    facts: dict[str, object] = {"workload": "1", "scope": PI4}
    with Library.open(path) as library:
        library.add_workload(
            StoredWorkload(shash="1", name="fused_conv2d", mod_json='{"nodes":[]}', flop=2e6, args=CONVOLUTION)
        )
        job = library.start_job(title="squeezenet", trials_total=3)
        facts["job_name"] = job.name
        library.add_job_workloads(job.name, {"1": 2.0})
        library.add_records(
            [
                Record(**facts, trace_json="[[],[[1,1]]]", run_secs=(1e-3,)),  # type: ignore[arg-type]
                Record(**facts, trace_json="[[],[[2,1]]]", run_secs=(2e-3,)),  # type: ignore[arg-type]
                Record(**facts, trace_json="[[],[[3,1]]]", error=ErrorKind.TIMEOUT),  # type: ignore[arg-type]
                Record(**facts, run_secs=(8e-3,), kind=RecordKind.BASELINE),  # type: ignore[arg-type]
                Record(**(facts | {"scope": PI5}), trace_json="[[],[[1,1]]]", run_secs=(5e-4,)),  # type: ignore[arg-type]
            ]
        )
        library.add_model_run(ModelRun(job_name=job.name, untuned_ms=270.0, tuned_ms=9.0))
        library.finish_job(job.name, JobState.FINISHED)
    return path


def fleet(*args: str) -> tuple[int, str, str]:
    """Exit code, stdout, stderr of a command of `fleet library`, or of `fleet jobs`."""
    words = args if args[0] == "jobs" else ("library", *args)
    result = CliRunner().invoke(app, words, env={"COLUMNS": "200"}, prog_name="fleet")
    return result.exit_code, result.stdout, result.stderr


def test_best_shows_each_device_model_by_itself(path: str) -> None:
    """Times of two kinds of hardware stand in two tables, each with its own speed-up."""
    code, out, _ = fleet("best", "fused_*", "--library", path)

    pi4, titles, *row, blank, pi5, again, _other = out.splitlines()
    assert code == 0
    assert (pi4, pi5) == tuple(f"{model}, TVM {PI4.tvm_version}, llvm" for model in ("pi4", "pi5"))
    assert titles.split()[:3] == ["workload", "best", "speed-up"]
    assert again.split() == titles.split()
    assert row[0].split()[:6] == [*OPERATOR.split(), "1", "ms"]
    assert ("8.0x" in row[0], blank) == (True, "")


def test_a_workload_has_a_readable_name_and_that_of_tvm(path: str) -> None:
    """The first is shown; both are in the data and with --wide, and a pattern finds it by either."""
    narrow = CliRunner().invoke(app, ["library", "best", "conv2d 3x3*", "--library", path], env={"COLUMNS": "80"})
    wide = CliRunner().invoke(app, ["library", "best", "--wide", "--library", path], env={"COLUMNS": "80"})
    data = json.loads(fleet("best", "fused_conv*", "--library", path, "--json")[1])["best"]
    [job] = json.loads(fleet("jobs", "list", "--library", path, "--json")[1])["jobs"]
    shown = CliRunner().invoke(app, ["jobs", "show", job["name"], "--library", path], env={"COLUMNS": "80"})
    summary = json.loads(fleet("jobs", "show", job["name"], "--library", path, "--json")[1])

    assert OPERATOR in narrow.stdout
    assert "fused_conv2d" not in narrow.stdout
    assert OPERATOR in wide.stdout
    assert "fused_conv2d" in wide.stdout
    assert {(row["workload"], row["operator"]) for row in data} == {("fused_conv2d", OPERATOR)}
    assert OPERATOR in shown.stdout
    assert {(row["name"], row["operator"]) for row in summary["workloads"]} == {("fused_conv2d", OPERATOR)}


def test_a_job_on_several_boards_is_shown_for_each(path: str) -> None:
    """Each board has its own best time; a schedule that ran on both is a trial of each."""
    [job] = json.loads(fleet("jobs", "list", "--library", path, "--json")[1])["jobs"]
    _, out, _ = fleet("jobs", "show", job["name"], "--library", path)
    found = json.loads(fleet("jobs", "show", job["name"], "--library", path, "--json")[1])

    assert [(row["device_model"], row["trials"], row["best_sec"]) for row in found["workloads"]] == [
        ("pi4", 3, 0.001),
        ("pi5", 1, 0.0005),
    ]
    assert job["trials_done"] == 4
    assert out.index("on pi4:") < out.index("on pi5:")
    assert "model: untuned 270 ms, tuned 9 ms" in out


def test_best_is_of_one_tvm(path: str) -> None:
    """The default is the installed version; another one or all can be selected; an empty result names the versions in
    use.
    """
    with Library.open(path) as library:
        old = replace(PI4, tvm_version="0.1")
        library.add_record(Record(workload="1", scope=old, trace_json="[[],[[1,1]]]", run_secs=(1e-6,)))

    def versions(*args: str) -> list[tuple[str, float]]:
        rows = json.loads(fleet("best", "--library", path, "--json", "--device-model", "pi4", *args)[1])["best"]
        return [(row["tvm_version"], row["best_sec"]) for row in rows]

    assert versions() == [(PI4.tvm_version, 1e-3)]
    assert versions("--tvm-version", "0.1") == [("0.1", 1e-6)]
    assert versions("--tvm-version", "all") == [(PI4.tvm_version, 1e-3), ("0.1", 1e-6)]
    code, out, err = fleet("best", "--library", path, "--tvm-version", "0.2")
    assert (code, out) == (1, "")
    assert f"no records were made with TVM 0.2; there are some of 0.1, {PI4.tvm_version}" in err


def test_coverage_refuses_a_device_model_without_records(path: str) -> None:
    """The name is probably misspelt: the known ones follow, before the model is read."""
    code, _, err = fleet("coverage", "nowhere.onnx", "--device-model", "pi6", "--library", path)

    assert code == 1
    assert "no records of the device model 'pi6'; there are some of pi4, pi5" in " ".join(err.split())


def test_an_export_is_of_one_tvm(path: str, tmp_path: Path) -> None:
    """MetaSchedule would otherwise mix the times of both."""
    with Library.open(path) as library:
        old = replace(PI4, tvm_version="0.1")
        library.add_record(Record(workload="1", scope=old, trace_json="[[],[[1,1]]]", run_secs=(1e-6,)))

    code, _, err = fleet("export", str(tmp_path / "out"), "--library", path, "--device-model", "pi4")

    assert (code, err.strip()) == (0, f"Exported 2 records of 1 workloads to {tmp_path / 'out'}.")


def test_old_records_are_left_out_with_a_note(path: str, tmp_path: Path) -> None:
    """The note has their number, also if no record is left."""
    long_ago = datetime.now(UTC) - timedelta(days=9)
    with Library.open(path) as library:
        library.add_record(
            Record(workload="1", scope=PI4, trace_json="[[9],[]]", run_secs=(1e-9,), created_at=long_ago)
        )

    code, out, err = fleet("best", "--library", path, "--max-age", "8d", "--device-model", "pi4", "--json")
    nothing = fleet("export", str(tmp_path / "out"), "--library", path, "--max-age", "0s")

    assert (code, [row["best_sec"] for row in json.loads(out)["best"]]) == (0, [1e-3])
    assert err == "left out: 1 record older than --max-age\n"
    assert nothing[0] == 1
    assert "left out: 4 records older than --max-age" in nothing[2]


def test_records_are_chosen_by_facts_of_their_environments(path: str) -> None:
    """A message about missing ones names the known facts."""
    facts = {"kernel": "6.6.1", "owner": {"cooling": "fan"}}
    with Library.open(path) as library:
        library.add_record(Record(workload="1", scope=PI4, trace_json="[[9],[]]", run_secs=(2e-3,), environment=facts))

    _, out, _ = fleet("best", "--library", path, "--where", "cooling=fan", "--where", "kernel=6.6*", "--json")
    code, _, missing = fleet("stale", "--library", path, "--where", "coolin=fan")
    usage, _, wrong = fleet("best", "--library", path, "--where", "fan")

    assert [row["best_sec"] for row in json.loads(out)["best"]] == [2e-3]
    assert code == 1
    assert "coolin=fan" in missing
    assert "facts of the environments: cooling, kernel" in missing
    assert usage == 2
    assert "write it like cooling=fan" in " ".join(wrong.split())


def test_an_export_can_be_of_the_best_checked_schedules(path: str, tmp_path: Path) -> None:
    """MetaSchedule then finds no unchecked schedule."""
    with Library.open(path) as library:
        slower = next(record for record in library.records("1", PI4) if record.trace_json == "[[],[[2,1]]]")
        library.mark_checked(slower.id)

    code, _, err = fleet("export", str(tmp_path / "out"), "--library", path, "--best", "1", "--checked")

    assert (code, err.strip()) == (0, f"Exported 1 records of 1 workloads to {tmp_path / 'out'}.")


def test_an_empty_export_writes_no_file(path: str, tmp_path: Path) -> None:
    """A pattern that names no workload is a mistake, as in `fleet library best`, and leaves no empty files."""
    code, _, err = fleet("export", str(tmp_path / "out"), "conv9*", "--library", path)

    assert (code, (tmp_path / "out").exists()) == (1, False)
    assert err.startswith("error: no records of workloads 'conv9*'")


def test_an_unchecked_candidate_is_not_best_where_others_were_checked(path: str) -> None:
    """An unchecked candidate may be wrong; it counts only where no candidate was checked."""
    with Library.open(path) as library:
        slower = next(r for r in library.records("1", PI4) if r.trace_json == "[[],[[2,1]]]")
        library.mark_checked(slower.id)

    rows = json.loads(fleet("best", "--library", path, "--json")[1])["best"]

    assert [(row["device_model"], row["best_sec"]) for row in rows] == [("pi4", 2e-3), ("pi5", 5e-4)]


def test_records_without_a_target_stand_by_themselves(path: str) -> None:
    """Imported records without a target are listed beside the others, once."""
    with Library.open(path) as library:
        library.add_record(
            Record(
                workload="1",
                scope=RecordScope(target_json="", device_model="pi4", tvm_version=""),
                trace_json="[[7],[]]",
                run_secs=(3e-3,),
            )
        )

    rows = json.loads(fleet("best", "--library", path, "--tvm-version", "all", "--json")[1])["best"]

    assert [(row["target"], row["best_sec"]) for row in rows] == [("llvm", 1e-3), ("llvm", 5e-4), ("", 3e-3)]


def test_best_gives_data(path: str) -> None:
    """--json has everything needed to use a record, and the filters hold."""
    code, out, _ = fleet("best", "--library", path, "--json", "--device-model", "pi4", "--top", "2")

    assert code == 0
    first, second = json.loads(out)["best"]
    assert (first["best_sec"], first["untuned_sec"], first["gflops"]) == (1e-3, 8e-3, 2.0)
    assert first["trace"] == "[[],[[1,1]]]"
    assert second["best_sec"] == 2e-3


def test_a_jobs_name_can_be_copied_from_a_narrow_terminal(path: str) -> None:
    """At 80 columns the name stays in one piece."""
    [job] = json.loads(fleet("jobs", "list", "--library", path, "--json")[1])["jobs"]
    result = CliRunner().invoke(app, ["jobs", "list", "--library", path], env={"COLUMNS": "80"})
    assert job["name"] in result.stdout


def test_a_timed_job_is_listed_without_its_trial_limit(path: str) -> None:
    """The upper limit of a timed job's trials says nothing about its progress."""
    with Library.open(path) as library:
        library.start_job(title="timed.onnx", trials_total=4096, conditions={"minutes": 5.0, "trials": None})
        library.start_job(title="counted.onnx", trials_total=2048, conditions={"minutes": 5.0, "trials": 2048})

    shown = fleet("jobs", "list", "--library", path)[1]
    counted, timed, _ = json.loads(fleet("jobs", "list", "--library", path, "--json")[1])["jobs"]

    assert "/4096" not in shown  # the digits alone may be a part of a name
    assert "0/2048" in shown
    assert (timed["trials_total"], counted["trials_total"]) == (0, 2048)


@pytest.mark.parametrize("what", ["jobs", "best", "job"])
def test_lists_fit_a_narrow_terminal(path: str, what: str) -> None:
    """At 80 columns each row stays on one line, whatever the names."""
    name = "conv2d_transpose1"
    arguments = tuple(TensorSpec((1, 1024, 200, 200), "float16", index == 2) for index in range(3))
    scope = replace(PI4, device_model="Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz x128", target_json=LONG_TARGET)
    with Library.open(path) as library:
        library.add_workload(StoredWorkload(shash="2", name=name, mod_json="{}", args=arguments))
        job = library.start_job(title="a_long_file_name_v2.onnx", trials_total=99999)
        library.add_job_workloads(job.name, {"2": 1000.0})
        record = Record(workload="2", scope=scope, job_name=job.name)
        library.add_record(replace(record, trace_json="[[],[[1,1]]]", run_secs=(123.456,)))
        library.add_record(replace(record, trace_json="[[],[[2,1]]]", error=ErrorKind.TIMEOUT))
        library.add_record(replace(record, kind=RecordKind.BASELINE, run_secs=(1234.5,)))
    args, rest = {"jobs": (["jobs", "list"], 1), "best": (["best"], 8), "job": (["jobs", "show", job.name], 3)}[what]

    words = args if args[0] == "jobs" else ["library", *args]
    result = CliRunner().invoke(app, [*words, "--library", path], env={"COLUMNS": "80"})

    data = json.loads(fleet(*args, "--library", path, "--json")[1])
    rows = len(data[what]) if what != "job" else 1
    assert len(result.stdout.splitlines()) == rest + rows
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_jobs_are_listed_and_shown(path: str) -> None:
    """The list names the job; by its name it is shown with its workloads and the model's latency."""
    code, out, _ = fleet("jobs", "list", "--library", path, "--json")
    [job] = json.loads(out)["jobs"]
    assert (code, job["state"], job["trials_done"], job["trials_failed"]) == (0, "finished", 4, 1)

    assert job["name"] in fleet("jobs", "list", "--library", path)[1]
    shown = fleet("jobs", "show", job["name"].removeprefix("jobs/"), "--library", path)[1]
    assert "1 TIMEOUT" in shown
    assert "tuned 9 ms" in shown
    data = json.loads(fleet("jobs", "show", job["name"], "--library", path, "--json")[1])
    assert data["workloads"][0]["errors"] == {"TIMEOUT": 1}


def test_records_travel_through_files(path: str, tmp_path: Path) -> None:
    """Records exported by one library are imported by another, once."""
    out_dir, other = str(tmp_path / "out"), str(tmp_path / "other.sqlite")
    code, _, err = fleet("export", out_dir, "--library", path, "--device-model", "pi4")
    assert (code, err.strip()) == (0, f"Exported 2 records of 1 workloads to {out_dir}.")

    for expected in ("Imported 2 records of 1 workloads.", "Imported 2 records of 1 workloads, 2 of them known."):
        code, _, err = fleet("import", out_dir, "--device-model", "pi4", "--library", other)
        assert (code, err.strip()) == (0, expected)


def test_an_unusable_library_is_one_line(tmp_path: Path) -> None:
    """An error of one line and exit code 2, without a traceback."""
    path = tmp_path / "text"
    path.write_text("no database " * 99)

    code, out, err = fleet("jobs", "list", "--library", str(path))

    assert (code, out) == (2, "")
    assert err.splitlines() == [f"error: sqlite:///{path} is no SQLite database; name another --library"]


def test_an_unknown_job_is_named(path: str) -> None:
    """The message says how to list the jobs there are."""
    code, _, err = fleet("jobs", "show", "none", "--library", path)

    assert code == 1
    assert "no job 'jobs/none'; `fleet jobs list` lists them" in err


def test_an_import_needs_a_device_model(tmp_path: Path) -> None:
    """Leaving it out is a usage error."""
    assert fleet("import", str(tmp_path))[0] == 2


@pytest.mark.slow
def test_looking_into_a_library_needs_no_tvm() -> None:
    """The library, its command and the adapters' package load without TVM or numpy."""
    code = "import sys, fleet.cli.library, fleet.metaschedule; print({'tvm', 'numpy'} & set(sys.modules))"

    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"


def test_a_disturbed_best_is_reported(path: str) -> None:
    """Tables have a sentence about the disturbance, JSON has the reasons; an undisturbed time has neither."""
    facts: dict[str, object] = {"workload": "1", "scope": PI5}
    _, calm, _ = fleet("best", "--library", path)
    with Library.open(path) as library:
        provenance = {"disturbances": [{"kind": "THROTTLED", "text": "throttled: thermal"}]}
        library.add_record(Record(**facts, trace_json="[[9],[]]", run_secs=(1e-4,), provenance=provenance))  # type: ignore[arg-type]

    _, shown, _ = fleet("best", "--library", path)
    _, told, _ = fleet("best", "--library", path, "--json")

    assert "disturbed" not in calm
    assert f"measured while something disturbed the device, see --json: {OPERATOR}" in shown
    assert [row["disturbances"] for row in json.loads(told)["best"]] == [[], ["throttled: thermal"]]


def test_snapshots_are_listed_with_their_data_and_ranking(path: str) -> None:
    """The snapshot in use is marked; one that was never used differs from formerly used ones."""
    assert "No snapshots" in fleet("snapshots", "--library", path)[2]
    with Library.open(path) as library:
        term = library.memory.stand("test", lease_sec=60)
        assert term is not None
        good, worse = (
            NewSnapshot(
                content=content,
                feature_version="f1",
                record_count=64,
                workloads={"1": 64},
                last_record_id=1,
                metrics={"left_out_pairs": 0.654},
            )
            for content in (b"good", b"worse")
        )
        digest = term.publish(good).digest
        term.publish(worse, publishes=False)
        term.close()

    _, out, _ = fleet("snapshots", "--library", path)
    data = json.loads(fleet("snapshots", "--library", path, "--json")[1])["snapshots"]

    rows = [line.split() for line in out.splitlines()[1:3]]
    assert rows[0][0] == digest.removeprefix("sha256:")[:12]
    assert "0.654" in rows[0]
    assert [rows[0][-2:], rows[1][-2:]] == [["in", "use"], ["not", "used"]]
    assert [(one["is_in_use"], one["records"], one["size_bytes"]) for one in data] == [(True, 64, 4), (False, 64, 5)]


def test_pruning_reports_planned_and_deleted_rows(path: str, tmp_path: Path) -> None:
    """The model file of a job that was cancelled; its row stays."""
    (tmp_path / "m.onnx").write_bytes(b"x" * 2_000_000)
    with Library.open(path) as library:
        files = {"m.onnx": library.model_files.add(tmp_path / "m.onnx")}
        name = library.queue.submit(title="m", spec={"files": files}).name
        library.queue.cancel(name)

    by_age = fleet("prune", "--keep", "0", "--library", path)
    dry = fleet("prune", "--keep", "0", "--days", "0", "--dry-run", "--library", path)
    real = json.loads(fleet("prune", "--keep", "0", "--days", "0", "--library", path, "--json")[1])

    assert by_age == (0, "", "Removed 0 snapshots and 0 model files, 0.0 MB.\n")
    assert dry == (0, "", "Would remove 0 snapshots and 1 model files, 2.0 MB.\n")
    assert real == {
        "schema": 1,
        "snapshots": [],
        "model_files": list(files.values()),
        "size_bytes": 2_000_000,
        "records": None,
        "records_kept": None,
        "is_dry_run": False,
    }
    assert name in fleet("jobs", "list", "--library", path)[1]


def test_pruning_of_records_says_why_the_others_stay(path: str) -> None:
    """The failed one goes; without --records all stay, and none that is younger than --older-than goes."""
    asked = ("prune", "--records", "--best", "2", "--library", path)
    young = fleet(*asked)
    dry = fleet(*asked, "--older-than", "0s", "--dry-run")
    done = json.loads(fleet(*asked, "--older-than", "0s", "--json")[1])

    assert young[2].endswith("Removed 0 records; kept: 3 among the best of their workload, 2 young.\n")
    kept = "3 among the best of their workload, 1 of unscheduled programs or whole models"
    assert dry[2].endswith(f"Would remove 1 record; kept: {kept}.\n")
    assert (done["records"], done["records_kept"]) == (1, {"best": 3, "no search": 1})
    with Library.open(path) as library:
        assert not any(one.error for one in library.records())


def test_a_library_is_brought_to_another_version_by_hand(path: str) -> None:
    """Back for an older program, with a copy beside it; a version that is not known is refused."""
    _, _, told = fleet("migrate", "--to", "3", "--library", path)
    again = fleet("migrate", "--to", "3", "--library", path)
    unknown = fleet("migrate", "--to", "77", "--library", path)

    copy = Path(told.split("A copy from before is at ")[1].strip().removesuffix("."))
    assert copy.parent == Path(path).parent
    assert copy.stat().st_size > 0
    assert again == (0, "", "The library has version 3 already.\n")
    assert unknown[0] == 2
    assert "there is no version 77" in unknown[2]


def test_stale_counts_records_by_reason(path: str) -> None:
    """Two schedules on a board that has another kernel since, one of them old; one by another board, in doubt."""
    with Library.open(path) as library:
        library.add_workload(StoredWorkload(shash="2", name="fused_dense", mod_json="{}"))
        job = library.start_job(title="m", model_digest="m")
        library.add_job_workloads(job.name, {"2": 3.0})
        given = {"workload": "2", "scope": PI4, "device_name": "devices/a", "provenance": {"device_sec": 90.0}}
        old = {"environment": {"kernel": "6.1"}, "created_at": datetime.now(UTC) - timedelta(days=100)}
        new = {"environment": {"kernel": "6.6"}, "provenance": {"disturbances": ["hot"]}, "device_name": "devices/b"}
        library.add_records(
            [
                Record(**given, trace_json="[[1],[]]", run_secs=(1e-3,), **old),  # type: ignore[arg-type]
                Record(**(given | {"environment": {"kernel": "6.1"}}), trace_json="[[2],[]]", run_secs=(2e-3,)),  # type: ignore[arg-type]
                Record(**(given | {"environment": {"kernel": "6.6"}}), trace_json="[[3],[]]", run_secs=(9e-3,)),  # type: ignore[arg-type]
                Record(**(given | new), trace_json="[[4],[]]", run_secs=(3e-3,)),  # type: ignore[arg-type]
            ]
        )

    code, out, error = fleet("stale", "--max-age", "90d", "--device-model", "pi4", "--library", path)
    found = json.loads(fleet("stale", "--max-age", "90d", "--device-model", "pi4", "--json", "--library", path)[1])

    assert (code, error) == (0, "")
    assert found["reasons"] == {
        "environment": {
            "records": 2,
            "models_time_share": pytest.approx(3e-3 / 5e-3),
            "device_sec": 180.0,
            "without_device_sec": 0,
        },
        "age": {
            "records": 1,
            "models_time_share": pytest.approx(3e-3 / 5e-3),
            "device_sec": 90.0,
            "without_device_sec": 0,
        },
        "doubt": {"records": 1, "models_time_share": 0.0, "device_sec": 0.0, "without_device_sec": 1},
    }
    assert (found["stale"]["records"], found["all"]["records"], found["unknown_environments"]) == (3, 5, 2)
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines()[1:5]}
    assert rows["environment"] == ["2", "60.0%", "3", "min"]
    assert rows["any"] == ["of", "them", "3", "60.0%", "3", "min"]
    assert "environment not known: 2 records" in out


@pytest.mark.parametrize("age", ["soon", "-1d", "36501d"])
def test_an_age_that_is_none_is_refused(path: str, age: str) -> None:
    """A usage error says how to write it."""
    code, _, error = fleet("stale", f"--max-age={age}", "--library", path)

    assert code == 2
    assert "write it like 12h or 180d" in error


def test_stale_without_records_says_which_exist(path: str) -> None:
    """It exits with 1, as the other commands do that found nothing."""
    code, _, error = fleet("stale", "--device-model", "pi6", "--library", path)

    assert code == 1
    assert "there are some of pi4, pi5" in error


def test_the_library_is_reported_as_a_page(path: str, tmp_path: Path) -> None:
    """A process of its own writes it, loads no TVM, and leaves the library as it is."""
    page, before = tmp_path / "library.html", Path(path).read_bytes()
    code = (
        "import sys; from fleet.cli.main import app\n"
        f"try: app(['report', '--library', '-o', {str(page)!r}])\n"
        "finally: print({name.split('.')[0] for name in sys.modules} & {'tvm', 'onnx', 'torch'})"
    )

    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "FLEET_LIBRARY": path}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip

    assert (done.returncode, done.stdout) == (0, "set()\n"), done.stderr
    assert done.stderr == f"{page}: {len(page.read_bytes()) / 1e3:.0f} kB\n"
    assert Path(path).read_bytes() == before
    assert page.read_text().count("<svg") == 2
