"""Output to streams that take only ASCII."""

from __future__ import annotations

import io
import sys

import pytest

from fleet.cli.plain_text import allow_plain_text


def test_signs_that_the_terminal_lacks_get_plain_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Degrees, dashes and braille dots are replaced by the most similar ASCII text, unknown characters by '?'."""
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))

    allow_plain_text()
    print("40 °C · up … \u2800\u28ff ┏━┓ ☃")
    sys.stdout.flush()

    assert written.getvalue() == b"40 deg C - up ...  * +-+ ?\n"


def test_bytes_of_odd_file_names_stay_where_the_terminal_takes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams of the C locale pass such bytes through; signs get their plain forms there, too."""
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii", errors="surrogateescape"))

    allow_plain_text()
    allow_plain_text()
    print("caf\udce9.onnx 40 °C \u28ff")
    sys.stdout.flush()

    assert written.getvalue() == b"caf\xe9.onnx 40 deg C *\n"


def test_a_terminal_that_has_them_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """UTF-8 passes everything as it is."""
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="utf-8"))

    allow_plain_text()
    print("40 °C")
    sys.stdout.flush()

    assert written.getvalue().decode() == "40 °C\n"
