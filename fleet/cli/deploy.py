"""`fleet agent deploy`: bring an agent to a board over ssh, start it, and wait until its devices are in the fleet."""

from __future__ import annotations

import shlex
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fleet.base.settings import look_up
from fleet.cli import completion_values, options
from fleet.cli.activity import working
from fleet.errors import ConfigError, FleetError

if TYPE_CHECKING:
    from cross.bundle.deploy import Deployed, Seen

_JOIN_SEC = 900.0
"""Longer than a slow board takes to unpack and start."""

_SHOWN_SEC = 30.0
"""Time for the tracker to show a device once its agent is listening."""


def deploy(
    host: Annotated[
        str, typer.Argument(metavar="USER@BOARD", help="As ssh takes it; keys and names come from ssh's configuration.")
    ],
    tracker: options.TrackerOption = None,
    board: Annotated[
        str | None,
        typer.Option(
            help="Board, as 'fleet targets' lists them. Default: found out.", autocompletion=completion_values.boards
        ),
    ] = None,
    directory: Annotated[str, typer.Option("--dir", help="Where it lives, below the home directory.")] = "fleet-agent",
    config: Annotated[
        Path | None, typer.Option(help="An agent.yaml to install. Default: the devices found on the board.")
    ] = None,
    systemd: Annotated[
        bool | None,
        typer.Option("--systemd/--no-systemd", help="Run it as a user service. Default: if systemd is there."),
    ] = None,
    allow_network: Annotated[bool, typer.Option("--allow-network", help="Let other machines reach it.")] = False,
    ssh: Annotated[str, typer.Option(help="The command to log in with, such as 'ssh -p 2222'.")] = "ssh",
    json_output: options.JsonOption = False,
) -> None:
    """Bring an agent to a board over ssh: make its bundle, copy it, start it, wait until its devices are in the fleet.

    The board joins the tracker's fleet by a token that goes with it, which takes an admin of the fleet.

    Run it again to update; what has not changed is left alone. Only keys work: nobody is asked for a password.

    Example: fleet agent deploy pi@pi4.local --tracker 10.0.0.5:9290 --allow-network
    """
    from cross.bundle.archive import make_bundle
    from cross.bundle.deploy import Destination, Start, copy, fitting_spec, look, options_text, settled, start

    console = options.stderr()
    if config is not None and not config.is_file():
        raise ConfigError(f"there is no file {config} to bring along")
    there = Destination(host=_named(host), directory=directory.removeprefix("~/"), ssh=_command(ssh))
    address = look_up("tracker", tracker).asked
    with working(f"connecting to {host}"):
        seen = look(there)
    how = Start(options=_agent_options(seen, address, config, allow_network), config=config, with_systemd=systemd)
    there = settled(there, seen, how)
    spec = fitting_spec(there, seen, board)
    console.print(
        f"{host}: {seen.model or seen.machine}, glibc {seen.libc}, Python {seen.python}; bundle for {spec.title}"
    )
    with working(f"making the bundle for {spec.title}") as narrate:
        bundle = make_bundle(spec, narrate)
    is_same = seen.digest == bundle.digest
    if is_same:
        console.print(f"the same bundle lies there ({bundle.digest[:19]}); nothing to copy")
    else:
        console.print(f"copying {bundle.size_bytes / 1e6:.1f} MB ...")
        with working("copying the bundle"):
            copy(there, seen, bundle)
    if is_same and seen.is_running and seen.options == options_text(how) and config is None:
        console.print("the agent runs already, with these options")
        if json_output:
            options.print_json({"host": host, "is_changed": False, "address": None, "devices": []})
        return
    with working("starting the agent"):
        deployed = start(there, seen, replace(how, token=_join_token(address, host)))
    for note in deployed.done:
        console.print(note)
    console.print(f"the agent listens on {deployed.address}")
    if config is None or "advertise_address" not in config.read_text():
        _wait_shown(deployed, address)
    if json_output:
        devices = list(deployed.devices)
        options.print_json({"host": host, "is_changed": True, "address": deployed.address, "devices": devices})
        return
    for name in deployed.devices:
        print(name)


def _named(host: str) -> str:
    if not host.strip():
        raise ConfigError("no board is named; write it as ssh takes it, like pi@pi4.local")
    return host


def _command(ssh: str) -> tuple[str, ...]:
    try:
        words = tuple(shlex.split(ssh))
    except ValueError as error:
        raise ConfigError(f"--ssh {ssh!r} is no command: {error}") from error
    if not words:
        raise ConfigError("--ssh names no command; the default is ssh")
    return words


def _agent_options(seen: Seen, tracker: str | None, config: Path | None, allow_network: bool) -> tuple[str, ...]:
    """Return the options of the agent.

    Raises:
        ConfigError: they would make an agent that nobody reaches, or that reaches no tracker.
    """
    from fleet.base.network import host_of, is_loopback

    is_this_machine = is_loopback(seen.address) if seen.address else False
    if not allow_network and not is_this_machine:
        raise ConfigError(
            "clients have to reach the board, and an agent listens on its own machine alone; add --allow-network"
        )
    if tracker and is_loopback(host_of(tracker)) and not is_this_machine:
        raise ConfigError(f"--tracker {tracker} would be the board itself there; name an address that it reaches")
    words = ["--tracker", tracker] if tracker else []
    words += ["--allow-network"] if allow_network else []
    words += ["--token-file", "join.token"]
    return (*words, "--config", "agent.yaml") if config else tuple(words)


def _join_token(tracker: str | None, host: str) -> str:
    """Return the join token for the board.

    Raises:
        FleetError: this account has no credentials for the tracker, or they are no admin's.
    """
    from fleet.identity.roles import Role

    token, _ = options.query_identities(tracker, lambda calls: calls.invite(Role.AGENT, ttl_sec=_JOIN_SEC, note=host))
    return str(token)


def _wait_shown(deployed: Deployed, tracker: str | None) -> None:
    """Wait until the tracker lists the devices. Without a tracker address only the agent knows where its tracker is."""
    if tracker is None:
        return
    import fleet

    missing = set(deployed.devices)
    port = deployed.address.rpartition(":")[2]
    ends_at_sec = time.monotonic() + _SHOWN_SEC
    with fleet.connect(tracker) as client:
        while missing:
            # Compare ports: at first the tracker may still list the agent that ran there before.
            shown = [device for device in client.snapshot().devices if device.address.rpartition(":")[2] == port]
            missing -= {device.name for device in shown}
            if missing and time.monotonic() > ends_at_sec:
                raise FleetError(
                    f"the agent runs, but the tracker at {tracker} does not show {', '.join(sorted(missing))}: "
                    f"can the board reach it? Its log: {deployed.directory}/agent.log"
                )
            time.sleep(0.2)
