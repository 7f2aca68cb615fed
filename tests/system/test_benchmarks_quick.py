"""The benchmarks, run as CI runs them: little work, every figure measured."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import LONG, NAMES
from benchmarks.common import REPOSITORY, alternate
from benchmarks.delay_link import DelayLink, LinkUnavailable, measure_round_trips_ms
from benchmarks.processes import Process, ProcessFailed
from fleet.testing import eventually_sync
from tests.programs import is_alive


def _figures(*arguments: str) -> dict[str, Any]:
    """Run a benchmark to its end and return the object of its last line."""
    command = [sys.executable, "-m", *arguments, "--quick", "--json"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_trial_overhead_measures_both_sides() -> None:
    """Every setting yields a cost for both sides; only a whole run can show which is smaller."""
    figures = _figures("benchmarks.trial_overhead")

    settings = [figures, figures["one_artifact"]]
    if "left_out" not in figures["link"]:
        settings.append(figures["link"])
        assert figures["link"]["peer"] > figures["link"]["round_trip_ms"]
    for setting in settings:
        assert setting["ours"] > 0
        assert setting["peer"] > 0
        assert setting["ratio"] == pytest.approx(setting["peer"] / setting["ours"], rel=0.01)
    assert figures["quick"] is True


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_tune_matmul_measures_both_sides() -> None:
    """Both sides tune, and the best schedules of both are timed again."""
    figures = _figures("benchmarks.tune_matmul")

    for side in ("peer", "ours"):
        (run,) = figures["all_rounds"][side]
        assert run["trials"] == figures["trials"]
        assert 0 < figures[f"{side}_first_trial_sec"] <= figures[side]
        assert figures[f"{side}_best_us"] > 0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_gateway_overhead_measures_stock_clients() -> None:
    """Stock `RPCRunner` measures on both sides, and stock `tune_tir` tunes through the gateway."""
    figures = _figures("benchmarks.gateway_overhead")

    assert figures["time_ratio"] == pytest.approx(figures["ours"] / figures["peer"], rel=0.01)
    assert figures["tune_tir"]["trials"] == {"ours": [2]}
    assert figures["tune_tir"]["ours_best_us"] > 0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_models_measures_every_engine_that_is_there() -> None:
    """Each model runs in ONNX Runtime and in ours with equal outputs, and the machine's peak is known."""

    figures = _figures("benchmarks", "models", "--models", "keyword_spotting")["models"]

    model = figures["models"]["keyword_spotting"]
    assert model["onnxruntime_ms"] > 0
    assert model["static_ms"] > 0
    assert model["wrong"] == []
    assert model["tuned_ms"] is None
    assert figures["ratio"] == pytest.approx(model["onnxruntime_ms"] / model["static_ms"], rel=0.01)
    assert figures["peak_gflop_per_sec"] > 1


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_curves_follow_every_search(tmp_path: Path) -> None:
    """Each search leaves a time per trial, a speed that only grows, and a line in the picture."""
    picture = tmp_path / "curves.svg"

    figures = _figures("benchmarks.curves", "--trials", "2", "--svg", str(picture))

    (layer,) = figures["layers"]
    assert layer["onnxruntime_us"] > 0
    for search in ("random", "guided", "ours"):
        assert len(layer[search]["all_trials"]) >= 2
        assert layer[search]["sec_to_95"] > 0
        speeds = figures["mean_speeds"][search]
        assert 0 < speeds[0] <= speeds[1] <= 1
    assert picture.read_text().count("<polyline") == 3


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_adaptive_measures_both_rules() -> None:
    """Both rules choose from recorded and from new candidates, and stopping candidates early takes less device time."""
    figures = _figures("benchmarks.adaptive")

    for found in (figures, figures["recorded"]):
        assert found["ours"] > 0
        assert found["ratio"] == pytest.approx(found["peer"] / found["ours"], rel=0.01)
    rules = figures["recorded"]["rules"]
    assert all(0 <= loss < 1 for rule in rules.values() for loss in rule["mean_loss"].values())
    # By recorded times alone, so it is the same everywhere.
    assert figures["recorded"]["share_mean_of_workloads"] <= 0.6
    assert figures["recorded"]["ours_loss"] - figures["recorded"]["peer_loss"] <= 0.01


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_device_share_reports_the_devices_use() -> None:
    """The device measures for a part of its time; faster kernels need more builders."""
    figures = _figures("benchmarks.device_share")

    assert 0 < figures["ours"] <= 1.01
    assert figures["device_ms_per_trial"] <= figures["wall_ms_per_trial"] * 1.01
    cores = list(figures["builder_cores_for_budget"].values())
    assert cores == sorted(cores, reverse=True)
    assert cores[-1] > 0


def test_web_page_renders_both_pages() -> None:
    """Only a whole run yields times to quote."""
    figures = _figures("benchmarks.web_page")

    assert all(ms > 0 for ms in figures["page_ms"].values())
    assert figures["ours"] > 0


@pytest.mark.slow
def test_tracker_turns_measures_every_turn() -> None:
    """The loop is measured from inside, through a method of asyncio's own; only a whole run yields its true lengths."""
    figures = _figures("benchmarks.tracker_turns")

    assert figures["turns"] > 1_000
    assert figures["longest_ms"][0] == figures["ours"] > 0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_lab_week_plays_each_scheduler(tmp_path: Path) -> None:
    """Sets wait about as long as single requests, and the plots have a row for each load."""
    picture = tmp_path / "week.svg"
    figures = _figures("benchmarks.lab_week", "--plot", str(picture))

    for load in ("usual", "high"):
        assert figures[load]["unserved"] == 0
        assert figures[load]["interactive_p95_sec"] < 30.0
        assert figures[load]["set_p95_ratio"] < 2.0
        assert 0.0 < figures[load]["held_idle_share"] < 0.02
        assert f"{load} load, prompt" in picture.read_text()
        assert set(figures["all"][load]) == {"first come first served", "sum of factors", "turns of accounts"}


@pytest.mark.slow
def test_forecast_judges_each_class() -> None:
    """Intervals hold most waits after half a day, and the peer is far behind."""
    figures = _figures("benchmarks.forecast")

    assert set(figures["coverage"]) == {"interactive", "normal", "batch", "sets"}
    assert figures["forecasts"]["batch"] > 10
    assert figures["median_error"] < figures["peer"] / 2


def test_recovery_measures_both_sides_of_both_kills() -> None:
    """A tracker and an agent are killed on both sides, and all of them serve again."""
    figures = _figures("benchmarks.recovery")

    for found in (figures, figures["agent"]):
        assert 0 < found["ours"]
        assert found["ratio"] == pytest.approx(found["peer"] / found["ours"], rel=0.05)
    assert 0 < figures["listening"] < figures["all_back"]


@pytest.mark.slow
def test_soak_reads_the_tracker_while_clients_come_and_go(tmp_path: Path) -> None:
    """Every sample has memory and latencies, each figure a line, and the picture a curve for each."""
    picture = tmp_path / "soak.svg"

    figures = _figures("benchmarks.soak", "--minutes", "0.1", "--svg", str(picture))

    assert figures["grants"] > 0
    assert all(sample["memory_mb"] > 1 and sample["files"] > 0 for sample in figures["samples"])
    assert figures["trends"].keys() == {"memory_mb", "cpu_ms_per_grant", "p50_ms", "p99_ms"}
    assert picture.read_text().count("<polyline") == 4


@pytest.mark.slow
def test_scale_reports_the_builders_of_a_large_fleet() -> None:
    """Costs are measured, and each kernel time has a row; `test_scale_model.py` tests the simulation itself."""
    figures = _figures("benchmarks.scale")

    assert list(figures["by_kernel_ms"]) == ["0.2", "1", "5", "20"]
    assert all(1 <= row["builders_needed"] <= figures["boards"] for row in figures["by_kernel_ms"].values())
    assert all(0 <= row["share"] <= 1 for row in figures["by_kernel_ms"].values())
    assert figures["costs"]["search_ms"] > 0 < figures["costs"]["build_ms"]
    assert figures["ours"] == figures["by_kernel_ms"]["5"]["builders_needed"]


@pytest.mark.slow
def test_search_cost_reports_processor_time_of_proposals() -> None:
    """Sixteen candidates of one workload are found, with their processor time."""
    figures = _figures("benchmarks.search_cost")

    assert figures["ms_by_workload"].keys() == figures["proposals"].keys() == {"matmul 256x256x256"}
    assert figures["ours"] > 0


@pytest.mark.slow
def test_all_run_by_one_command_refuses_unknown_names() -> None:
    """A misspelt name ends with usage, before anything runs."""

    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "trial_overheat"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 2
    assert "there are trial_overhead" in done.stderr


@pytest.mark.slow
def test_delay_link_holds_packets_for_the_round_trip() -> None:
    """A byte and its echo take the chosen time, and the link is removed afterwards."""
    try:
        with DelayLink(round_trip_ms=40) as link:
            round_trips_ms = measure_round_trips_ms(link, 10)
            names = [link.near.namespace, link.far.namespace]
    except LinkUnavailable as error:
        pytest.skip(str(error))

    assert 39.5 <= min(round_trips_ms) < 80
    left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    assert not [name for name in names if name in left]


@pytest.mark.slow
def test_process_ends_with_all_its_children(tmp_path: Path) -> None:
    """Children that a program leaves behind die with it."""
    code = "import subprocess, sys; print(subprocess.Popen(['sleep', '600']).pid, flush=True); sys.stdin.read()"

    with Process([sys.executable, "-c", code], tmp_path / "log") as process:
        child_pid = int(process.wait_for(r"^\d+$")[0])
        assert is_alive(child_pid)

    eventually_sync(lambda: not is_alive(child_pid))


@pytest.mark.slow
def test_process_that_fails_gives_the_reason(tmp_path: Path) -> None:
    """The error contains the program's output before its end."""
    with Process([sys.executable, "-c", "raise SystemExit('no such board')"], tmp_path / "log") as process:
        with pytest.raises(ProcessFailed, match=r"exit code 1(.|\n)*no such board"):
            process.wait_for("ready")
        with pytest.raises(ProcessFailed, match="no such board"):
            process.finish(5.0)


@pytest.mark.slow
def test_process_does_not_see_the_users_fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A benchmark never measures on, or writes into, the fleet that its user works with."""
    monkeypatch.setenv("FLEET_TRACKER", "10.0.0.1:9290")
    code = "import os; print([name for name in os.environ if name.startswith('FLEET_')])"

    with Process([sys.executable, "-c", code], tmp_path / "log") as process:
        lines = process.finish(20.0)

    assert lines == ["[]"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_prioritizer_replays_every_policy(tmp_path: Path) -> None:
    """Each scenario has figures of all policies with their intervals; the oracle beats the peer."""
    figures = _figures("benchmarks.prioritizer", "--svg", str(tmp_path / "curves.svg"))

    for scenario in ("all", "one_model", "three_models", "short_and_long"):
        means = {name: own["mean"] for name, own in figures[scenario].items() if name != "gap_closed"}
        assert means["gradient"] == 1.0
        assert means["oracle"] < means["gradient"]
        low, high = figures[scenario]["ours"]["interval"]
        assert low <= means["ours"] <= high
    assert figures["ratio"] == pytest.approx(figures["peer"] / figures["ours"], rel=0.01)
    assert (tmp_path / "curves.svg").read_text().startswith("<svg")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_prioritizer_live_runs_both_sides_on_a_real_fleet() -> None:
    """Both measure all trials of all jobs; only whole runs can show which reaches a latency sooner."""
    figures = _figures("benchmarks.prioritizer_live")

    sides = figures["tiny"]
    assert set(sides) == {"gradient", "ours"}
    for found in sides.values():
        assert found["trials"] >= 3 * 24
        assert 0.5 <= found["jain"] <= 1.0
    assert sides["gradient"]["all"] == [1.0]
    assert sides["gradient"]["reached"] == 1
    assert figures["ratio"] == pytest.approx(1 / figures["ours"], rel=0.01)


def test_alternate_turns_the_order_around() -> None:
    """Neither side always goes first, and each side's results stay its own."""
    order: list[str] = []

    results = alternate({side: lambda number, side=side: (order.append(side), number)[1] for side in ("a", "b")}, 3)

    assert order == ["a", "b", "b", "a", "a", "b"]
    assert results == {"a": [0, 1, 2], "b": [0, 1, 2]}


_AS_FILES = """
import contextlib, io, runpy, sys
folder, *names = sys.argv[1:]
outside = sys.path[1:]
for name in names:
    sys.path[:] = [folder, *outside]
    for module in [each for each in sys.modules if each.partition(".")[0] == "benchmarks"]:
        del sys.modules[module]
    sys.argv = [f"{folder}/{name}.py", "--help"]
    said = io.StringIO()
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(said):
        runpy.run_path(sys.argv[0], run_name="__main__")
    print(name, "--quick" in said.getvalue())
"""


@pytest.mark.slow
def test_each_runs_as_a_file_too(tmp_path: Path) -> None:
    """`python benchmarks/NAME.py` works from any directory. All run in one process, since they import much."""
    names = [*NAMES, *LONG]

    command = [sys.executable, "-c", _AS_FILES, str(REPOSITORY / "benchmarks"), *names]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)

    assert done.stdout.splitlines() == [f"{name} True" for name in names]
