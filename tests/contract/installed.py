"""The state that `pip install` of an example leaves: its modules on the path, and metadata with its entry points."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest


def install(example: Path, site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put an example on the path as if it was installed.

    Args:
        site: a folder for its metadata, still empty.
    """
    project = tomllib.loads((example / "pyproject.toml").read_text())["project"]
    metadata = site / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    lines = [
        line
        for group, entries in project["entry-points"].items()
        for line in [f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())]
    ]
    (metadata / "entry_points.txt").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.syspath_prepend(str(example))
