"""Reports of tuning runs, from a library made by hand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from typer.testing import CliRunner

import fleet
from fleet.checking.weakness import Weakness
from fleet.cli.main import app
from fleet.domain.measuring import ErrorKind
from fleet.domain.scope import RecordScope
from fleet.errors import NotFound
from fleet.jobs.entry import kept_reports
from fleet.jobs.report import ModelReport, RatioReport, TuneReport, WorkloadReport
from fleet.library import JobState, Library, ModelRun, Record, RecordKind, StoredWorkload
from fleet.reports.document import Code, Heading, Paragraph, Table, to_html, to_markdown
from fleet.reports.figures import figures_of
from fleet.reports.report import Report

SCOPE = RecordScope(target_json="llvm", device_model="pi4", tvm_version="0.27")
CONTENTION = {"disturbances": [{"kind": "CONTENTION", "text": "busy"}], "device_sec": 0.5}


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "library.sqlite")


@pytest.fixture
def job(path: str) -> Iterator[tuple[Library, str]]:
    with Library.open(path) as library:
        for shash in "12":
            library.add_workload(StoredWorkload(shash=shash, name=f"w{shash}", mod_json="{}", flop=2e6))
        name = library.start_job(
            title="<script>.onnx", trials_total=4, conditions={"selector": "cpu", "trials": 4}
        ).name
        library.add_job_workloads(name, {"1": 2.0, "2": 1.0})

        def add(shash: str, trace: int, sec: float | None, **more: object) -> None:
            library.add_record(
                Record(
                    workload=shash,
                    scope=SCOPE,
                    trace_json=f"[[{trace}],[]]",
                    run_secs=() if sec is None else (sec,),
                    error=ErrorKind.TIMEOUT if sec is None else None,
                    job_name=name,
                    device_name="devices/pi",
                    provenance=more.pop("provenance", {"device_sec": 1.0}),  # type: ignore[arg-type]
                    **more,  # type: ignore[arg-type]
                )
            )

        add("1", 0, 9e-3, kind=RecordKind.BASELINE)
        add("2", 0, 5e-3, kind=RecordKind.BASELINE)
        add("1", 1, 4e-3, provenance=CONTENTION)
        add("2", 2, 3e-3)
        add("1", 1, 3e-3)
        add("1", 3, None)
        library.add_model_run(ModelRun(job_name=name, untuned_ms=24.0, tuned_ms=9.0))
        yield library, name


def test_a_candidate_that_is_measured_twice_is_one_trial(job: tuple[Library, str]) -> None:
    """Curves count trials; the model's is the sum of its operators, each as often as it is called."""
    library, name = job
    (one,) = figures_of(library.job(name), library.records(job_name=name, kinds=tuple(RecordKind))).by_device

    assert list(one.curves) == ["w1", "w2"]
    assert one.curves["w1"].by_trial == (9e-3, 4e-3, 3e-3)
    assert one.model_curve.by_trial == pytest.approx((23e-3, 2 * 4e-3 + 5e-3, 2 * 4e-3 + 3e-3, 2 * 3e-3 + 3e-3))
    assert one.model_curve.by_time[-1] == pytest.approx(9e-3)


def test_a_curve_starts_from_earlier_results(job: tuple[Library, str]) -> None:
    """A second run of the same command repeats no static schedules, and does not measure every operator."""
    library, first = job
    library.finish_job(first, JobState.FINISHED)
    second = library.start_job(title="again.onnx", trials_total=1).name
    library.add_job_workloads(second, {"1": 2.0, "2": 1.0})

    def add(trace: int, sec: float, kind: RecordKind) -> None:
        library.add_record(
            Record(
                workload="1", scope=SCOPE, trace_json=f"[[{trace}],[]]", run_secs=(sec,), job_name=second, kind=kind
            )
        )  # fmt: skip

    add(8, 2e-3, RecordKind.STATIC)
    add(9, 1e-3, RecordKind.CANDIDATE)
    (one,) = figures_of(library.job(second), library.records(job_name=second, kinds=tuple(RecordKind))).by_device

    assert one.model_curve.by_trial == pytest.approx((2 * 2e-3 + 3e-3, 2 * 1e-3 + 3e-3))
    assert one.model_curve.by_time[0] == pytest.approx(2 * 2e-3 + 3e-3)
    text = Report.of(library, second).text()
    assert "no curve" not in text
    assert re.search(r"^ +0 +1 trials$", text, re.MULTILINE)


def test_a_static_schedule_alone_has_a_curve(path: str) -> None:
    """A run of `--trials 0` has one, too; an operator without a time is named instead."""
    with Library.open(path) as library:
        library.add_workload(StoredWorkload(shash="1", name="w1", mod_json="{}"))
        library.add_workload(StoredWorkload(shash="2", name="w2", mod_json="{}"))
        name = library.start_job(title="a.onnx").name
        library.add_job_workloads(name, {"1": 1.0})
        static = Record(
            workload="1", scope=SCOPE, trace_json="[[1],[]]", run_secs=(1e-3,), job_name=name, kind=RecordKind.STATIC
        )
        library.add_record(static)
        assert "best so far" in Report.of(library, name).text()

        library.add_job_workloads(name, {"2": 1.0})
        assert Report.of(library, name).text().startswith(f"{name} has no curve: no time is known of w2")


def test_the_report_of_a_reverted_job_names_its_targets(job: tuple[Library, str]) -> None:
    """Its records are read for the report although they are used for nothing."""
    library, name = job
    library.finish_job(name, JobState.FINISHED)
    library.queue.revert(name)

    assert Report.of(library, name).figures.targets == (SCOPE.target_json,)


def test_device_seconds_are_split_by_purpose(job: tuple[Library, str]) -> None:
    """Trials, failed trials and baselines are separate; disturbances are counted by kind."""
    library, name = job
    (one,) = figures_of(library.job(name), library.records(job_name=name, kinds=tuple(RecordKind))).by_device

    assert one.device_sec == {"unscheduled programs": 2.0, "trials": 2.5, "trials that failed": 1.0}
    assert dict(one.disturbances) == {"CONTENTION": 1}


def test_the_page_is_self_contained_and_escapes_names(job: tuple[Library, str]) -> None:
    """One file: no script, no link, no font from elsewhere; a model's name cannot become a tag."""
    page = Report.of(*job).html()

    assert "<script" not in page
    assert "&lt;script&gt;.onnx" in page
    assert set(re.findall(r"https?://[^\s\"']+", page)) == {"http://www.w3.org/2000/svg"}
    assert "24 ms" in page
    assert "ONNX Runtime" not in page  # no timing, so no column
    assert "1 TIMEOUT" in page


def test_a_report_has_the_runs_results_and_its_records(job: tuple[Library, str]) -> None:
    """The report has static schedules, the model beside PyTorch, the verdict on its answers, and reasons for ends."""
    library, name = job
    workload = WorkloadReport(
        name="w2", operator="w2", weight=1, trials=1, trials_before=0, untuned_us=5e3, static_us=4e3, best_us=3e3,
        gflops=None, speedup=None, uses_schedule=True, weakness=None, errors={}, note="nothing left to gain",
    )  # fmt: skip
    model = ModelReport(
        untuned_ms=24.0, static_ms=12.0, tuned_ms=8.0, reference_ms=16.0, reference="torch", max_abs_error=2e-5,
        tolerance=1e-3, against_static=RatioReport(ratio=0.667, low=0.61, high=0.72),
        against_engine=RatioReport(ratio=0.5, low=0.4, high=1.6),
    )  # fmt: skip
    report = TuneReport(
        job=name, title="m", device="devices/pi", device_model="pi4", library="l", trials=3, wall_sec=1.0,
        first_trial_sec=None, last_record_sec=None, workloads=(workload,), model=model,
    )  # fmt: skip
    for trace, (sec, provenance) in enumerate([(9e-3, {}), (4.321e-3, {}), (5e-3, CONTENTION)]):
        library.add_record(
            Record(
                workload="2", scope=SCOPE, trace_json=f"[[9{trace}],[]]", run_secs=(sec,), job_name=name,
                kind=RecordKind.STATIC, provenance=provenance,
            )
        )  # fmt: skip
    library.finish_job(name, JobState.FINISHED, report=kept_reports([report]))

    found = Report.of(library, name)

    page = found.markdown()
    assert "| static | 12 ms | 2.00 |" in page
    assert "| PyTorch | 16 ms | 1.50 |" in page
    assert "takes 0.61 to 0.72 of the static program's and 0.40 to 1.60 of PyTorch's time." in page
    assert "Its output agrees with PyTorch: largest difference 2e-05, 0.001 allowed." in page
    assert "| w2 | 1 | 1 | 5 ms | 4.321 ms | 3 ms |" in page
    assert "w2: nothing left to gain" in page
    weak = replace(model, weakness=Weakness.CONSTANT)
    library.finish_job(name, JobState.FINISHED, report=kept_reports([replace(report, model=weak)]))
    assert "not checked: the output is constant." in Report.of(library, name).markdown()
    assert found.text().endswith("the whole model: untuned 24 ms, static 12 ms, tuned 8 ms, PyTorch 16 ms")


def test_the_curves_are_one_picture_that_a_notebook_shows(job: tuple[Library, str]) -> None:
    """Well-formed XML as a file has to be, the workloads below the model, each with lines in it."""
    plot = Report.of(*job).plot()

    root = ET.fromstring(plot)  # noqa: S314 - made a moment ago
    model, workloads = root.findall("{http://www.w3.org/2000/svg}svg")
    assert list(model.iter("{http://www.w3.org/2000/svg}polyline"))
    assert list(workloads.iter("{http://www.w3.org/2000/svg}polyline"))
    assert float(workloads.attrib["y"]) == float(model.attrib["height"])
    assert plot._repr_html_() == plot


def test_a_notebook_shows_the_page_and_stays_as_it_is(job: tuple[Library, str]) -> None:
    """A part of a page: no head of its own, and no rule of its style that reaches beyond it; one line at a prompt."""
    library, name = job
    report = fleet.report(name, library=library.url)
    shown = report._repr_html_()

    assert report == fleet.report(library=library.url)
    assert shown in report.html()
    root = ET.fromstring(re.sub(r"<style>.*?</style>", "", shown, flags=re.DOTALL))  # noqa: S314 - made a moment ago
    assert root.attrib == {"class": "fleet-report"}
    rules = re.findall(r"([^{}]+)\{[^{}]*\}", re.findall(r"<style>(.*?)</style>", shown, flags=re.DOTALL)[0])
    assert rules
    assert [
        rule for rule in rules if not all(part.strip().startswith(".fleet-report") for part in rule.split(","))
    ] == []
    assert repr(report) == f"<Report of {name} RUNNING: <script>.onnx, 3 trials>"


def test_a_job_that_is_not_there_is_named(path: str) -> None:
    """A library without jobs is named, too."""
    Library.open(path).close()

    with pytest.raises(NotFound, match="has no jobs; `fleet tune` makes one"):
        fleet.report(library=path)
    with pytest.raises(NotFound, match="jobs/none"):
        fleet.report("none", library=path)


def test_the_command_to_repeat_a_run_has_its_shapes(path: str) -> None:
    """The command tunes the same program again."""
    conditions = {
        "selector": "kind=cpu",
        "trials": 4,
        "tasks": ["conv*"],
        "shapes": [{"ids": [1, 64]}, {"ids": [1, 128]}],
        "input_batch_size": 2,
        "batch_size": 8,
    }
    with Library.open(path) as library:
        name = library.start_job(title="a model.onnx", conditions=conditions).name
        page = Report.of(library, name).markdown()

    assert (
        "fleet tune 'a model.onnx' --on kind=cpu --trials 4 --batch-size 2 --tasks 'conv*' "
        "--shape ids=1,64 --shape ids=1,128\n"
    ) in page


def test_a_run_without_a_trial_is_reported_to_have_no_curve(path: str) -> None:
    """An empty line would look like an error."""
    with Library.open(path) as library:
        name = library.start_job(title="a.onnx").name
        report = Report.of(library, name)

    assert report.text().startswith(f"{name} has no curve")


def test_markdown_and_html_have_the_same_figures() -> None:
    """Both formats come from the same blocks; a bar in a cell does not end it."""
    blocks = [
        Heading("T", 1),
        Paragraph("p"),
        Table(["a", "b", "c"], [["x|y", "1", "w"]], frozenset({"c"})),
        Code("$ x"),
    ]

    assert "| x\\|y | 1 | w |" in to_markdown(blocks)
    assert "| --- | ---: | --- |" in to_markdown(blocks)
    assert '<td>x|y</td><td class="number">1</td><td>w</td>' in to_html(blocks, title="T")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "best so far"),
        (("-o", "r.html"), "<!doctype html>"),
        (("-o", "r.md"), "# Tuning"),
        (("-o", "r.svg"), "<svg"),
        (("--format", "markdown"), "# Tuning"),
    ],
)
def test_the_format_is_that_of_the_file(
    job: tuple[Library, str],
    path: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    said: str,
) -> None:
    """The terminal gets text; a file gets a page."""
    monkeypatch.chdir(tmp_path)

    named = CliRunner().invoke(app, ["report", job[1].removeprefix("jobs/"), "--library", path, *words])
    done = CliRunner().invoke(app, ["report", "--library", path, *words])

    assert done.exit_code == 0, done.output
    assert named.stdout == done.stdout
    assert said in (Path(words[1]).read_text() if words[:1] == ("-o",) else done.stdout)


def test_a_page_is_utf_8_whatever_the_terminal_is(job: tuple[Library, str], path: str, tmp_path: Path) -> None:
    """The page declares its encoding; a model's name may have any letters."""
    library, _ = job
    name = library.start_job(title="modèle-模型.onnx", trials_total=1).name
    page = tmp_path / "page.html"
    command = [sys.executable, "-X", "utf8=0", "-m", "fleet", "report", name, "--library", path, "-o", str(page)]

    done = subprocess.run(
        command, env={**os.environ, "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}, capture_output=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert "modèle-模型.onnx" in page.read_text(encoding="utf-8")
