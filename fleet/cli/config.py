"""`fleet config show|expand`: effective settings and their sources, and command lines with argument files."""

from __future__ import annotations

import re
import shlex
from dataclasses import asdict, replace
from typing import Annotated

import typer
from rich.text import Text

from fleet.base.config import config_file
from fleet.base.settings import KEYS, Setting, look_up
from fleet.cli import completion_values, options
from fleet.cli.argument_files import LineCommand
from fleet.cli.argument_files import expand as expanded
from fleet.cli.tables import make_console, text_table

_PASSWORD = re.compile(r"(://[^:/@]*):[^@/]*@")

app = typer.Typer(no_args_is_help=True, add_completion=False)


@app.callback()
def config() -> None:
    """Show which tracker, library, devices and format commands use, and why."""


@app.command()
def show(
    ctx: typer.Context,
    tracker: options.TrackerOption = None,
    library: options.LibraryOption = None,
    on: Annotated[
        str | None, typer.Option(metavar="SELECTOR", help="Which device.", autocompletion=completion_values.selectors)
    ] = None,
    json_output: options.JsonOption = False,
) -> None:
    """Show what a command with these flags takes, and where each value came from.

    A flag goes before the environment, the environment before the file, the file before the default. The file is
    ~/.config/tvm-fleet/config.yaml; its keys are tracker, library, selector and format.

    Example: fleet config show --json
    """
    flags = {"tracker": tracker, "library": library, "selector": on, "format": options.settings(ctx).output}
    found = [_shown(look_up(key, flags[key])) for key in KEYS]
    options.selector_or_default(on)
    path = config_file()
    if json_output:
        options.print_json(
            {"file": str(path), "is_there": path.exists(), "settings": [asdict(setting) for setting in found]}
        )
        return
    table = text_table("setting", "value", "from", whole=["setting"])
    for setting in found:
        source = f"{setting.source}, {setting.where}" if setting.where else str(setting.source)
        table.add_row(setting.key, Text(setting.value), Text(source))
    console = make_console(is_wide=False)
    console.print(table)
    console.print(f"file: {path}{'' if path.exists() else ', which is not there'}", soft_wrap=True)


@app.command(cls=LineCommand, context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def expand(
    line: Annotated[list[str], typer.Argument(metavar="COMMAND...", help="A command, such as fleet tune @tune.yaml.")],
) -> None:
    """Print a command with the options of its @files written out.

    Keys of @file.yaml are the command's long options and the names of its arguments.

    Example: fleet config expand fleet tune @tune.yaml
    """
    from fleet.cli.main import app as fleet_app
    from fleet.cli.main import load_command

    words = line[1:] if line[0] == "fleet" else line
    print(shlex.join(["fleet", *expanded(typer.main.get_command(fleet_app), words, load_command)]))


def _shown(setting: Setting) -> Setting:
    return replace(setting, value=_PASSWORD.sub(r"\1:***@", setting.value))
