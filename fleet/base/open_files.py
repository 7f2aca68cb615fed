"""The number of files that this process may have open: each connection is one."""

from __future__ import annotations

import contextlib
import resource

_MOST_FILES = 65_536
"""Raise the limit no further: some programs walk through all numbers of files up to it, and children inherit it."""


def file_limit() -> int:
    """Return how many files this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST_FILES if soft == resource.RLIM_INFINITY else soft


def raise_file_limit() -> int:
    """Raise this process's limit of open files as far as its hard limit allows; return it. Call it before serving.

    A login shell or a service usually begins with 1,024, which one stranger's connections use up.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # a container may forbid it
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return file_limit()
