"""Files that commands write: what cannot be written is refused before the work for it is done."""

from __future__ import annotations

import os
from pathlib import Path

from fleet.errors import ConfigError


def check_output(path: Path) -> None:
    """Refuse a place where no file can be written.

    Raises:
        ConfigError: it is a folder, or lies in one that is not there or cannot be written.
    """
    folder = path.absolute().parent
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; name a file in it")
    if not folder.is_dir():
        raise ConfigError(f"{path}: there is no folder {folder}; make it, or name a file elsewhere")
    if not os.access(folder, os.W_OK):
        raise ConfigError(f"cannot write {path}: {folder} is read-only, or not yours")
