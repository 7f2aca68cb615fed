"""The report of a library in headless Chromium: texts stay texts, and the page fits a telephone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from fleet.domain.making import Making
from fleet.domain.measuring import TensorSpec
from fleet.domain.scope import RecordScope
from fleet.library import Library, Record, StoredWorkload
from tests.needs import is_absent
from tests.system.browser import Browser, browsing

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

EVIL = "<script>document.title = 'taken'</script><img src=x onerror=\"document.title = 'taken'\">"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if is_absent("chromedriver"):
        pytest.skip("no chromedriver here")
    with browsing(tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a library with records of two versions on two device models, written by the command."""
    folder = tmp_path_factory.mktemp("library")
    args = (TensorSpec((8, 8), "float32"), TensorSpec((8, 8), "float32", is_output=True))
    with Library.open(folder / "library.sqlite") as library:
        library.add_workload(StoredWorkload(shash="1", name="softmax", mod_json="{}", args=args))
        library.add_workload(StoredWorkload(shash="2", name=EVIL, mod_json="{}"))
        job = library.start_job(title=EVIL, conditions={"selector": EVIL}).name
        library.add_records(
            Record(
                workload=workload,
                scope=RecordScope(target_json="llvm", device_model=model, tvm_version=f"0.{build}"),
                trace_json="[[1],[]]",
                run_secs=(1e-3 * build,),
                job_name=job,
                checked=True,
                environment={"kernel": EVIL},
                making=Making(version=EVIL),
                created_at=datetime.now(UTC) - timedelta(days=300),
            )
            for build in (1, 2)
            for model in ("pi4", EVIL)
            for workload in "12"
        )
    command = [sys.executable, "-m", "fleet", "report", "--library", "--library", "library.sqlite", "-o", "page.html"]
    subprocess.run(command, cwd=folder, check=True, timeout=120)
    return folder / "page.html"


@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_is_readable_and_runs_nothing(browser: Browser, page: Path, width: int, tmp_path: Path) -> None:
    """Wide tables scroll by themselves; axe and the browser's console find nothing."""
    browser.resize(width, 900)
    browser.open(page.as_uri())

    assert browser.run("return document.title") == "The library"
    assert browser.run("return document.scripts.length + document.images.length") == 0
    assert browser.run("return document.documentElement.scrollWidth") <= width
    text = browser.text()
    assert all(heading in text for heading in ("Freshness", "Coverage", "Times by build", "Regressions"))
    assert EVIL[:20] in text
    assert browser.run("return document.querySelectorAll('svg polyline').length") == 2
    assert browser.axe() == []
    assert browser.console() == []
    browser.picture(tmp_path / f"{width}.png")
