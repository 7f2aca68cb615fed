"""Limit of open files of this process. Each connection counts as one."""

from __future__ import annotations

import contextlib
import resource

_MOST_FILES = 65_536
"""Upper bound when raising the limit: children inherit it, and some programs loop over all descriptors up to it."""


def file_limit() -> int:
    """Return the soft limit of open files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST_FILES if soft == resource.RLIM_INFINITY else soft


def raise_file_limit() -> int:
    """Raise the soft limit of open files towards the hard limit and return it. Call it before serving.

    Login shells and services usually start with 1,024, which connections of a single host can exhaust.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # containers may forbid it
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return file_limit()
