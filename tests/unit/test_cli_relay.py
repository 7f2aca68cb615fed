"""`fleet relay unit`."""

from __future__ import annotations

import sys

from typer.testing import CliRunner, Result

from fleet.cli.main import app


def unit(*words: str) -> Result:
    return CliRunner().invoke(app, ["relay", "unit", *words])


def test_a_unit_starts_the_relay_with_its_options() -> None:
    """The tracker and the given options are in the command."""
    made = unit("--tracker", "lab:9290", "--", "--port", "9300", "--allow-network")

    words = f"{sys.executable} -m fleet relay serve --tracker lab:9290 --port 9300 --allow-network"
    assert f"ExecStart={words}\n" in made.stdout
    assert made.exit_code == 0


def test_a_unit_refuses_an_address_that_others_reach() -> None:
    """Without --allow-network the service would not start."""
    refused = unit("--tracker", "lab:9290", "--", "--host", "10.0.0.5")

    assert refused.exit_code == 2
    assert "--allow-network" in refused.stderr
