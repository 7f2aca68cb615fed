"""The last hour of a device on a terminal."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from io import StringIO

import pytest
from rich.console import Console

from fleet.dashboard.chart import SPAN_SEC, draw, render_history
from fleet.domain.devices import Telemetry

NOW = 1_000_000.0


def picture(samples: Sequence[Telemetry], width: int = 80) -> str:
    console = Console(file=StringIO(), width=width, color_system=None)
    console.print(render_history(samples, NOW, width=width))
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def samples(count: int = 360, **readings: float) -> list[Telemetry]:
    """A sample every ten seconds until now."""
    return [Telemetry(read_at_sec=NOW - 10 * (count - 1 - index), **readings) for index in range(count)]  # type: ignore[arg-type]


def test_nothing_known_is_reported() -> None:
    """A text replaces empty axes."""
    assert "no readings yet" in picture([])
    assert "nothing to plot" in picture(samples(load_1min=1.0))


def test_only_reported_readings_are_plotted() -> None:
    """A machine without a sensor has no line at zero."""
    text = picture(samples(freq_hz=1.5e9))

    assert "clock  1.50 GHz" in text
    assert "temperature" not in text
    assert "reference" not in text


def test_units_and_range_are_displayed() -> None:
    """The picture has the newest value and the range of the hour."""
    hot = [*samples(temp_c=40.0, reference_sec=139e-6)[:-1], *samples(1, temp_c=71.0, reference_sec=150e-6)]

    text = picture(hot)

    assert "temperature  71 °C  40 °C to 71 °C in the last hour" in text
    assert "reference kernel  150 us  139 us to 150 us in the last hour" in text


@pytest.mark.parametrize("width", [20, 80, 140])
def test_every_line_fits_the_terminal(width: int) -> None:
    """The axis ends where the lines end."""
    lines = picture(samples(temp_c=41.0, freq_hz=2.4e9), width).splitlines()

    assert max(map(len, lines)) <= width
    assert lines[-1].rstrip().endswith("now")
    assert len(lines[-1].rstrip()) == width


def test_a_rising_value_rises_to_the_right() -> None:
    """The oldest is low and left, the newest high and right."""
    lines = draw([(-SPAN_SEC, 0.0), (-SPAN_SEC / 2, 1.0), (0.0, 2.0)], 0.0, 2.0, columns=9, rows=3)

    assert [line.replace(" ", ".") for line in lines] == ["........⠈", "....⠄....", "⡀........"]


def test_a_device_that_was_away_has_a_gap() -> None:
    """The line has a gap for half an hour without samples; consecutive samples are connected."""
    away = samples(temp_c=40.0)
    del away[90:270]

    lines = [[at for at, character in enumerate(line) if "⠀" < character <= "⣿"] for line in picture(away).splitlines()]
    (drawn,) = filter(None, lines)
    gap = max(after - before for before, after in itertools.pairwise(drawn))
    assert 30 <= gap <= 38
    assert len(drawn) > 30


def test_noise_does_not_look_like_a_mountain() -> None:
    """A degree up and down on forty is a flat line."""
    noisy = [Telemetry(read_at_sec=NOW - 10 * index, temp_c=40 + index % 2) for index in reversed(range(360))]

    labels = [line[:9].strip() for line in picture(noisy).splitlines()]

    assert "43 °C" in labels
    assert "38 °C" in labels
