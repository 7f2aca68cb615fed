"""Choice of the fleet for commands that can also start one of their own."""

from __future__ import annotations

import asyncio

import pytest
import typer

from fleet.base import settings
from fleet.cli.options import running_fleet
from fleet.errors import ConfigError
from fleet.identity.store import CredentialStore
from fleet.testing import serve_tracker


def use_default(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    """Substitute an address for this machine's tracker, which would have a fixed port."""
    monkeypatch.setattr(settings, "TRACKER_PORT", int(address.rpartition(":")[2]))


async def chosen(tracker: str | None = None, *, is_private: bool = False) -> str | None:
    context = typer.Context(typer.main.get_command(typer.Typer(callback=lambda: None)))
    return await asyncio.to_thread(running_fleet, context, tracker, is_private)


async def test_the_tracker_of_this_machine_is_used_and_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before, `fleet tune` started another tracker and agent on the same cores; `fleet devices` used the first one."""
    async with serve_tracker() as up:
        use_default(monkeypatch, up.address)

        assert up.address == await chosen()
        assert f"using the tracker at {up.address}; --private starts" in capsys.readouterr().err
        assert await chosen(is_private=True) is None

    assert await chosen() is None, "nothing runs any more"


async def test_a_named_tracker_is_used_without_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    """If it does not run, the command fails instead of measuring elsewhere."""
    assert await chosen("127.0.0.1:1") == "127.0.0.1:1"
    assert capsys.readouterr().err == ""
    with pytest.raises(ConfigError, match="give one of them"):
        await chosen("127.0.0.1:1", is_private=True)


async def test_the_tracker_of_another_account_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without credentials for it, the command cannot take turns: it prints that, and measures on its own."""
    async with serve_tracker() as up:
        use_default(monkeypatch, up.address)
        CredentialStore().forget(up.address)

        assert await chosen() is None

    assert f"another account's tracker runs at {up.address}" in capsys.readouterr().err
