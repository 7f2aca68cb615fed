"""The library, for commands that only look into it."""

from __future__ import annotations

import shlex

from fleet.base.config import at_home
from fleet.base.settings import look_up
from fleet.errors import ConfigError
from fleet.library import Library
from fleet.library.engine import database_url, shown_url


def existing_library(url_or_path: str | None) -> Library:
    """Open a library for reading; a file that is not there is a typing error, not a library to make."""
    named = look_up("library", url_or_path).asked
    if named is not None and "://" not in named and not at_home(named).exists():
        raise ConfigError(f"there is no library {named}; name the one that a tune wrote with --library")
    return Library.open(url_or_path)


def naming(library: str) -> str:
    """Return the flag that leads to a library, given its `url`, with a space before it; empty where none is needed."""
    return "" if library == shown_url(database_url(None)) else f" --library {shlex.quote(library)}"
