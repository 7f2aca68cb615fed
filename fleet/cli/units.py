"""Systemd units of services, printed with the next steps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer
from typer.models import TyperPath

from fleet.base.config import at_home
from fleet.base.systemd import unit_text
from fleet.cli import options
from fleet.errors import ConfigError


def print_unit(noun: str, purpose: str, command: Sequence[str]) -> None:
    """Print a unit that keeps a service running.

    Args:
        noun: "tracker".
        purpose: its description.
        command: absolute path of the program and its arguments.

    Raises:
        ConfigError: an argument cannot be written into a unit.
    """
    name = f"fleet-{noun}"
    try:
        text = unit_text(f"tvm-fleet {noun}: {purpose}", command)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    print(text, end="")
    options.stderr().print(
        f"as ~/.config/systemd/user/{name}.service; then: systemctl --user enable --now {name}, and "
        "loginctl enable-linger, so that it runs while you are logged out",
        style="dim",
        soft_wrap=True,
    )


def parsed_options(app: typer.Typer, name: str, words: Sequence[str]) -> dict[str, str]:
    """Parse the options of a command; return the given ones by flag, with "" for a flag without a value.

    Paths are absolute, since systemd starts services in another folder. An invalid option ends the command as usual.
    """
    group: Any = typer.main.get_command(app)
    command = group.commands[name]
    context = command.make_context(name, list(words))
    given = [one for one in command.params if context.get_parameter_source(one.name).name != "DEFAULT"]
    return {one.opts[0]: _word(context.params[one.name], is_path=isinstance(one.type, TyperPath)) for one in given}


def _word(value: object, *, is_path: bool) -> str:
    if is_path:
        return str(at_home(Path(str(value))).resolve())
    return "" if value is True else str(value)
