"""`fleet tune` from a model file to a report, with real processes, and the library after they are killed."""

from __future__ import annotations

import contextlib
import itertools
import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from cross.targets.target import parse_target
from fleet.fragments.fragment import Call, Fragment, Tensor
from fleet.fragments.workload_file import to_text
from fleet.library import JobState, Library, RecordKind
from fleet.testing import eventually_sync
from tests.fragments import entry_of, product_entry
from tests.programs import alive, descendants
from tests.system.fleet_processes import Fleet, Server, run_fleet, running_fleet, start_fleet

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

_WITHIN_SEC = 330
_ENDS_WITHIN_SEC = 200
"""Other tests tune concurrently, and one of them measures at a time; no wait exceeds 300 s."""


@pytest.fixture
def model(two_products: Path) -> Path:
    return two_products


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    """A fleet; tests may kill its processes."""
    with running_fleet(tmp_path) as found:
        yield found


@pytest.fixture(scope="module")
def lasting_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A fleet for tests that leave it running."""
    with running_fleet(tmp_path_factory.mktemp("fleet")) as found:
        yield found


def tune_words(model: Path, library: Path, *more: str, trials: int = 16) -> tuple[str, ...]:
    return (
        "tune",
        str(model),
        "--trials",
        str(trials),
        "--exhaust",
        "--batch",
        "8",
        "--library",
        str(library),
        "--json",
        *more,
    )


def tune(model: Path, library: Path, *more: str, trials: int = 16) -> subprocess.CompletedProcess[str]:
    return run_fleet(*tune_words(model, library, *more, trials=trials), timeout_sec=_ENDS_WITHIN_SEC)


def workers_of(fleet: Fleet) -> list[psutil.Process]:
    """The worker processes that run kernels for the holder of a device."""
    warm = psutil.Process(fleet.agent.process.pid).children()
    return [worker for process in warm for worker in children_of(process)]


def children_of(process: psutil.Process) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.children()
    return []


def stored_trials(path: Path) -> int:
    if not path.exists():
        return 0
    with Library.open(path) as library:
        return len(library.records(kinds=[RecordKind.CANDIDATE]))


def with_fragments(path: Path) -> set[bool]:
    """Tell of the workloads in a library whether their operators are kept."""
    with Library.open(path) as library:
        shashes = [outline.shash for outline in library.outlines()]
        kept = library.fragments(library.scopes()[0].target_json, shashes)
    return {shash in kept for shash in shashes}


def until_stored(trials: int, path: Path, process: subprocess.Popen[str]) -> None:
    """Wait until a tune has stored so many trials; fail at once if it ends by itself."""
    eventually_sync(lambda: process.poll() is not None or stored_trials(path) >= trials, _WITHIN_SEC)
    assert process.poll() is None, process.communicate()[1]


def finish(process: subprocess.Popen[str]) -> dict[str, object]:
    out, err = process.communicate(timeout=_ENDS_WITHIN_SEC)
    assert process.returncode == 0, err
    return json.loads(out)  # type: ignore[no-any-return]


def test_a_model_is_tuned_checked_and_remembered(model: Path, tmp_path: Path) -> None:
    """One command leaves timed operators, right numbers, records in the library, and a page; the next run continues."""
    library = tmp_path / "library.sqlite"

    done = tune(model, library, "--seed", "1")
    report = json.loads(done.stdout)
    again = json.loads(tune(model, library, "--seed", "2", trials=4).stdout)
    shown = [
        json.loads(run_fleet("jobs", "show", one["job"], "--library", str(library), "--json").stdout)
        for one in (report, again)
    ]

    assert {"job", "trials", "wall_sec", "first_trial_sec", "workloads", "model"} <= set(report)
    assert with_fragments(library) == {True}
    assert 16 == report["trials"] == sum(item["trials"] for item in report["workloads"])
    for item in report["workloads"]:
        # Operators of 20 us cannot show gains; test_gain and the benchmarks do.
        assert min(item["best_sec"], item["untuned_sec"]) > 0
        assert {"name", "weight", "errors"} <= set(item)
    assert min(report["model"]["tuned_ms"], report["model"]["untuned_ms"]) > 0
    assert report["model"]["is_right"]
    assert report["model"]["max_abs_error"] < 1e-3
    assert again["trials"] == 4
    assert sum(item["trials_before"] for item in again["workloads"]) == 16
    for told, job in zip((report, again), shown, strict=True):
        bests = {item["name"]: item["best_sec"] for item in told["workloads"]}
        assert {item["name"]: item["best_sec"] for item in job["workloads"]} == pytest.approx(bests)
    page = run_fleet("report", report["job"], "--library", str(library), "--format", "markdown").stdout
    assert "\n| static |" in page
    assert "Its output agrees with ONNX Runtime: largest difference" in page
    with Library.open(library) as stored:
        assert [job.state for job in stored.jobs()] == [JobState.FINISHED] * 2
        known = {workload.shash for workload in stored.find_workloads("*")}
        assert sum(stored.trial_counts(list(known)).values()) == 20
        records = stored.records(job_name=str(report["job"]))
        before = list(itertools.takewhile(lambda record: record.kind is RecordKind.STATIC, records))
        assert known == {record.workload for record in before}, "static schedules come before all trials"


def test_a_missing_device_is_reported_before_the_import(model: Path, lasting_fleet: Fleet, tmp_path: Path) -> None:
    """The import of a large model takes minutes; a typo is reported before it."""
    words = tune_words(model, tmp_path / "library.sqlite", "--tracker", lasting_fleet.address, "--on", "kind=nothing")

    ended = run_fleet(*words)

    assert ended.returncode == 1
    assert "no device matches 'kind=nothing'" in ended.stderr
    assert "finding the workloads" not in ended.stderr
    assert "waiting for a device" not in ended.stderr


def test_a_tracker_that_dies_at_the_first_question_is_asked_again(model: Path, tmp_path: Path) -> None:
    """After kill -9 during its search for a device and a restart, the tune retries and gets the tracker's answer."""
    state = ("--no-discovery", "--state-dir", str(tmp_path / "tracker"))
    dying = Server([str(Path(__file__).with_name("dying_tracker.py")), *state], "tracker", tmp_path / "log").start()
    tuning = start_fleet(
        *tune_words(model, tmp_path / "library.sqlite", "--tracker", dying.address, "--on", "kind=nothing"),
        *("--connect-timeout", "120"),
    )
    assert dying.process.wait(150) == -signal.SIGKILL
    dying.kill()

    again = Server(["-m", "fleet.tracker", *state], "tracker", tmp_path / "log")
    again.address = dying.address
    again.start()
    _, err = tuning.communicate(timeout=140)
    again.stop()

    assert tuning.returncode == 1
    assert "no device matches 'kind=nothing'" in err


def test_interrupted_by_ctrl_c_it_goes_on_where_it_stopped(model: Path, tmp_path: Path) -> None:
    """Ctrl-C keeps every finished trial, prints the way to continue, and leaves no process; the same command does the
    rest.
    """
    library = tmp_path / "library.sqlite"
    process = start_fleet(*tune_words(model, library))
    until_stored(4, library, process)
    children = descendants(process.pid)

    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    kept = stored_trials(library)
    report = json.loads(tune(model, library).stdout)

    assert process.returncode == 130
    assert "the same command goes on from there" in " ".join(err.split())  # wrapped by its width
    assert "Traceback" not in err
    eventually_sync(lambda: not alive(children))
    with Library.open(library) as stored:
        newest, older = stored.jobs()
        assert (newest.state, older.state) == (JobState.FINISHED, JobState.INTERRUPTED)
        assert older.name == newest.conditions["resumes"]
        assert older.trials_done + report["trials"] == 16
        assert kept >= older.trials_done


def test_the_tracker_is_killed_during_a_tune(model: Path, fleet: Fleet, tmp_path: Path) -> None:
    """After kill -9 of the tracker and a restart, the job finishes, nothing is lost, and the device is never granted
    twice.
    """
    library = tmp_path / "library.sqlite"
    process = start_fleet(*tune_words(model, library, "--tracker", fleet.address))
    until_stored(2, library, process)
    lease = eventually_sync(lambda: fleet.snapshot()["leases"], _WITHIN_SEC)[0]  # type: ignore[index]

    fleet.tracker.kill()
    before = stored_trials(library)
    # It measures the candidates that it has; if there are none, it has released the device, and its worker ends.
    eventually_sync(lambda: stored_trials(library) > before or not workers_of(fleet), _WITHIN_SEC)
    fleet.tracker.start()
    eventually_sync(lambda: fleet.snapshot()["leases"] or process.poll() is not None, _WITHIN_SEC)
    leases = [] if process.poll() is not None else fleet.snapshot()["leases"]
    report = finish(process)

    assert report["trials"] == 16
    assert len(leases) <= 1  # type: ignore[arg-type]
    for found in leases:  # type: ignore[attr-defined]
        assert found["name"] == lease["name"] or int(found["epoch"]) > int(lease["epoch"])
    assert not any(item["errors"] for item in report["workloads"])  # type: ignore[attr-defined]
    eventually_sync(lambda: not fleet.snapshot()["leases"])


def test_the_agent_is_killed_during_a_tune(model: Path, fleet: Fleet, tmp_path: Path) -> None:
    """After kill -9 of the agent, its workers die, and the job continues with at most one trial lost once it is
    back.
    """
    library = tmp_path / "library.sqlite"
    process = start_fleet(*tune_words(model, library, "--tracker", fleet.address))
    until_stored(2, library, process)
    workers = descendants(fleet.agent.process.pid)

    fleet.agent.kill()
    eventually_sync(lambda: not alive(workers))
    fleet.agent.start()
    report = finish(process)

    assert workers
    assert report["trials"] == 16
    failed = [item["errors"] for item in report["workloads"] if item["errors"]]  # type: ignore[attr-defined]
    assert failed in ([], [{"DEVICE_FAULTED": 1}])
    assert report["model"]["is_right"]  # type: ignore[index]


def test_the_worker_is_killed_during_a_tune(model: Path, lasting_fleet: Fleet, tmp_path: Path) -> None:
    """kill -9 of the worker costs the candidate under way; the next one gets a new worker."""
    library = tmp_path / "library.sqlite"
    process = start_fleet(*tune_words(model, library, "--tracker", lasting_fleet.address))
    until_stored(2, library, process)

    for worker in eventually_sync(lambda: workers_of(lasting_fleet), _WITHIN_SEC):
        with contextlib.suppress(psutil.NoSuchProcess):
            worker.kill()
    report = finish(process)

    assert report["trials"] == 16
    kinds = {kind for item in report["workloads"] for kind in item["errors"]}  # type: ignore[attr-defined]
    assert kinds <= {"CRASHED"}


def test_the_client_is_killed_during_a_tune(model: Path, lasting_fleet: Fleet, tmp_path: Path) -> None:
    """kill -9 of the tuner: its builders and its worker die, the lease ends within the grace time, records stay."""
    library = tmp_path / "library.sqlite"
    process = start_fleet(*tune_words(model, library, "--tracker", lasting_fleet.address))
    until_stored(2, library, process)
    kept, builders = stored_trials(library), descendants(process.pid)

    process.kill()
    process.communicate()

    assert builders
    eventually_sync(lambda: not alive(builders))
    eventually_sync(lambda: not lasting_fleet.snapshot()["leases"], 60)
    eventually_sync(lambda: not alive(workers_of(lasting_fleet)))
    assert kept <= stored_trials(library)
    with Library.open(library) as stored:
        assert JobState.INTERRUPTED is stored.jobs()[0].state


def test_a_workload_that_has_had_enough_is_left_alone(model: Path, lasting_fleet: Fleet, tmp_path: Path) -> None:
    """Trials beyond `--enough` on this device model are not spent, and the report mentions it."""
    library = tmp_path / "library.sqlite"
    words = ("--tracker", lasting_fleet.address, "--no-model", "--enough", "3")

    first = tune(model, library, *words, "--seed", "1")
    assert first.returncode == 0, first.stderr
    done = tune(model, library, *words, "--seed", "2")
    report = json.loads(done.stdout)

    assert report["trials"] == 0
    assert [item["note"] for item in report["workloads"] if "3 are enough (--enough)" not in item["note"]] == []


def test_a_job_searches_for_the_minutes_that_it_was_given(model: Path, lasting_fleet: Fleet, tmp_path: Path) -> None:
    """Here they are over before it begins: each workload is reported so, and the model is still compared."""
    library = tmp_path / "library.sqlite"
    words = ("tune", str(model), "--minutes", "0.001", "--library", str(library), "--json")

    report = json.loads(run_fleet(*words, "--tracker", lasting_fleet.address, timeout_sec=_ENDS_WITHIN_SEC).stdout)

    assert report["trials"] == stored_trials(library)
    assert report["model"]["tuned_ms"] > 0
    assert [item["note"] for item in report["workloads"] if "0.001 min" not in item["note"]] == []


def test_only_the_named_workloads_are_tuned(model: Path, lasting_fleet: Fleet, tmp_path: Path) -> None:
    """--tasks and --top choose; a pattern without a match is an error that names the nearest."""
    library = tmp_path / "library.sqlite"
    words = ("--tracker", lasting_fleet.address, "--no-model")

    some = json.loads(tune(model, library, *words, "--top", "1", trials=3).stdout)
    none = tune(model, library, *words, "--tasks", "matmol", trials=3)

    assert len(some["workloads"]) == 1
    assert none.returncode == 2
    assert "did you mean 'matmul" in none.stderr


def test_the_workloads_of_a_file_are_tuned_alone(lasting_fleet: Fleet, tmp_path: Path) -> None:
    """Programs are weighted by their calls, a message names the one that TVM refuses, and no model is compared."""
    misfit = Fragment(
        inputs=(Tensor(shape=(3, 4), dtype="float32"),),
        weights=(Tensor(shape=(5, 4), dtype="float32"),),
        calls=(Call(operator="matmul", operands=("i0", "w0"), attributes={"out_dtype": None}),),
    )
    entries = [
        product_entry(8, 16, 32, models={"a": 3, "b": 2}),
        product_entry(8, 16, 64),
        product_entry(8, 16, 64, models={"c": 2}),
        entry_of(misfit),
    ]
    file = tmp_path / "workloads.yaml"
    file.write_text(to_text(entries, parse_target('{"kind": "llvm", "num-cores": 1}')))

    done = tune(file, tmp_path / "library.sqlite", "--tracker", lasting_fleet.address, trials=1)

    report = json.loads(done.stdout)
    weights = {item["operator"]: item["weight"] for item in report["workloads"]}
    assert (report["trials"], report["model"]) == (1, None)
    assert with_fragments(tmp_path / "library.sqlite") == {True}
    assert weights == {"matmul 8x16x32": 5, "matmul 8x16x64": 3}
    assert all(item["untuned_sec"] > 0 and item["best_sec"] > 0 for item in report["workloads"])
    assert "1 of 4 workloads cannot be lowered for this target; the first is matmul: refused by TVM's" in done.stderr


def test_a_simulated_device_is_tuned_on_as_any_other(model: Path, tmp_path: Path) -> None:
    """With default options, the whole model, which the device only simulates, is skipped with a message."""
    with running_fleet(tmp_path, "devices: [{driver: simulated, name: sim}]\n") as fleet:
        done = tune(model, tmp_path / "l.sqlite", "--on", "simulated", "--tracker", fleet.address)

    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["device"], report["trials"], report["model"]) == ("devices/sim", 16, None)
    assert "the whole model is not compared: devices/sim only pretends to run programs" in done.stderr
