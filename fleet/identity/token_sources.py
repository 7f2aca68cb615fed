"""Sources of a join token: a prompt without echo, stdin, or a file of mode 0600.

Arguments and the environment are refused: every account of a machine can read the command lines of all processes, and
the first account that uses a token joins with it.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import stat
import sys
from pathlib import Path

from fleet.errors import ConfigError, InvalidRequest
from fleet.identity.join_tokens import JoinToken, parse_join_token

STDIN = Path("-")
"""Placeholder for stdin in place of a file; prompts on a terminal."""

_MAX_CHARS = 4096
_OTHERS = 0o077
_PRIVATELY = "(umask 077; fleet tracker token create > FILE)"


def read_join_token(source: Path = STDIN) -> JoinToken:
    """Read a token from a file or from stdin.

    Raises:
        ConfigError: other accounts can read the file, it cannot be read, or stdin is empty.
        InvalidRequest: the content is not a token.
    """
    return parse_join_token(_from_stdin() if source == STDIN else _from_file(source))


def refuse_argument(text: str, *, instead: str) -> ConfigError:
    """Return the error for a token on a command line or in the environment, which counts as compromised.

    Args:
        text: the token, or any text in its place.
        instead: the command that reads the token from a safe source.
    """
    return ConfigError(
        "a join token is never an argument: every account of this machine can read it there. "
        f"{_seen(text)}; then make another, and: {instead} (it prompts for the token, or reads it from stdin or "
        "from a file of mode 0600, --token-file FILE)"
    )


def _from_stdin() -> str:
    text = ""
    with contextlib.suppress(EOFError):
        is_terminal = sys.stdin.isatty()
        text = getpass.getpass("join token (not shown): ") if is_terminal else sys.stdin.readline(_MAX_CHARS)
    if not text.strip():
        raise ConfigError(
            "no join token was typed, nor is one on stdin; an admin makes one: fleet tracker token create. "
            "For a file of mode 0600: --token-file FILE"
        )
    return text


def _from_file(path: Path) -> str:
    try:
        with path.open("rb") as file:
            mode, content = os.fstat(file.fileno()).st_mode, file.read(_MAX_CHARS)
    except OSError as error:
        raise ConfigError(f"cannot read the join token in {path}: {error.strerror}") from error
    text = content.decode(errors="replace")
    if stat.S_ISREG(mode) and mode & _OTHERS:
        raise ConfigError(
            f"other accounts can read {path} (mode {stat.S_IMODE(mode):04o}), which holds a join token. {_seen(text)}; "
            f"then write another to a file of mode 0600: {_PRIVATELY}"
        )
    return text


def _seen(text: str) -> str:
    """Return advice for a compromised token, with its id if it can be parsed."""
    name = "ID"
    with contextlib.suppress(InvalidRequest):
        name = parse_join_token(text).token_id
    return f"Take this one as seen and revoke it: fleet tracker token revoke {name}"
