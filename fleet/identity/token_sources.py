"""The ways in which a join token reaches a process: a prompt without echo, stdin, or a file of mode 0600.

Never an argument or the environment: every account of a machine reads the command lines of all processes there, and
whoever reads a token first joins with it.
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
"""Stands for stdin where a file is expected; a terminal prompts."""

_MAX_CHARS = 4096
_OTHERS = 0o077
_PRIVATELY = "(umask 077; fleet tracker token create > FILE)"


def read_join_token(source: Path = STDIN) -> JoinToken:
    """Return the token in a file, or on stdin.

    Raises:
        ConfigError: other accounts can read the file, it cannot be read, or stdin is empty.
        InvalidRequest: the content is no token.
    """
    return parse_join_token(_from_stdin() if source == STDIN else _from_file(source))


def refuse_argument(text: str, *, instead: str) -> ConfigError:
    """Return the error for a token on a command line or in the environment; it counts as seen by others.

    Args:
        text: the token, or anything that was given as one.
        instead: the command that reads the token from elsewhere.
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
    """Return the sentence on a token that others may have; the id of one that can be parsed is named."""
    name = "ID"
    with contextlib.suppress(InvalidRequest):
        name = parse_join_token(text).token_id
    return f"Take this one as seen and revoke it: fleet tracker token revoke {name}"
