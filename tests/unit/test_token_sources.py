"""Join tokens come from a prompt, stdin or a private file, and from no source that others can read."""

from __future__ import annotations

import datetime as dt
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fleet.base.private_files import write_private
from fleet.cli.main import app
from fleet.errors import ConfigError, InvalidRequest
from fleet.identity.certificates import issue_own, make_authority, make_key
from fleet.identity.join_tokens import make_join_token
from fleet.identity.roles import Role
from fleet.identity.token_sources import read_join_token

_TOKEN = make_join_token(bytes(32))
_NOWHERE = ("--tracker", "127.0.0.1:1")


def test_a_token_in_a_private_file_is_read(tmp_path: Path) -> None:
    """Mode 0600, with or without a line's end."""
    path = tmp_path / "token"
    path.write_text(f"{_TOKEN}\n")
    path.chmod(0o600)

    assert _TOKEN == read_join_token(path)


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620])
def test_a_token_in_a_file_of_others_counts_as_seen(tmp_path: Path, mode: int) -> None:
    """The message has the commands to revoke this token and to make a private file."""
    path = tmp_path / "token"
    path.write_text(str(_TOKEN))
    path.chmod(mode)

    with pytest.raises(ConfigError, match=f"fleet tracker token revoke {_TOKEN.token_id}.*umask 077") as refused:
        read_join_token(path)

    assert str(_TOKEN) not in str(refused.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """A missing file and a folder are errors of the caller."""
    for path in (tmp_path / "nothing", tmp_path):
        with pytest.raises(ConfigError, match=str(path)):
            read_join_token(path)


def test_a_file_without_a_token_is_refused(tmp_path: Path) -> None:
    """A file of any size is refused."""
    path = tmp_path / "token"
    path.write_bytes(b"\xff" * 100_000)
    path.chmod(0o600)

    with pytest.raises(InvalidRequest, match="no join token"):
        read_join_token(path)


@pytest.mark.parametrize(
    ("words", "instead"),
    [
        (["login"], "fleet login"),
        (["agent", "join"], "fleet agent join"),
        (["tracker", "join"], "fleet tracker join"),
        (["agent", "serve", "--driver", "simulated", "--token"], "--token-file -"),
    ],
)
def test_a_token_as_an_argument_is_refused_with_the_right_form(words: list[str], instead: str) -> None:
    """The message names the accepted form and the command to revoke the exposed token. It does not repeat the token."""
    done = CliRunner().invoke(app, [*words, str(_TOKEN), *_NOWHERE])

    assert done.exit_code == 2
    for part in (instead, f"fleet tracker token revoke {_TOKEN.token_id}", "never an argument"):
        assert part in done.stderr
    assert str(_TOKEN) not in done.output


def test_a_token_in_the_environment_is_refused() -> None:
    """Earlier releases read it there, but kernels and other children inherit an environment."""
    words = ["agent", "serve", "--driver", "simulated", *_NOWHERE]

    done = CliRunner().invoke(app, words, env={"FLEET_JOIN_TOKEN": str(_TOKEN)})

    assert (2, True) == (done.exit_code, "--token-file -" in done.stderr)


@pytest.mark.slow
def test_a_boards_agent_refuses_a_token_as_an_argument() -> None:
    """The start script of a bundle passes its arguments on to this command."""
    words = ["-m", "device_agents", "--driver", "simulated", *_NOWHERE, "--token", str(_TOKEN)]

    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False, timeout=60)

    assert (2, True) == (done.returncode, "--token-file -" in done.stderr)


@pytest.mark.slow
def test_an_agent_that_has_joined_does_not_prompt_again(tmp_path: Path) -> None:
    """A service starts with the same options each time, without a user at the prompt."""
    credentials = issue_own(
        make_authority(dt.datetime.now(dt.UTC)), make_key(), name="b", role=Role.AGENT, now=dt.datetime.now(dt.UTC)
    )
    write_private(tmp_path / "identity.pem", credentials.to_pem())
    words = ["-m", "device_agents", "--driver", "simulated", "--state-dir", str(tmp_path), *_NOWHERE]
    process = subprocess.Popen(
        [sys.executable, *words, "--token-file", "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert "agent listening" in process.stdout.readline()
    finally:
        process.terminate()
        process.communicate(timeout=60)


@pytest.mark.slow
def test_a_terminal_prompts_without_showing_the_token() -> None:
    """The terminal does not echo it."""
    main, terminal = os.openpty()
    code = "from fleet.identity.token_sources import read_join_token as read; print(read().token_id, flush=True)"
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True
    )
    os.close(terminal)
    shown = b""
    try:
        while b"join token" not in shown:
            shown += os.read(main, 4096)
        os.write(main, f"{_TOKEN}\n".encode())
        while _TOKEN.token_id.encode() not in shown:
            shown += os.read(main, 4096)
    finally:
        process.wait(timeout=60)
        os.close(main)

    assert str(_TOKEN).encode() not in shown
