"""The library, for commands that only read it."""

from __future__ import annotations

import shlex
from pathlib import Path

from fleet.base.settings import look_up
from fleet.errors import ConfigError
from fleet.library import Library
from fleet.library.engine import database_url, shown_url


def existing_library(url_or_path: str | None) -> Library:
    """Open a library for reading. A named file that does not exist is an error.

    The account's own library counts as empty until it exists: no file or folder is created.
    """
    named = look_up("library", url_or_path).asked
    if named is not None:
        url = database_url(named)
        if url.get_backend_name() == "sqlite" and not Path(str(url.database)).exists():
            raise ConfigError(f"there is no library {url.database}; name the one that a tune wrote with --library")
    return Library.open_to_read(url_or_path)


def naming(library: str) -> str:
    """Return the flag that selects a library, given its `url`, with a space before it; empty if none is needed."""
    return "" if library == shown_url(database_url(None)) else f" --library {shlex.quote(library)}"
