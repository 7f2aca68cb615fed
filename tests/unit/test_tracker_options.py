"""Options of a tracker, as values and as words of a command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet.base.command_line import parse, to_argv
from fleet.errors import ConfigError
from fleet.tracker.options import TrackerOptions
from fleet.tracker.run import run_tracker


def parse_options(*words: str) -> TrackerOptions:
    return parse(TrackerOptions, words, command="fleet tracker serve")


@pytest.mark.parametrize(
    "options",
    [
        TrackerOptions(),
        TrackerOptions(
            host="0.0.0.0",
            port=0,
            state_dir=Path("a place/with blanks"),
            config=Path("tracker.yaml"),
            is_network_allowed=True,
            is_discoverable=False,
            devices_per_agent=200,
            log_level="DEBUG",
            is_json=True,
        ),
    ],
)
def test_a_child_process_gets_the_options_that_were_meant(options: TrackerOptions) -> None:
    """Options survive the command line of a child process."""
    assert parse_options(*to_argv(options)) == options


def test_allow_network_listens_on_every_address() -> None:
    """The default is every address, because a tracker on the loopback alone serves no other machine."""
    assert parse_options("--allow-network").listening_host == "0.0.0.0"
    assert parse_options("--allow-network", "--host", "10.0.0.5").listening_host == "10.0.0.5"


def test_without_words_a_tracker_keeps_to_this_machine() -> None:
    """The defaults of the command line are those of the value."""
    assert parse_options() == TrackerOptions()


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--nope"], "unrecognized arguments: --nope; see: fleet tracker serve -h"),
        (["--port", "x"], "argument --port: invalid int value: 'x'; see: fleet tracker serve -h"),
        (["--port", "70000"], "argument --port: expected 0 to 65535, found 70000; see: fleet tracker serve -h"),
        (
            ["--devices-per-agent", "0"],
            "argument --devices-per-agent: expected 1 or more, found 0; see: fleet tracker serve -h",
        ),
    ],
)
def test_unknown_options_are_refused_in_the_words_of_the_command(
    words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before, `fleet tracker unit -- --nope` printed the usage of another program, python -m fleet.tracker."""
    with pytest.raises(ConfigError) as caught:
        parse_options(*words)

    assert str(caught.value) == complaint
    assert capsys.readouterr() == ("", "")


def test_a_standby_of_no_address_is_refused_before_it_starts(tmp_path: Path) -> None:
    """It would dial for ever, or blame missing credentials."""
    with pytest.raises(ConfigError, match=r"--standby-of: 'nonsense'; write it like 127\.0\.0\.1:9290"):
        run_tracker(TrackerOptions(state_dir=tmp_path / "state", standby_of="nonsense"))

    assert not (tmp_path / "state").exists()
