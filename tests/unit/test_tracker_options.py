"""Options of a tracker, as values and as words of a command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet.tracker.run import TrackerOptions, parse_options


@pytest.mark.parametrize(
    "options",
    [
        TrackerOptions(),
        TrackerOptions(
            host="0.0.0.0",
            port=0,
            state_dir=Path("a place/with blanks"),
            is_network_allowed=True,
            is_discoverable=False,
            devices_per_agent=200,
            log_level="DEBUG",
        ),
    ],
)
def test_a_child_process_gets_the_options_that_were_meant(options: TrackerOptions) -> None:
    """Written as words and read again they are the same."""
    assert parse_options(options.to_argv()) == options


def test_who_allows_the_network_is_reached_on_every_address() -> None:
    """Unless another is named: a tracker that listens on the loopback alone serves no other machine."""
    assert parse_options(["--allow-network"]).host == "0.0.0.0"
    assert parse_options(["--allow-network", "--host", "10.0.0.5"]).host == "10.0.0.5"


def test_without_words_a_tracker_keeps_to_this_machine() -> None:
    """The defaults of the command line are those of the value."""
    assert parse_options([]) == TrackerOptions()
