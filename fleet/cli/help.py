"""`fleet help`: show the help of a command."""

from __future__ import annotations

from typing import Annotated

import typer


def help(
    command: Annotated[
        list[str] | None, typer.Argument(metavar="[COMMAND]...", help="Command, such as tune or tracker token create.")
    ] = None,
) -> None:
    """Show the options of a command and an example, or the overview of all commands.

    Example: fleet help tracker token create
    """
    from fleet.cli.main import app

    typer.main.get_command(app).main([*(command or ()), "--help"], prog_name="fleet")
