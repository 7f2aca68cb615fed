"""The report of a whole library: its figures from values made by hand, and the command on libraries in files."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fleet.cli.main import app
from fleet.domain.freshness import judge
from fleet.domain.making import Making
from fleet.domain.measuring import TensorSpec
from fleet.domain.scope import RecordScope
from fleet.library import Library, Record, StoredWorkload, WorkloadOutline
from fleet.library.build_times import BuildTime
from fleet.optimizer.kind_coverage import cover_kinds
from fleet.reports.library_figures import (
    MOST_REGRESSIONS,
    KindCoverage,
    LibraryFigures,
    Regression,
    points_of,
    regressions_of,
)
from fleet.reports.library_report import LibraryReport

NOW = datetime(2026, 11, 30, tzinfo=UTC)
EVIL = "<script>alert(1)</script>\n# [x](javascript:alert(1))|\x1b[2J"


def time(workload: str, build: int, sec: float, **facts: object) -> BuildTime:
    """A checked time of the build with this number."""
    given: dict[str, object] = {
        "workload": workload, "target_key": "llvm", "device_model": "pi4", "tvm_version": f"0.{build}",
        "best_sec": sec, "is_checked": True, "candidates": 8, "first_id": build * 100, "last_id": build * 100,
        "last_at": NOW,
    }  # fmt: skip
    return BuildTime(**(given | facts))  # type: ignore[arg-type]


def figures(**facts: object) -> LibraryFigures:
    """Figures of a library with one time."""
    times = [time("1", 1, 1.0)]
    given: dict[str, object] = {
        "made_at": NOW, "tvm_version": "0.1", "max_age": timedelta(days=180), "candidates": 8, "workloads": 1,
        "freshness": judge([], {}, now=NOW, max_age=timedelta(days=180)), "coverage": [], "points": points_of(times),
        "regressions": [],
    }  # fmt: skip
    return LibraryFigures(**(given | facts))  # type: ignore[arg-type]


def test_a_build_is_compared_on_its_own_workloads() -> None:
    """The ratio is the geometric mean over the build's own workloads; builds come in order of their first use."""
    times = [time("1", 2, 1.0), time("1", 1, 2.0), time("2", 1, 3.0), time("1", 1, 9.0, device_model="pi5")]

    found = points_of(times)

    assert [(point.tvm_version, point.workloads, point.ratio) for point in found["pi4"]] == [
        ("0.1", 2, pytest.approx(2**0.5)),
        ("0.2", 1, pytest.approx(1.0)),
    ]
    assert [(point.candidates, point.ratio) for point in found["pi5"]] == [(8, pytest.approx(1.0))]


def test_versions_and_environments_are_builds_of_their_own() -> None:
    """One TVM version with two environments and two versions of this package has three builds."""
    times = [
        time("1", 1, 1.0, version="0.8"),
        time("1", 1, 1.5, version="0.9", first_id=200),
        time("1", 1, 2.0, version="0.9", environment="sha256:1", first_id=300),
    ]

    assert [point.ratio for point in points_of(times)["pi4"]] == pytest.approx([1.0, 1.5, 2.0])


def test_an_unchecked_time_counts_only_alone() -> None:
    """A wrong schedule may be fast, so it does not count beside a checked one."""
    unchecked = time("1", 2, 0.1, is_checked=False)

    assert [point.ratio for point in points_of([time("1", 1, 1.0), unchecked])["pi4"]] == [1.0]
    assert len(points_of([unchecked, time("1", 1, 0.2, is_checked=False)])["pi4"]) == 2


def test_times_of_zero_have_no_ratio() -> None:
    """A device's clock may be coarse; the mean of no ratios is 1."""
    assert [point.ratio for point in points_of([time("1", 1, 0.0)])["pi4"]] == [1.0]


def test_the_newest_build_is_compared_with_the_best_earlier_one() -> None:
    """A slowdown within the noise does not count, and neither does a slow build in between."""
    times = [
        *(time("slower", build, sec) for build, sec in ((1, 1.0), (2, 3.0), (3, 1.5))),
        *(time("noise", build, sec) for build, sec in ((1, 1.0), (3, 1.01))),
        *(time("faster", build, sec) for build, sec in ((1, 2.0), (3, 1.0))),
        time("new", 3, 1.0),
        time("elsewhere", 1, 1.0),
        time("elsewhere", 3, 2.0, target_key="cuda"),
    ]

    (found,) = regressions_of(times, {"slower": "matmul 1"})

    assert (found.operator, found.before.tvm_version, found.now.tvm_version) == ("matmul 1", "0.1", "0.3")
    assert found.ratio == pytest.approx(1.5)


def test_the_worst_regressions_come_first() -> None:
    """A library of thousands of regressions shows 20."""
    times = [time(str(number), build, 1 + number * (build - 1)) for number in range(1, 99) for build in (1, 2)]

    found = regressions_of(times, {})

    assert len(found) == MOST_REGRESSIONS
    assert [one.workload for one in found] == [str(number) for number in range(98, 78, -1)]


def test_a_kind_is_covered_by_the_best_reason() -> None:
    """Static schedules cover the programs without a record of their own; else a record of the kind does."""
    args = (TensorSpec((8, 8), "float32"), TensorSpec((8, 8), "float32", is_output=True))
    names = {"a": "softmax", "b": "softmax", "c": "tanh", "d": "tanh", "e": "own", "f": "own"}
    outlines = [WorkloadOutline(shash=shash, name=name, args=args) for shash, name in names.items()]
    times = [time(shash, 1, 1.0) for shash in "ace"] + [time("b", 1, 1.0, is_checked=False)]

    found = cover_kinds(outlines, times, {"pi4": {"softmax"}, "pi5": set()})

    assert [(one.kind, one.exact, one.static, one.neighbour, one.nothing) for one in found[:3]] == [
        ("", 1, 0, 0, 1),
        ("softmax", 1, 1, 0, 0),
        ("tanh", 1, 0, 1, 0),
    ]
    assert [(one.device_model, one.workloads, one.nothing) for one in found[3:]] == [("pi5", 2, 2)] * 3


def test_texts_of_the_library_are_escaped() -> None:
    """Titles, device models, kinds and versions can become no tag, link, heading or control character."""
    evil = replace(time("1", 1, 1.0), device_model=EVIL, tvm_version=EVIL, version=EVIL, environment=EVIL)
    slow = Regression(workload="1", operator=EVIL, before=evil, now=replace(evil, best_sec=2.0), command="fleet")
    kind = KindCoverage(device_model=EVIL, kind=EVIL, exact=1, static=0, neighbour=0, nothing=0)
    report = LibraryReport(
        figures(tvm_version=EVIL, points=points_of([evil]), coverage=[kind], regressions=[slow])
    )  # fmt: skip

    page, text = report.html(), report.markdown()

    assert "<script" not in page
    assert page.count("&lt;script&gt;") >= 7
    assert not re.search(r"(?<!\\)<script|(?<!\\)\[x\]|\n# \[|\x1b", text)
    assert set(re.findall(r"https?://[^\s\"']+", page)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"<[^>]* on\w+=|javascript:[^a]", page)


def test_a_page_shows_a_limited_number_of_models_kinds_and_builds() -> None:
    """A library of thousands stays a page that a browser opens."""
    times = [time("1", build, 1.0, device_model=f"m{model:03}") for model in range(100) for build in range(100)]
    coverage = [
        KindCoverage(device_model="m000", kind=f"k{kind:03}", exact=1, static=0, neighbour=0, nothing=0)
        for kind in range(100)
    ]

    page = LibraryReport(figures(points=points_of(times), coverage=coverage)).html()

    assert page.count("<svg") == 12
    assert len(page) < 200_000
    assert "Device models with fewer records: 88." in page
    assert "<td>other kinds</td>" in page
    assert '<td>all</td><td class="number">100</td>' in page


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A library with a workload that became slower with a newer version of this package."""
    path = str(tmp_path / "library.sqlite")
    args = (TensorSpec((8, 8), "float32"), TensorSpec((8, 8), "float32", is_output=True))
    with Library.open(path) as library:
        for shash in "12":
            library.add_workload(StoredWorkload(shash=shash, name="softmax", mod_json="{}", args=args))
        job = library.start_job(title="a model.onnx", conditions={"selector": "model=pi4"})
        for version, sec in (("0.8", 1e-3), ("0.9", 2e-3)):
            scope = RecordScope(target_json="llvm", device_model="pi4", tvm_version="0.26")
            library.add_record(
                Record(
                    workload="1", scope=scope, trace_json="[[1],[]]", run_secs=(sec,), job_name=job.name, checked=True,
                    making=Making(version=version),
                )
            )  # fmt: skip
    return path


def run(*words: str) -> tuple[int, str, str]:
    """Return exit code, stdout and stderr of `fleet report`."""
    done = CliRunner().invoke(app, ["report", *words])
    return done.exit_code, done.stdout, done.stderr


@pytest.mark.parametrize("words", [("--library",), ("--library", "-o", "l.html"), ("-o", "l.html", "--library")])
def test_a_library_option_without_a_value_reports_the_library(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    """It may stand before another option, and at the end; the library is the configured one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLEET_LIBRARY", path)

    code, out, _ = run(*words)

    assert code == 0
    page = Path("l.html").read_text() if "-o" in words else out
    assert "Times by build" in page
    assert "fleet tune &#x27;a model.onnx&#x27; --on model=pi4 --tasks" in page.replace("'", "&#x27;")


def test_the_figures_are_data_too(path: str) -> None:
    """Versions of this package are separate builds, and a page may be written beside."""
    code, out, _ = run("--library", "--library", path, "--json")

    found = json.loads(out)
    assert code == 0
    assert [(one["version"], one["ratio"]) for one in found["builds"]] == [("0.8", 1.0), ("0.9", 2.0)]
    assert [(one["exact"], one["neighbour"]) for one in found["coverage"]] == [(1, 1)]
    assert [one["ratio"] for one in found["regressions"]] == [2.0]
    assert found["freshness"]["all"]["records"] == 1


@pytest.mark.parametrize("suffix", ["html", "md", "svg"])
def test_a_file_says_the_format(path: str, tmp_path: Path, suffix: str) -> None:
    """As for the report of a job."""
    page = tmp_path / f"library.{suffix}"

    assert run("--library", "--library", path, "-o", str(page))[0] == 0
    assert page.read_text().startswith({"html": "<!doctype html>", "md": "# The library", "svg": "<svg"}[suffix])


def test_an_empty_library_says_what_to_do_next(tmp_path: Path) -> None:
    """The page has no empty tables; the picture is empty."""
    path = str(tmp_path / "library.sqlite")
    Library.open(path).close()

    code, out, _ = run("--library", "--library", path)

    assert code == 0
    assert "has no times yet" in out
    assert "fleet tune model.onnx" in out
    assert "Freshness" not in out
    assert run("--library", "--library", path, "--json")[0] == 0
    assert run("--library", "--library", path, "--format", "svg")[0] == 0


def test_a_job_beside_the_whole_library_is_a_usage_error(path: str) -> None:
    """One sentence names it."""
    code, out, error = run("20261122-153000-ab12cd", "--library")

    assert (code, out) == (2, "")
    assert "leave '20261122-153000-ab12cd' out" in error
    assert error.count("\n") == 1
