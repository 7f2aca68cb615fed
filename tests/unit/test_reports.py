"""Reports of tuning runs, from a library made by hand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from typer.testing import CliRunner

from fleet.cli.main import app
from fleet.domain.measuring import ErrorKind
from fleet.domain.scope import RecordScope
from fleet.library import Library, ModelRun, NewRecord, RecordKind, StoredWorkload
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
                NewRecord(
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
    assert one.curves["w1"].by_trial == (4e-3, 3e-3)
    assert one.model_curve.by_trial == pytest.approx((2 * 4e-3 + 5e-3, 2 * 4e-3 + 3e-3, 2 * 3e-3 + 3e-3))
    assert one.model_curve.by_time[-1] == pytest.approx(9e-3)


def test_device_seconds_are_told_by_what_they_went_to(job: tuple[Library, str]) -> None:
    """Trials, failed ones and baselines apart; disturbances by kind."""
    library, name = job
    (one,) = figures_of(library.job(name), library.records(job_name=name, kinds=tuple(RecordKind))).by_device

    assert one.device_sec == {"unscheduled programs": 2.0, "trials": 2.5, "trials that failed": 1.0}
    assert dict(one.disturbances) == {"CONTENTION": 1}


def test_the_page_needs_nothing_else_and_escapes_names(job: tuple[Library, str]) -> None:
    """One file: no script, no link, no font from elsewhere; a model's name cannot become a tag."""
    page = Report.of(*job).html()

    assert "<script" not in page
    assert "&lt;script&gt;.onnx" in page
    assert set(re.findall(r"https?://[^\s\"']+", page)) == {"http://www.w3.org/2000/svg"}
    assert "24 ms" in page
    assert "1 TIMEOUT" in page


def test_the_curves_are_well_formed_pictures(job: tuple[Library, str]) -> None:
    """Each is XML with lines in it."""
    for picture in Report.of(*job).plot().split("</svg>")[:-1]:
        root = ET.fromstring(f"{picture}</svg>")  # noqa: S314 - made a moment ago
        assert list(root.iter("{http://www.w3.org/2000/svg}polyline"))


def test_markdown_and_html_say_the_same() -> None:
    """Blocks become both; a bar in a cell does not end it."""
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
    """Text for a terminal, a page for a file."""
    monkeypatch.chdir(tmp_path)

    done = CliRunner().invoke(app, ["report", job[1].removeprefix("jobs/"), "--library", path, *words])

    assert done.exit_code == 0, done.output
    assert said in (Path(words[1]).read_text() if words[:1] == ("-o",) else done.stdout)


def test_a_page_is_utf_8_whatever_the_terminal_is(job: tuple[Library, str], path: str, tmp_path: Path) -> None:
    """The page says so itself; a model's name may have any letters."""
    library, _ = job
    name = library.start_job(title="modèle-模型.onnx", trials_total=1).name
    page = tmp_path / "page.html"
    command = [sys.executable, "-X", "utf8=0", "-m", "fleet", "report", name, "--library", path, "-o", str(page)]

    done = subprocess.run(
        command, env={**os.environ, "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}, capture_output=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert "modèle-模型.onnx" in page.read_text(encoding="utf-8")
