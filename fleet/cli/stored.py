"""Opens the library for commands that only look into it."""

from __future__ import annotations

from pathlib import Path

from fleet.errors import ConfigError
from fleet.library import Library


def existing_library(url_or_path: str | None) -> Library:
    """Open a library for reading; a file that is not there is a typing error, not a library to make."""
    if url_or_path is not None and "://" not in url_or_path and not Path(url_or_path).expanduser().exists():
        raise ConfigError(f"there is no library {url_or_path}; name the one that a tune wrote with --library")
    return Library.open(url_or_path)
