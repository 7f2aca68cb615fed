"""A job's progress on its workloads."""

from __future__ import annotations

import json
import math
from collections import deque
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console, RenderableType
from rich.spinner import Spinner

from fleet.checking.weakness import Weakness
from fleet.cli.tune_view import next_lines, render_progress, render_report
from fleet.domain.measuring import Evaluator, TensorSpec
from fleet.domain.observation import Observation
from fleet.domain.workload import Workload
from fleet.errors import ConfigError
from fleet.jobs.options import TRIAL_EVALUATOR, TuneOptions, trial_evaluator
from fleet.jobs.report import ModelReport, OptionReport, PlacedReport, RatioReport, TuneReport
from fleet.optimizer.core.news import News, Topic
from fleet.optimizer.core.planning import forget_forecast, keep_outcome, plan
from fleet.optimizer.core.progress import JobProgress, WorkloadProgress
from fleet.optimizer.prioritizer.values import BatchOutcome
from fleet.optimizer.recall import choose_workloads
from fleet.optimizer.reporting import report_progress, report_workload
from tests.unit.optimizer_core import conditions

CONVOLUTION = (
    TensorSpec((1, 512, 13, 13), "float32"),
    TensorSpec((1000, 512, 1, 1), "float32"),
    TensorSpec((1, 1000, 13, 13), "float32", is_output=True),
)

NOTHING_NEW = News(topic=Topic.ENDED, detail="nothing new")


def progress(name: str = "w", args: tuple[TensorSpec, ...] = (), **facts: object) -> WorkloadProgress:
    workload = Workload(name=name, weight=2, mod_json="", shash=name, flop=2e6, args=args)
    return WorkloadProgress(workload=workload, **facts)  # type: ignore[arg-type]


def report_of(model: ModelReport) -> TuneReport:
    return TuneReport(
        job="jobs/1", title="m", device="", device_model="", library="", trials=1, wall_sec=1.0, first_trial_sec=None,
        last_record_sec=None, workloads=(), model=model,
    )  # fmt: skip


def shown(report: TuneReport) -> str:
    """Return the output of `fleet tune` for a report."""
    return text_of(render_report(report))


def text_of(shown: RenderableType) -> str:
    out = StringIO()
    Console(file=out, width=200, color_system=None).print(shown)
    return out.getvalue()


def test_the_current_time_is_the_best_that_is_known() -> None:
    """A candidate that is slower than the unscheduled program changes nothing."""
    assert 3.0 == progress(untuned_sec=4.0, right={"[]": 3.0}).current_sec
    assert 4.0 == progress(untuned_sec=4.0, right={"[]": 5.0}).current_sec
    assert 2.0 == progress(untuned_sec=4.0, right={"[]": 2.0}).speedup
    assert 1.0 == progress().speedup


def test_few_trials_do_not_make_a_workload_dear() -> None:
    """Until a whole batch was measured, a trial is assumed to take as long as those of other workloads."""
    records = [Observation(workload="w", trace_json="t", run_sec=1.0)]
    items = [
        progress("begun", trials=2, device_sec=60.0, right={"[]": 1.0}, records=records),
        progress("known", trials=16, device_sec=1.6, right={"[]": 1.0}, records=records),
        progress("dear", trials=32, device_sec=32.0, right={"[]": 1.0}, records=records),
    ]

    planned = plan(JobProgress(workloads=items), conditions(batch_size=16), 100, now_sec=0.0)

    trial_secs = {batch.workload: batch.reason.device_sec / batch.count for batch in planned.batches}
    assert pytest.approx({"begun": 33.6 / 48, "known": 0.1, "dear": 1.0}) == trial_secs


def test_a_deadline_raises_the_worth_of_a_jobs_batches() -> None:
    """The factor is the inverse of the time to spare, at most ten; a job without a number of trials has none."""
    records = [Observation(workload="w", trace_json="t", run_sec=1.0)]
    job = JobProgress(workloads=[progress(trials=16, device_sec=16.0, right={"[]": 1.0}, records=records)])

    def factor(deadline_sec: float, **terms: object) -> float:
        """Return the factor after ten seconds, with 20 trials left of a second each."""
        job.builders.build_sec = job.builders.search_sec = 0.0
        job.builders.builds = job.builders.searches = 10**9
        found = plan(job, conditions(deadline_sec=deadline_sec, **terms), 20, now_sec=10.0)
        return found.batches[0].reason.priority

    assert factor(math.inf) == 1.0
    assert factor(50.0) == pytest.approx(2.0)
    assert factor(50.0, priority=3.0) == pytest.approx(6.0)
    assert factor(31.0) == factor(15.0) == 10.0
    assert factor(50.0, is_bound_by_time=True) == 1.0


def test_a_batch_is_judged_by_its_gain() -> None:
    """Its gain is kept beside its forecast; forecasts without a measurement, and batches without a forecast, are
    dropped.
    """
    item = progress("w", right={"[]": 4.0}, judged_sec=4.0, forecasts=deque([0.5, 0.1, 0.0, 0.2]))

    forget_forecast(item)
    item.right["better"] = 3.0
    for _ in range(3):
        keep_outcome(item)

    assert [BatchOutcome(expected=0.5, gained=0.25), BatchOutcome(expected=0.1, gained=0.0)] == item.outcomes


def test_totals_are_weighted() -> None:
    """The model runs each workload `weight` times; those without a known time are left out."""
    job = JobProgress(workloads=[progress("a", untuned_sec=3.0, right={"[]": 1.0}), progress("b")])

    assert (6.0, 2.0) == (job.total_sec(tuned=False), job.total_sec(tuned=True))


def test_the_report_prints_unknown_instead_of_infinite() -> None:
    """JSON has no infinity, and people have no use for it."""
    known = report_workload(progress(untuned_sec=4e-3, right={"[]": 1e-3}))
    unknown = report_workload(progress())

    assert (4000.0, 1000.0, 2.0, 4.0) == (known.untuned_us, known.best_us, known.gflops, known.speedup)
    assert (None, None, None, None) == (unknown.untuned_us, unknown.best_us, unknown.gflops, unknown.speedup)


def test_shapes_are_read() -> None:
    """--shape names an input and its dimensions; anything else shows a good one."""
    from fleet.cli.shapes import parse_shape

    assert ("data", (1, 3, 224, 224)) == parse_shape("data=1,3,224,224")
    assert ("odd=name", (4,)) == parse_shape("odd=name=4")
    for bad in ("", "data", "data=", "=1", "data=1,x", "data=1,-1"):
        with pytest.raises(ConfigError, match="data=1,3,224,224"):
            parse_shape(bad)


def test_the_report_of_a_job_is_a_table(request: pytest.FixtureRequest) -> None:
    """Workloads, the whole model beside ONNX Runtime, and whether its numbers are right, in 80 columns."""
    from io import StringIO

    from rich.console import Console

    from fleet.cli.tune_view import render_report

    report = TuneReport(
        job="jobs/1", title="model.onnx", device="devices/pc", device_model="A PC", library="library.sqlite",
        trials=48, wall_sec=61.2, first_trial_sec=4.5, last_record_sec=60.0,
        workloads=(
            report_workload(
                progress(
                    "fused_conv2d17_add9_relu9",
                    CONVOLUTION,
                    untuned_sec=85e-3,
                    right={"[]": 1.5e-3},
                    trials=32,
                )
            ),
            report_workload(progress("softmax", untuned_sec=2e-6, closing=NOTHING_NEW, trials_before=9)),
        ),
        model=ModelReport(
            untuned_ms=290.1, static_ms=12.0, tuned_ms=11.0, onnxruntime_ms=2.5, max_abs_error=3.6e-7,
            against_static=RatioReport(ratio=0.92, low=0.9, high=0.94),
            against_engine=RatioReport(ratio=4.4, low=4.351, high=4.449),
            reference="onnxruntime",
        ),
    )  # fmt: skip
    out = StringIO()

    Console(file=out, width=80, color_system=None).print(render_report(report))

    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    golden = request.path.parents[1] / "golden/tune_report.txt"
    assert golden.read_text().splitlines() == lines


def test_a_report_lists_identical_and_stopped_programs() -> None:
    """A program is not compared with itself; a stopped untuned model has a bound instead of a time."""
    model = ModelReport(untuned_above_ms=100.0, static_ms=10.0, tuned_ms=10.0, is_static=True, max_abs_error=0.0)

    lines = [line.split("  ") for line in shown(report_of(model)).splitlines()]
    rows = {line[0]: [word.strip() for word in line[1:] if word.strip()] for line in lines}

    assert rows["untuned"] == ["more than 100 ms", "1.0x"]
    assert rows["static"] == ["10 ms", "more than 10x", "the same program"]
    assert rows["tuned"] == ["10 ms", "more than 10x"]


def test_a_report_gives_the_reason_for_unchecked_answers() -> None:
    """Without an engine, stopping the untuned model leaves no reference for the answers."""
    model = ModelReport(tuned_ms=10.0, unchecked="no engine is installed", untuned_problem="held 900 MiB")

    text = shown(report_of(model))

    assert "not checked: no engine is installed" in text
    assert "the untuned model was not timed: held 900 MiB" in text


def test_a_report_has_the_tolerance_of_a_quantized_model() -> None:
    """The difference needs its tolerance beside it, or would look like an error; each engine has its own name."""
    model = ModelReport(
        tuned_ms=1.0, reference_ms=2.0, max_abs_error=0.06, tolerance=0.31, roundings=30, reference="ai_edge_litert"
    )
    report = report_of(model)

    text = shown(report)

    assert "agrees with LiteRT: largest difference 0.06, 0.31 allowed: numbers are rounded to 8-bit" in text
    assert "ONNX Runtime" not in text


def test_a_report_has_the_effect_of_running_in_the_model() -> None:
    """The report counts workloads compared in the model, those with another schedule than the fastest alone, and slow
    ones.
    """
    alone, static = (
        OptionReport(alone_us=sec, in_place_us=9.0 - sec, is_static=is_chosen, is_chosen=is_chosen)
        for sec, is_chosen in ((1.0, False), (2.0, True))
    )
    placed = PlacedReport(name="conv", operator="conv2d", is_slower_in_place=True, options=(alone, static))
    model = ModelReport(tuned_ms=1.0, max_abs_error=0.0, in_place=(placed, replace(placed, is_slower_in_place=False)))
    report = report_of(model)

    text = shown(report)

    assert "of 2 workloads inside the model: 2 use another schedule than the fastest alone; 1 is" in text
    assert "in_place" in report.to_json()["model"]  # type: ignore[operator]


def test_a_report_gives_the_reason_for_static_schedules() -> None:
    """The static schedules are faster as a whole than those that are fastest alone; no slower model is kept."""
    model = ModelReport(static_ms=1.0, tuned_ms=1.0, alone_ms=1.5, max_abs_error=0.0, keeps_static=True)
    report = report_of(model)

    text = shown(report)

    assert "make the model slower (1.5 ms), so it keeps its static schedules" in text
    assert "SLOWER" not in text


def test_an_import_difference_blames_no_schedule() -> None:
    """The verdict equals that of `fleet serve-check`; before, the two contradicted each other."""
    from fleet.cli.tune import check_model
    from fleet.errors import FleetError
    from fleet.optimizer.model_comparison import blame

    model = ModelReport(
        tuned_ms=1.0, max_abs_error=0.1, reference="onnxruntime", is_right=False,
        message=f"output 0 differs; {blame('')}",
    )  # fmt: skip
    report = report_of(model)

    text = shown(report)

    assert "WRONG: output 0 differs; the untuned program answers the same, so that it is the import" in text
    with pytest.raises(FleetError, match="output 0 differs"):
        check_model(report)
    check_model(replace(report, model=replace(model, is_right=True, message="")))


def test_a_search_of_some_minutes_is_as_far_as_its_time() -> None:
    """The maximum of trials is not the user's choice, so neither the bar nor the text counts towards it."""
    running = JobProgress(trials_total=512, is_bound_by_time=True, search_sec=60.0, workloads=[progress(trials=5)])
    report = report_progress(running, elapsed_sec=15.0)

    text = text_of(render_progress(report, Spinner("dots")))

    assert (report.share, report.trials_total) == (0.25, 0)
    assert "5 trials" in text
    assert "15 of 60 s" in text


def test_a_search_with_trials_and_a_deadline_is_as_far_as_the_further_of_both() -> None:
    """The limit that is reached first ends the search."""
    running = JobProgress(trials_total=10, search_sec=60.0, workloads=[progress(trials=5)])

    assert report_progress(running, elapsed_sec=15.0).share == 0.5
    assert report_progress(running, elapsed_sec=45.0).share == 0.75
    assert report_progress(running, elapsed_sec=90.0).share == 1.0
    assert report_progress(JobProgress(), elapsed_sec=90.0).share == 0.0


def test_a_continued_job_counts_earlier_trials() -> None:
    """Earlier trials count even if no trials are left."""
    report = report_progress(JobProgress(trials_total=0), elapsed_sec=1.0, done_before=64)

    assert (report.trials_done, report.trials_total, report.share) == (64, 64, 1.0)


def test_a_run_with_minutes_goes_on_with_none_that_counts_trials(tmp_path: Path) -> None:
    """Their numbers of trials mean different things: a few minutes would end after the few trials that were left."""
    counted = TuneOptions(model=tmp_path / "m.onnx", selector="cpu")

    assert replace(counted, minutes=5.0).conditions() != counted.conditions()
    assert replace(counted, minutes=5.0).conditions() != replace(counted, minutes=6.0).conditions()


def test_an_interrupted_run_reports_its_stored_trials() -> None:
    """The line has the number of stored trials, if any, and that the same command resumes."""
    from fleet.cli.tune_view import stopped_line

    some = JobProgress(trials_total=9, workloads=[progress(trials=2), progress(trials=3)])

    assert "5/9 trials" in stopped_line(some)
    some.is_bound_by_time = True
    assert "stopped: 5 trials" in stopped_line(some)
    assert "before the first trial" in stopped_line(JobProgress())


def test_wishes_about_heat_and_caches_reach_every_comparison() -> None:
    """Times of cold and warm runs do not compare: baselines and the last comparison rest and flush as candidates do."""
    evaluator = trial_evaluator(cooldown_ms=50, cool_below_c=55, flush_cache=True)

    assert evaluator.cooldown_interval_ms == 50
    assert evaluator.cool_below_c == 55
    assert evaluator.flush_cache
    assert trial_evaluator() == TRIAL_EVALUATOR
    baseline = conditions(evaluator).like_trials(Evaluator(number=7, repeat=2))
    assert (baseline.number, baseline.repeat) == (7, 2)
    assert (baseline.cooldown_interval_ms, baseline.cool_below_c, baseline.flush_cache) == (50, 55, True)
    with pytest.raises(ConfigError, match="between 0 and 150"):
        trial_evaluator(cool_below_c=1000)


def test_slower_results_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    """Red text and JSON report a schedule or model that is slower than none, with a remedy."""
    from rich.console import Console

    from fleet.cli.tune_view import render_report

    report = TuneReport(
        job="jobs/1", title="model.onnx", device="devices/pc", device_model="A PC", library="library.sqlite",
        trials=8, wall_sec=6.2, first_trial_sec=4.5, last_record_sec=6.0,
        workloads=(report_workload(progress("conv", untuned_sec=1e-3, right={"[]": 2e-3})),),
        model=ModelReport(untuned_ms=1.0, tuned_ms=2.0, is_slower=True, weakness=Weakness.UNCHANGED),
    )  # fmt: skip

    Console(width=100, force_terminal=True, color_system="standard").print(render_report(report))
    shown = capsys.readouterr().out

    assert "\x1b[1;31mSLOWER: the tuned model takes longer than with static schedules; export it with" in shown
    assert "conv: no schedule is faster than the unscheduled program, which is kept" in shown
    assert ("2 ms" in shown, "0.5x" in shown) == (True, True), "the best as `fleet library best` has it"
    assert "not checked: the output does not depend on the input" in shown
    written = json.loads(json.dumps(report.to_json()))
    assert written["model"]["is_slower"] is True
    assert written["model"]["weakness"] == "unchanged"
    assert written["workloads"][0]["uses_schedule"] is False
    assert written["workloads"][0]["speedup"] == 1.0
    assert written["repeats"]["count"] == written["repeated"] == 0


@pytest.mark.parametrize("pattern", ["fused_conv2d*", "conv2d 1x1 512->*"])
def test_a_pattern_chooses_by_either_name(pattern: str) -> None:
    """TVM's name and the displayed name both identify a workload."""
    items = [progress("fused_conv2d_add", CONVOLUTION), progress("softmax")]

    chosen = choose_workloads([item.workload for item in items], [pattern], "model.onnx")

    assert [workload.name for workload in chosen] == ["fused_conv2d_add"]


def test_a_run_ends_with_the_next_commands() -> None:
    """The commands can be pasted: the same shapes, weights and library, and --untuned if the tuned model is slower."""
    options = TuneOptions(
        model=Path("nets/my model.onnx"),
        selector="name=pi",
        tracker="lab:9290",
        shapes=({"x": (1, 3)}, {"x": (2, 3)}),
        random_weights=True,
    )
    report = replace(report_of(ModelReport(is_slower=True)), library="other.sqlite", target_json='{"kind": "cuda"}')

    assert next_lines(options, report) == [
        "next:",
        "  fleet export 'nets/my model.onnx' -o 'my model.fleet' --target '{\"kind\": \"cuda\"}' --shape x=1,3 "
        "--shape x=2,3 --random-weights --untuned --library other.sqlite",
        "  fleet serve-check 'my model.fleet' --on name=pi --tracker lab:9290",
    ]
    assert next_lines(replace(options, program="matmul-64"), report) == []
