"""Report of a failed command: one line on stderr, an exit code, and with --json one object on stdout.

Unexpected errors are bugs: they are not handled here and end in a traceback.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleet.base.extras import advice_for
from fleet.base.settings import look_up
from fleet.base.text import printable
from fleet.cli.groups import UsageError
from fleet.cli.json_out import is_printed, print_document
from fleet.errors import ConfigError, FleetError

logger = logging.getLogger(__name__)

_FULL = (errno.ENOSPC, errno.EDQUOT)
_BARRED = (
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENAMETOOLONG,
    errno.ELOOP,
    errno.ENOTDIR,
    errno.EEXIST,
    errno.EISDIR,
)
"""Error numbers of paths that the user cannot access, not even to test whether they exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Error as shown to the user."""

    kind: str
    """Name of the error's class; "UsageError" for a bad command line, "OSError" for an unusable path or disk."""
    message: str
    exit_code: int

    def as_data(self) -> dict[str, object]:
        """Return the object that --json prints."""
        return {"error": {"class": self.kind, "message": self.message, "exit_code": self.exit_code}}


def failure_of(error: BaseException) -> Failure | None:
    """Return the failure to show for an error, or None for an unexpected error."""
    match error:
        case FleetError():
            return Failure(kind=type(error).__name__, message=printable(str(error)), exit_code=error.exit_code)
        case UsageError():
            return _bad_usage(error)
        case ModuleNotFoundError():
            advice = advice_for(error)
            return _config_error(f"this needs the package {error.name}; {advice}") if advice else None
        case OSError():
            return _refused_by_system(error)
    return None


def tell(failure: Failure, error: BaseException, *, as_json: bool) -> None:
    """Print a failure on stderr, and on stdout as JSON unless the command has printed its document."""
    logger.debug("command failed", exc_info=error)
    if isinstance(error, OSError) and error.errno in _FULL:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more at exit
    print(f"error: {failure.message}", file=sys.stderr)
    if as_json and not is_printed():
        with contextlib.suppress(OSError):
            print_document(failure.as_data())
            sys.stdout.flush()


def wants_json(arguments: Sequence[str], commands: Sequence[str]) -> bool:
    """Tell whether a possibly invalid command line, else the environment or the settings file, selects JSON output.

    Args:
        commands: names of all commands; the first one ends the global options.
    """
    own = list(itertools.takewhile(lambda word: word != "--", arguments))
    if "--json" in own:
        return True
    before = list(itertools.takewhile(lambda word: word not in commands, own))
    named = [word.removeprefix("--format=") for word in before if word.startswith("--format=")]
    named += [value for word, value in itertools.pairwise(before) if word == "--format"]
    if named:
        return named[-1] == "json"
    try:
        return look_up("format").value == "json"
    except FleetError:
        return False


def _bad_usage(error: Any) -> Failure:
    command = error.ctx.command_path if error.ctx is not None else "fleet"
    message = " ".join(error.format_message().split()).rstrip(".")
    return Failure(kind="UsageError", message=f"{message}; see: {command} -h", exit_code=error.exit_code)


def _config_error(message: str) -> Failure:
    return Failure(kind=ConfigError.__name__, message=message, exit_code=ConfigError.exit_code)


def _refused_by_system(error: OSError) -> Failure | None:
    if _is_nowhere():
        return _config_error("the folder that this was started in is gone; change to another")
    if error.errno in _BARRED and error.filename is not None:
        message = f"{error.filename}: {error.strerror}"
        return Failure(kind=OSError.__name__, message=message, exit_code=ConfigError.exit_code)
    if error.errno in _FULL:
        message = f"{error.filename or 'the output'}: {error.strerror}"
        return Failure(kind=OSError.__name__, message=message, exit_code=FleetError.exit_code)
    return None


def _is_nowhere() -> bool:
    try:
        Path.cwd()
    except OSError:
        return True
    return False
