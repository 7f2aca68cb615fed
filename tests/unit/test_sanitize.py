"""Texts from peers are sanitized before they reach a terminal."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.base.text import sanitize
from fleet.v1 import device_pb2, job_pb2
from fleet.wire.sanitize import sanitize_message

EVIL = "\x1b]0;owned\x07\x1b[2Jme\u202eht\u200b\x9b31m\r\nroot:\tx"
TAME = "]0;owned[2Jmeht31m root: x"


def test_no_terminal_escapes_are_left() -> None:
    """Escapes, bells, carriage returns and marks that turn the writing are gone; the words stay."""
    assert sanitize(EVIL) == TAME
    assert sanitize("Zoë's 板子 🛠 (Pi 4)") == "Zoë's 板子 🛠 (Pi 4)"
    assert sanitize("a\nb" * 10, 4) == "a ba"


@given(st.text())
def test_sanitized_text_is_one_visible_line(text: str) -> None:
    """Sanitizing any text gives one visible line, and is idempotent."""
    found = sanitize(text)

    assert len(found.splitlines()) <= 1
    assert all(unicodedata.category(char) not in ("Cc", "Cs", "Zl", "Zp") for char in found)
    assert sanitize(found) == found


def test_every_text_of_a_message_is_cleaned() -> None:
    """Fields, maps with their keys, lists and nested messages are sanitized."""
    inventory = device_pb2.Inventory(kind="cpu", device_model=EVIL, labels={"arch": EVIL, "ok": "x"}, facts={EVIL: "1"})
    device = device_pb2.Device(name="devices/a", inventory=inventory)
    device.telemetry.last_error = EVIL

    sanitize_message(device)

    assert device.inventory.device_model == TAME
    assert dict(device.inventory.labels) == {"arch": TAME, "ok": "x"}
    assert dict(device.inventory.facts) == {TAME: "1"}
    assert device.telemetry.last_error == TAME


@pytest.mark.parametrize("message", [device_pb2.Device(), job_pb2.Job(name="jobs/1", title="plain")])
def test_a_tame_message_is_left_as_it_is(message: device_pb2.Device | job_pb2.Job) -> None:
    """No unset field becomes set."""
    before = message.SerializeToString()
    sanitize_message(message)
    assert message.SerializeToString() == before
