"""The commands of the README and of the tutorials work as they are written there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from device_agents.runtimes.opencl.build import plugin_path
from tests.system import page_runner
from tests.system.fleet_processes import environment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(580)]

ROOT = Path(__file__).parents[2]
TUTORIALS = sorted(path for path in (ROOT / "docs/tutorial").glob("*.md") if path.name != "index.md")
HOW_TO = ROOT / "docs/how-to/profile-a-model.md"
GOES_ON = {"first-tuned-model": ROOT / "docs/how-to/report-a-run.md"}
"""Guides that begin where a tutorial ends, by the tutorial's name."""


def run_page(page: Path, folder: Path) -> None:
    if (plugin := plugin_path()) is not None and plugin.is_file():  # a page need not compile it once more
        shutil.copytree(plugin.parent, folder / "cache" / plugin.parent.name, dirs_exist_ok=True)
    new_network = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--net"]

    done = subprocess.run(
        [*new_network, sys.executable, page_runner.__file__, str(page)],
        cwd=folder,
        env={**environment(), "FLEET_DATA_DIR": str(folder / "data"), "FLEET_CACHE_DIR": str(folder / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.stdout.endswith("page done\n"), done.stdout + done.stderr


def test_every_command_of_the_readme_runs(tmp_path: Path, two_products: Path) -> None:
    """A new user's first hour: each line is typed as it stands, on a machine whose ports are free."""
    (tmp_path / "model.onnx").write_bytes(two_products.read_bytes())
    found = page_runner.steps((ROOT / "README.md").read_text())
    assert sum(bool(step.command) for step in found) >= 12
    assert any(step.text for step in found)

    run_page(ROOT / "README.md", tmp_path)


def test_every_command_of_a_how_to_guide_runs(tmp_path: Path) -> None:
    """Who has a goal gets there by typing what the page says."""
    assert len(page_runner.steps(HOW_TO.read_text())) == 4

    run_page(HOW_TO, tmp_path)


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_every_step_of_a_tutorial_runs(page: Path, tmp_path: Path) -> None:
    """A learner starts in an empty folder and gets through by typing what the page says."""
    assert len(page_runner.steps(page.read_text())) >= 5

    run_page(page, tmp_path)
    if page.stem in GOES_ON:
        run_page(GOES_ON[page.stem], tmp_path)


def test_a_model_is_shipped_as_the_page_says(tmp_path: Path, two_products: Path) -> None:
    """Every command and every line of Python of the how-to."""
    (tmp_path / "model.onnx").write_bytes(two_products.read_bytes())

    run_page(ROOT / "docs/how-to/ship-a-model.md", tmp_path)
