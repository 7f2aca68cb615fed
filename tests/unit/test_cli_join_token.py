"""What an admin is told to pass on with a token."""

from __future__ import annotations

from fleet.cli.join_token import JoinRole, there


def test_the_command_for_another_machine_names_an_address_that_leads_there() -> None:
    """The tracker's own loopback address leads nowhere else: the admin is told what to put in its place."""
    assert (
        there(JoinRole.USER, "fleet1.A.B", "10.0.0.5:9290") == "there: fleet login fleet1.A.B --tracker 10.0.0.5:9290"
    )

    said = there(JoinRole.AGENT, "fleet1.A.B", "127.0.0.1:9300")
    assert said.startswith("there: fleet agent join fleet1.A.B --tracker HOST:9300\n")
    assert "--allow-network" in said
