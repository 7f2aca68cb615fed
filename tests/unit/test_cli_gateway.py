"""`fleet gateway unit` and `fleet gateway key`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from typer.testing import CliRunner, Result

from fleet.cli.main import app


def gateway(*words: str) -> Result:
    return CliRunner().invoke(app, ["gateway", *words])


def test_a_unit_starts_the_gateway_with_its_options() -> None:
    """The tracker is named, since systemd does not know the variables of a shell."""
    made = gateway(
        "unit", "--tracker", "lab:9290", "--", "--port", "9191", "--tvm-version", "0.27", "--class", "normal"
    )

    words = "gateway serve --tracker lab:9290 --port 9191 --tvm-version 0.27 --class normal"
    assert f"ExecStart={sys.executable} -m fleet {words}\n" in made.stdout


def test_a_unit_with_invalid_options_is_refused() -> None:
    """Before the service starts."""
    refused = gateway("unit", "--", "--tvm-version", "0.27", "--class", "urgent")

    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "urgent" in refused.stderr


def test_a_key_is_made_listed_and_revoked(tmp_path: Path) -> None:
    """The secret is printed once."""
    at = ("--state-dir", str(tmp_path))
    secret = gateway("key", "create", "--account", "team-a", *at).stdout.strip()
    (key,) = json.loads(gateway("key", "list", *at, "--json").stdout)["keys"]

    assert (key["account"], key["revoked_at"], secret in str(key)) == ("team-a", None, False)
    assert gateway("key", "revoke", key["key_id"], *at).exit_code == 0
    (key,) = json.loads(gateway("key", "list", *at, "--json").stdout)["keys"]
    assert key["revoked_at"] is not None
    assert gateway("key", "revoke", "0" * 12, *at).exit_code == 1
