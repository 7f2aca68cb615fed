"""Decisions of a deployment from the board's own facts, before anything is copied."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cross.bundle.deploy import Destination, Seen, Start, fitting_spec, options_text, settled
from fleet.errors import ConfigError

_THERE = Destination(host="pi@pi4")
_PI = Seen(
    machine="aarch64",
    libc="2.36",
    python="3.11",
    model="Raspberry Pi 4 Model B Rev 1.4",
    home="/home/pi",
    free_bytes=10**9,
    has_systemd=True,
    has_xz=True,
    digest="",
    is_running=False,
    options="",
    address="10.0.0.7",
    is_foreign=False,
)


def test_a_board_is_identified_by_its_model() -> None:
    """The bundle is built for the C library in the description, so that it serves all boards of the kind."""
    spec = fitting_spec(_THERE, _PI, None)

    assert spec.board == "rpi4-64"
    assert spec.userland.libc == "2.31"


def test_a_32_bit_system_gets_a_32_bit_bundle() -> None:
    """A board gets the bundle of the system that runs on it."""
    assert fitting_spec(_THERE, replace(_PI, machine="armv7l"), None).board == "rpi4-32"


def test_an_older_system_gets_compatible_wheels() -> None:
    """The board's glibc and Python decide."""
    spec = fitting_spec(_THERE, replace(_PI, libc="2.28", python="3.12"), None)

    assert (spec.userland.libc, spec.userland.python) == ("2.28", "3.12")


def test_an_unknown_board_gets_its_architectures_bundle() -> None:
    """A board without a description gets the bundle of its architecture."""
    assert fitting_spec(_THERE, replace(_PI, model="Some Board"), None).board == "aarch64"


def test_a_missing_python_is_reported_with_the_package() -> None:
    """The bundle has no Python, and needs 3.11 or newer."""
    with pytest.raises(ConfigError, match=r"pi@pi4 has no Python 3.11 or newer; install it there"):
        fitting_spec(_THERE, replace(_PI, python=""), None)


@pytest.mark.parametrize("directory", [".", "/", "/home", "/home/pi", "../else", "a/../../b"])
def test_a_folder_that_is_not_the_agents_alone_is_refused(directory: str) -> None:
    """A new bundle replaces and deletes the whole folder."""
    with pytest.raises(ConfigError, match="name a folder that is the agent's alone"):
        settled(replace(_THERE, directory=directory), _PI, Start())


def test_foreign_files_are_not_overwritten() -> None:
    """Only an earlier agent is replaced; other files are left alone."""
    assert settled(_THERE, _PI, Start()).directory == "/home/pi/fleet-agent"
    with pytest.raises(ConfigError, match="there is something else"):
        settled(_THERE, replace(_PI, is_foreign=True), Start())


def test_options_survive_the_shell() -> None:
    """A name with a space stays one word in the shell."""
    assert options_text(Start(options=("--config", "my agent.yaml"))) == "--config 'my agent.yaml'"
