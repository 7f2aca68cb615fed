"""`fleet tracker`: serves a tracker, as `python -m fleet.tracker` does, and manages its members."""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fleet.base.command_line import parse, to_argv
from fleet.base.config import at_home
from fleet.base.network import addresses_of
from fleet.base.quantities import count_text, elapsed_text, size_text
from fleet.cli import join_token, joined, members, options, process_options
from fleet.cli.units import print_unit
from fleet.tracker.options import TrackerOptions

if TYPE_CHECKING:
    from fleet.tracker.backup import Backup

_StateDirOption = Annotated[Path | None, typer.Option(help="The tracker's state directory.")]

app = typer.Typer(no_args_is_help=True, add_completion=False)


@app.callback()
def tracker() -> None:
    """Serve a tracker: it knows the devices, grants leases, and keeps the queue. Decide who joins."""


app.add_typer(join_token.app, name="token")
app.command()(members.members)
app.command()(members.revoke)


@app.command()
@process_options.takes(TrackerOptions)
def serve(ctx: typer.Context, serving: TrackerOptions) -> None:
    """Serve a tracker until Ctrl-C.

    Example: fleet tracker serve --allow-network --state-dir /var/lib/tvm-fleet
    """
    from fleet.tracker.run import run_tracker

    level = (options.settings(ctx).log_level or "info").upper()
    raise typer.Exit(run_tracker(replace(serving, log_level=level)))


@app.command(context_settings={"ignore_unknown_options": True})
def unit(
    serve_options: Annotated[
        list[str] | None, typer.Argument(metavar="[-- OPTIONS]", help="Options of 'fleet tracker serve'.")
    ] = None,
) -> None:
    """Print a systemd unit that keeps a tracker running for its user, also after a restart of the machine.

    Example: fleet tracker unit -- --port 9290 > ~/.config/systemd/user/fleet-tracker.service
    """
    # Validate now: the tracker would only refuse these options when the service starts.
    asked = parse(TrackerOptions, serve_options or [], command="fleet tracker serve")
    asked = replace(asked, state_dir=_absolute(asked.state_dir), config=_absolute(asked.config))
    command = [sys.executable, "-m", "fleet.tracker", *to_argv(asked)]
    print_unit("tracker", "knows the devices, grants leases, keeps the queue", command)


@app.command()
def reload(
    tracker: options.TrackerOption = None,
    json_output: options.JsonOption = False,
    connect_timeout: options.ConnectTimeoutOption = 10.0,
) -> None:
    """Read tracker.yaml again: shares and quotas of accounts. For admins. An invalid file changes nothing.

    New rules take effect at once, for waiting requests too; live leases keep their length.

    Example: fleet tracker reload
    """
    found = options.query_tracker(tracker, connect_timeout, lambda client: client.reload_tracker())
    if json_output:
        options.print_json(asdict(found))
        return
    change = f"{count_text(found.changed_account_count, 'account')} changed" if found.is_changed else "nothing changed"
    options.stderr().print(
        f"{found.path}: {change}; {count_text(found.account_count, 'account')} with own rules, "
        f"half-life {elapsed_text(found.half_life_sec)}, starvation {elapsed_text(found.starvation_sec)}"
    )


@app.command()
def fsck(
    state_dir: _StateDirOption = None,
    restore: Annotated[
        bool, typer.Option("--restore", help="Go on with the best there is: the journal's rest, or its last good copy.")
    ] = False,
    empty: Annotated[
        bool, typer.Option("--empty", help="Go on with nothing: live leases and waiting requests are forgotten.")
    ] = False,
    json_output: options.JsonOption = False,
) -> None:
    """Check the journal of a stopped tracker, and restore it from its copy. A damaged journal is kept beside it.

    No device runs for two holders after that: agents report the leases that they know, and end those that the tracker
    forgot.

    Example: fleet tracker fsck --restore
    """
    from fleet.tracker import fsck

    if restore and empty:
        raise typer.BadParameter("choose one of --restore and --empty")
    directory = TrackerOptions(state_dir=state_dir).directory
    if restore or empty:
        options.stderr().print(fsck.restore(directory) if restore else fsck.start_empty(directory))
        if not json_output:
            return
    found = fsck.check(directory)
    if json_output:
        options.print_json(asdict(found))
    else:
        typer.echo(f"journal: {found.journal}\ncopy:    {found.copy}")
    raise typer.Exit(0 if found.is_whole else 1)


@app.command()
def backup(
    file: Annotated[Path, typer.Argument(help="Written with mode 0600; replaced if it exists.")],
    state_dir: _StateDirOption = None,
    has_history: Annotated[
        bool, typer.Option("--with-history", help="Include the history of ended leases, up to 1 GiB.")
    ] = False,
    json_output: options.JsonOption = False,
) -> None:
    """Back up a tracker, also while it runs: authority, key, members, bookings, leases, queue, shares and audit log.

    The file is as secret as the state directory: its reader is an admin of the fleet.

    Example: fleet tracker backup /mnt/safe/tracker.tar
    """
    from fleet.tracker.backup import back_up

    made = back_up(TrackerOptions(state_dir=state_dir).directory, file, has_history=has_history)
    _print_backup("backed up", made, json_output=json_output)


@app.command()
def restore(
    file: Annotated[Path, typer.Argument(help="Made by 'fleet tracker backup'.")],
    state_dir: _StateDirOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """Make a tracker's state directory from a backup, for a new machine or after a loss.

    The former tracker must not run any more. Later changes of members, bookings and leases are not in the backup:
    revoke again what was revoked since.

    Example: fleet tracker restore /mnt/safe/tracker.tar && fleet tracker serve --allow-network
    """
    from fleet.tracker.backup import restore as restore_backup

    directory = TrackerOptions(state_dir=state_dir).directory
    _print_backup(f"restored to {directory}", restore_backup(file, directory), json_output=json_output)


def _print_backup(done: str, found: Backup, *, json_output: bool) -> None:
    if json_output:
        options.print_json({**asdict(found), "path": str(found.path), "made_at": found.made_at.isoformat()})
        return
    counts = [count_text(getattr(found, f"{one}s"), one) for one in ("member", "device", "lease", "booking", "request")]
    made_at = found.made_at.astimezone().strftime("%Y-%m-%d %H:%M:%S")
    options.stderr().print(f"{done}: {', '.join(counts)} of {made_at}; {size_text(found.size_bytes)} in {found.path}")


@app.command()
def join(
    token: joined.RefusedToken = None,
    tracker: options.TrackerOption = None,
    token_file: joined.TokenFileOption = joined.BY_STDIN,
    state_dir: _StateDirOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """Join the fleet of a tracker as its standby, which gets the fleet's keys.

    An admin creates the single-use join token (fleet tracker token create --role standby). It is read from a prompt,
    stdin or a file, because every account of this machine can read arguments.

    Example: fleet tracker join --tracker 10.0.0.5:9290
    """
    from fleet.tracker.replica.membership import join_as_standby

    found = joined.read_token(token, token_file, instead="fleet tracker join")
    address = addresses_of(options.tracker_address(tracker))[0]
    directory = (TrackerOptions(state_dir=state_dir).directory).absolute()
    path, member = options.run(join_as_standby(found, address, directory))
    if json_output:
        options.print_json(joined.as_data(address, member, path))
        return
    joined.tell(address, member, path)
    options.stderr().print(f"now: fleet tracker serve --standby-of {address} --allow-network")


@app.command()
def promote(tracker: options.TrackerOption = None) -> None:
    """Have a standby take over from its tracker. For admins.

    Leases go on; join tokens end. The former tracker grants nothing once it hears of this, and follows.

    Example: fleet tracker promote --tracker 10.0.0.6:9290
    """
    from fleet.client.promotion import promote_standby

    address, _ = options.run(promote_standby(options.tracker_address(tracker)))
    options.stderr().print(f"the tracker at {address} has taken over")


@app.command()
def unbind(
    device: options.DeviceArgument,
    tracker: options.TrackerOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """Free a device's name: the next agent that attaches under it has it. For a board that was set up anew.

    Example: fleet tracker unbind pi4-03
    """
    key_id = options.query_identities(tracker, lambda calls: calls.unbind(device))
    if json_output:
        options.print_json({"device": device, "key_id": key_id})
        return
    options.stderr().print(f"{device} was bound to the key {key_id[:8]}, and is free")


def _absolute(path: Path | None) -> Path | None:
    """Return a path that holds in the folder where systemd starts the tracker."""
    return None if path is None else at_home(path).resolve()
