"""Settings and fixtures of all tests."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from tests.programs import made_once

if TYPE_CHECKING:
    from fleet.library import Library

# The time of an example depends on the machine's load, so hypothesis's default deadline of 200 ms is off.
settings.register_profile("fleet", deadline=None)
settings.load_profile("fleet")

# Tests use credentials, settings, libraries and packs of their own, not the developer's, in each of pytest's processes.
_home = tempfile.mkdtemp(prefix="fleet-tests-home-")
atexit.register(shutil.rmtree, _home, ignore_errors=True)
os.environ["XDG_STATE_HOME"] = f"{_home}/state"
os.environ["XDG_CONFIG_HOME"] = f"{_home}/config"
os.environ["XDG_DATA_HOME"] = f"{_home}/data"
for _name in ("COLUMNS", "LINES"):  # readline, which pytest loads, sets them for child processes, unseen by os.environ
    os.environ.pop(_name, None)
    os.unsetenv(_name)
for _name in ("CONFIG", "FORMAT", "LIBRARY", "SELECTOR", "TRACKER"):
    os.environ.pop(f"FLEET_{_name}", None)


@pytest.fixture(scope="session")
def agent_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Artifacts from TVM for the tests of agents: see `tests.service.agent_models`."""
    return made_once(tmp_path_factory, "tests.service.agent_models")


@pytest.fixture
def library(tmp_path: Path) -> Iterator[Library]:
    """A library in SQLite."""
    from fleet.library import Library

    with Library.open(tmp_path / "library.sqlite") as library:
        yield library
