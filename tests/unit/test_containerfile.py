"""The Containerfile names files, extras and commands that exist. Building its images takes minutes and the network."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from fleet.cli.main import load_command

_ROOT = Path(__file__).parents[2]
_TEXT = (_ROOT / "Containerfile").read_text()


def test_it_has_an_image_for_each_process() -> None:
    """CUDA comes on top of agent and optimizer."""
    stages = {name: base for base, name in re.findall(r"^FROM (\S+) AS (\S+)$", _TEXT, flags=re.MULTILINE)}

    assert stages.keys() == {"source", "tracker", "agent", "optimizer", "web", "agent-cuda", "optimizer-cuda"}
    assert (stages["agent-cuda"], stages["optimizer-cuda"]) == ("agent", "optimizer")


def test_copied_files_exist() -> None:
    """A renamed folder would be missing in the images."""
    copied = [word for line in re.findall(r"^COPY (.+) \S+$", _TEXT, flags=re.MULTILINE) for word in line.split()]

    assert {"fleet", "device_agents", "cross", "pyproject.toml"} <= set(copied)
    assert [path for path in copied if not (_ROOT / path).exists()] == []


def test_installed_extras_exist() -> None:
    """Pip only warns about an unknown extra."""
    known = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = {extra for extras in re.findall(r"'\.\[(.+)\]'", _TEXT) for extra in extras.split(",")}

    assert named == {"metrics", "agent", "tune", "cuda", "cuda-build", "web"}
    assert named <= known.keys()


@pytest.mark.parametrize("entry", re.findall(r"^ENTRYPOINT (.+)$", _TEXT, flags=re.MULTILINE))
def test_images_start_commands_that_exist(entry: str) -> None:
    """With options that these commands have."""
    program, noun, *rest = json.loads(entry)
    command: Any = load_command(noun)
    verbs = [word for word in rest if not word.startswith("-")]
    options = rest[len(verbs) :]
    for verb in verbs:
        command = command.commands[verb]
    flags = {flag for option in command.params for flag in option.opts}

    assert program == "fleet"
    assert set(options) <= flags
