"""Access keys of a gateway."""

from __future__ import annotations

import getpass
import json
from pathlib import Path

import pytest

from fleet.errors import ConfigError, InvalidRequest, NotFound
from fleet.gateway.access_keys import AccessKeys
from fleet.gateway.options import GatewayOptions
from fleet.tracker.audit import read_entries


def test_a_secret_is_not_stored(tmp_path: Path) -> None:
    """The file is its owner's alone, and holds a hash."""
    secret, key = AccessKeys(tmp_path).create("team-a", 1.0)

    assert AccessKeys(tmp_path).find(secret) == key
    assert secret not in (tmp_path / "keys.json").read_text()
    assert (tmp_path / "keys.json").stat().st_mode & 0o777 == 0o600


def test_a_revoked_key_is_listed_and_finds_nothing(tmp_path: Path) -> None:
    """Other processes notice it, too."""
    running = AccessKeys(tmp_path)
    secret, key = running.create("team-a", 1.0)
    other, _ = running.create("team-b", 2.0)

    AccessKeys(tmp_path).revoke(key.key_id, 3.0)
    AccessKeys(tmp_path).revoke(key.key_id, 4.0)

    assert running.find(secret) is None
    assert running.find(other) is not None
    assert [one.revoked_at_sec for one in running.all()] == [3.0, None]


def test_changes_are_in_the_audit_log_beside_the_keys(tmp_path: Path) -> None:
    """With the local user, and without the secret. A repeated revocation changes nothing."""
    keys = AccessKeys(tmp_path)
    secret, key = keys.create("team-a", 1.0)
    for _ in range(2):
        keys.revoke(key.key_id, 2.0)
    path = tmp_path / "audit.jsonl"
    entries = read_entries(path.read_bytes().splitlines(), 10)

    subject = {"key_id": key.key_id, "account": "team-a"}
    assert [(one.at_sec, one.action, json.loads(one.subject)) for one in entries] == [
        (1.0, "GatewayKey.Create", subject),
        (2.0, "GatewayKey.Revoke", subject),
    ]
    assert {one.name for one in entries} == {getpass.getuser()}
    assert (secret in path.read_text(), path.stat().st_mode & 0o777) == (False, 0o600)


def test_an_unknown_key_cannot_be_revoked(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="key list"):
        AccessKeys(tmp_path).revoke("0" * 12, 1.0)


@pytest.mark.parametrize("account", ["", "a\nb", "0" * 40])
def test_a_key_needs_an_account(account: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest):
        AccessKeys(tmp_path).create(account, 1.0)


@pytest.mark.parametrize("content", ["", "{}x", "[1]", '[{"key_id": 3}]', "[" * 9_999])
def test_a_damaged_file_is_refused(content: str, tmp_path: Path) -> None:
    """Nobody is let in by it."""
    path = tmp_path / "keys.json"
    path.write_text(content)
    path.chmod(0o600)

    with pytest.raises(ConfigError, match="damaged"):
        AccessKeys(tmp_path).find("x")


def test_a_file_that_others_can_write_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_text("[]")
    path.chmod(0o666)

    with pytest.raises(ConfigError, match="others"):
        AccessKeys(tmp_path).all()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (GatewayOptions(host="0.0.0.0", tvm_version="0.27"), "--allow-network"),
        (GatewayOptions(lease_class="urgent", tvm_version="0.27"), "urgent"),
        (GatewayOptions(tvm_version="new"), "0.27"),
    ],
)
def test_invalid_options_are_refused(options: GatewayOptions, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        options.check()


def test_a_gateway_opens_to_the_network_only_when_asked() -> None:
    assert [False, True, False] == [
        GatewayOptions().is_open_to_network,
        GatewayOptions(is_network_allowed=True).is_open_to_network,
        GatewayOptions(is_network_allowed=True, host="127.0.0.1").is_open_to_network,
    ]
