"""Tasks for the tests of builders: their processes import them by name."""

from __future__ import annotations

import os
import time
from pathlib import Path


def wait_for(folder: Path) -> int:
    """Write this process's id into a folder, wait until the folder has a file "go", and return the id."""
    (folder / str(os.getpid())).touch()
    while not (folder / "go").exists():
        time.sleep(0.02)
    return os.getpid()
