"""Starts worker pools while the rest of a command is imported, since each takes half a second."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cross.targets.target import Target

_HELP = ("-h", "--help")
_ELSEWHERE = ("--tracker", "--dask")
"""Options with which nothing may be built on this machine."""

_SLOW = ("cuda", "rocm")
"""Targets whose tensor intrinsics take seconds to load: the pool loads them once for all workers."""

_NAMED = "--target"
_ARCHITECTURE = '{"kind": "llvm"}'
"""Architecture of the processor that a target is likely to name: little is loaded in vain."""


def start_pools(arguments: Sequence[str]) -> None:
    """Start the pools that the command line is certain to need; the command starts the others."""
    modules = _modules(arguments)
    if modules is None or any(word in _HELP or any(kind in word for kind in _SLOW) for word in arguments):
        return
    if any(word.startswith("@") for word in arguments):
        return  # a file of arguments may name another machine or target
    from cross.pool.fork_server import start_fork_server
    from fleet.errors import ConfigError

    with contextlib.suppress(ConfigError):  # the command reports the error
        start_fork_server(likely_target(arguments), modules)


def _modules(arguments: Sequence[str]) -> Sequence[str] | None:
    """Return the imports of a command's tasks; None if it may not build on this machine."""
    if list(arguments[:1]) == ["export"]:
        from fleet.export import MODULES as EXPORT_MODULES

        return EXPORT_MODULES
    if list(arguments[:1]) != ["tune"] or any(word.startswith(_ELSEWHERE) for word in arguments):
        return None
    from fleet.base.settings import look_up
    from fleet.errors import ConfigError

    try:
        has_fleet, selector = look_up("tracker").asked is not None, look_up("selector").value
    except ConfigError:
        return None  # the command reports the error
    if has_fleet or any(kind in selector for kind in _SLOW):
        return None
    from fleet.building import MODULES

    return MODULES


def likely_target(arguments: Sequence[str]) -> Target:
    """Return a target with the tensor intrinsics that workers will need: this machine's, unless another is named."""
    from cross.targets.target import host_target, parse_target

    return parse_target(_ARCHITECTURE) if any(word.startswith(_NAMED) for word in arguments) else host_target()
