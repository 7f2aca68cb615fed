"""A tracker that is down, at an address without credentials of this account."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fleet.cli.main import app
from fleet.identity.certificates import issue_own, make_authority, make_key
from fleet.identity.roles import Role
from fleet.identity.store import CredentialStore

_COMMANDS = [
    ("devices",),
    ("status",),
    ("leases",),
    ("request", "list"),
    ("acquire", "cpu"),
    ("audit",),
    ("tracker", "members"),
    ("tracker", "token", "list"),
]
_ELSEWHERE = "127.1:1"
"""Address of this machine that differs from the address in the credential store."""


@pytest.mark.parametrize("has_joined", [True, False])
@pytest.mark.parametrize("words", _COMMANDS, ids=" ".join)
def test_a_tracker_that_is_down_is_reported(
    words: tuple[str, ...], has_joined: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the tracker's machine, by its LAN address, the error once told admins to get a token from the dead tracker."""
    monkeypatch.setenv("FLEET_CREDENTIALS_DIR", str(tmp_path))
    if has_joined:
        now = dt.datetime.now(dt.UTC)
        own = issue_own(make_authority(now), make_key(), name="root@vm", role=Role.ADMIN, now=now)
        CredentialStore().save("127.0.0.1:1", own)
    waits = ["--connect-timeout", "0.2"] if words[0] not in ("audit", "tracker") else []
    command = ["--", "true"] if words[0] == "acquire" else []

    done = CliRunner().invoke(app, ["--tracker", _ELSEWHERE, *words, *waits, *command])

    assert (1, True) == (done.exit_code, f"no tracker answers at {_ELSEWHERE}" in done.stderr), done.stderr
    assert "credentials" not in done.stderr
