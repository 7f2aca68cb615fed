"""The commands of the README, the tutorials and the how-to guides work as written."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from device_agents.runtimes.opencl.build import plugin_path
from tests.system import page_runner
from tests.system.fleet_processes import environment
from tests.system.page_steps import ROOT, can_run, on_this_machine, steps

pytestmark = [pytest.mark.slow, pytest.mark.timeout(580)]

README = ["README.md"]
LESSONS = {
    "first model": ["docs/tutorial/index.md", "docs/tutorial/first-tuned-model.md", "docs/how-to/report-a-run.md"],
    "three boards": ["docs/tutorial/three-boards.md"],
    "metaschedule": ["docs/tutorial/metaschedule.md"],
    "profile": ["docs/how-to/profile-a-model.md", "docs/how-to/explain-a-model.md"],
}
"""Tutorials, and guides that make their own model or begin where a tutorial ends: an empty folder will do."""

SHIPPING = ["docs/how-to/ship-a-model.md"]
_GUIDES = ("add-a-board", "watch-the-fleet", "test-on-devices", "misbehaving-board", "first-lab", "move-a-tracker")
AT_A_FLEET = [f"docs/how-to/{name}.md" for name in _GUIDES]
ALONE = [f"docs/how-to/{name}.md" for name in ("join-a-fleet", "deploy", "builders", "install")]

A_FLEET = """
```yaml title="agent.yaml"
devices:
  - driver: cpu
  - driver: simulated
    board: rpi4-64
    name: NAME
```

```console
$ fleet tracker serve
$ fleet agent serve --config agent.yaml
```
"""
"""The files that readers of the pages have already, under the pages' names for them."""


def walk_through(pages: list[str], folder: Path, *, before: str = "") -> None:
    """Perform the steps of pages, after those of another text, in a folder and a network of their own."""
    if (plugin := plugin_path()) is not None and plugin.is_file():  # avoids compiling it again for a page
        shutil.copytree(plugin.parent, folder / "cache" / plugin.parent.name, dirs_exist_ok=True)
    new_network = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--net"]
    wanted = [step for text in (before, *map(read, pages)) for step in steps(text) if can_run(step)]

    done = subprocess.run(
        [*new_network, sys.executable, page_runner.__file__],
        input=json.dumps([asdict(replace(step, command=on_this_machine(step.command))) for step in wanted]),
        cwd=folder,
        env={
            **environment(),
            "HOME": str(folder),
            "FLEET_DATA_DIR": str(folder / "data"),
            "FLEET_CACHE_DIR": str(folder / "cache"),
            "PYTEST_ADDOPTS": "-p fleet.pytest_plugin -p no:fleet",  # older installations lack the entry point
        },
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.stdout.endswith("pages done\n"), done.stdout + done.stderr


def read(page: str) -> str:
    return (ROOT / page).read_text()


def test_every_command_of_the_readme_runs(tmp_path: Path) -> None:
    """A new user's first hour: each line is typed as it stands, in an empty folder, with all ports free."""
    walk_through(README, tmp_path)


@pytest.mark.parametrize("pages", LESSONS.values(), ids=LESSONS)
def test_every_step_of_a_lesson_runs(pages: list[str], tmp_path: Path) -> None:
    """A learner starts in an empty folder and succeeds by typing the page's commands."""
    walk_through(pages, tmp_path)


def test_a_model_is_shipped_as_the_page_says(tmp_path: Path, two_products: Path) -> None:
    """Every command and every line of Python of the how-to works."""
    (tmp_path / "model.onnx").write_bytes(two_products.read_bytes())

    walk_through(SHIPPING, tmp_path)


def test_guides_for_fleet_owners_work(tmp_path: Path) -> None:
    """The added board has the name NAME."""
    walk_through(AT_A_FLEET, tmp_path, before=A_FLEET)


def test_guides_for_administrators_work(tmp_path: Path) -> None:
    """The guides for administrators work: a tracker and its members, its unit, the certificates of builders, the manual
    page.
    """
    walk_through(ALONE, tmp_path)


def walked() -> set[str]:
    """Return the pages that the tests above go through."""
    return {*README, *(page for pages in LESSONS.values() for page in pages), *SHIPPING, *AT_A_FLEET, *ALONE}
