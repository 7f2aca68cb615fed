"""Instructions for an admin after `fleet tracker token create`."""

from __future__ import annotations

from fleet.cli.join_token import JoinRole, there


def test_the_command_for_another_machine_names_an_address_that_leads_there() -> None:
    """The loopback is useless elsewhere, so the command has a placeholder for the address. It contains no token."""
    assert there(JoinRole.USER, "10.0.0.5:9290").startswith("there: fleet login --tracker 10.0.0.5:9290 ")

    assert there(JoinRole.STANDBY, "10.0.0.5:9290").startswith("there: fleet tracker join --tracker 10.0.0.5:9290 ")

    advice = there(JoinRole.AGENT, "127.0.0.1:9300")
    assert advice.startswith("there: fleet agent join --tracker HOST:9300 ")
    assert "--allow-network" in advice
