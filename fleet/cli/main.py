"""The command `fleet`. Commands are imported when first used, so that small ones start fast."""

from __future__ import annotations

import importlib
import itertools
import os
import sys
from typing import Annotated, Any, Literal, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from fleet.base import logs
from fleet.base.imports import no_collection
from fleet.base.version import package_version
from fleet.cli import json_out
from fleet.cli.argument_files import expand
from fleet.cli.failures import failure_of, tell, wants_json
from fleet.cli.groups import UsageError
from fleet.cli.options import Settings
from fleet.cli.plain_text import allow_plain_text
from fleet.errors import ConfigError, FleetError

_INTERRUPTED_EXIT_CODE = 130
_VALUES = {"whole number": "N", "number": "NUMBER", "str": "TEXT", "path": "PATH"}
"""Placeholder of a value for options without their own, by the name of its type."""

_TYPES = {"int": "whole number", "int range": "whole number", "float": "number", "float range": "number"}
"""Names of expected types in messages:  "'1e11' is not a valid int range" says less."""

_HELP_NAMES = ["-h", "--help"]

_GROUPS = {
    "Tune a model": {
        "tune": "Tune a model",
        "explain": "Show it before tuning",
        "profile": "Time its operators",
        "library": "Browse tuning records",
        "report": "Write a page about a run",
        "jobs": "Submit and follow runs",
        "workloads": "Keep models' operators",
        "pack": "Share tuning records",
    },
    "Run programs": {
        "export": "Compile a model to a file",
        "serve-check": "Check that on a device",
        "build": "Build one workload",
        "time": "Time an artifact",
        "run": "Run an artifact once",
        "program": "Load a bitstream",
        "targets": "List boards to build for",
        "gateway": "Serve stock TVM clients",
        "relay": "Reach boards behind NAT",
        "poison": "List refused programs",
    },
    "Share devices": {
        "status": "Watch the fleet, live",
        "web": "Show it in browsers",
        "devices": "List devices",
        "leases": "List or revoke leases",
        "request": "List or cancel requests",
        "acquire": "Hold a device",
        "book": "Keep devices free",
        "bookings": "List or cancel these",
        "usage": "Show who used how much",
    },
    "Set up and operate": {
        "doctor": "Check what works here",
        "config": "Show settings",
        "up": "Serve this machine",
        "tracker": "Serve a tracker",
        "agent": "Serve a board's devices",
        "optimizer": "Run submitted jobs",
        "builder": "Build on more machines",
        "discover": "Find trackers and boards",
        "login": "Join a fleet",
        "audit": "Show the audit log",
    },
    "Help": {
        "help": "Explain a command",
        "man": "Print the manual page",
        "completion": "Complete in your shell",
        "version": "Print the version",
    },
}
"""Names and short help texts, as `fleet --help` groups them: two columns of at most 20 lines.

Each command lives in the module of its name, with _ for -.
"""

_COMMANDS = {name: text for group in _GROUPS.values() for name, text in group.items()}
_LEFT = ("Tune a model", "Run programs")
_HELP = "Help"
"""Group that is named in the first lines of the overview, which is full."""

_COLUMN = 40


class LazyGroup(TyperGroup):
    """Shows all commands, imports the one that runs, and turns fleet errors into one line and an exit code."""

    def __init__(self, **options: Any) -> None:
        self._arguments: list[str] = []
        options["commands"] = {name: TyperCommand(name, help=text) for name, text in _COMMANDS.items()}
        super().__init__(**options)

    def make_context(self, info_name: Any, args: list[str], *rest: Any, **more: Any) -> Any:
        self._arguments = list(args)
        try:
            if not more.get("resilient_parsing"):  # completion reads no files
                self._arguments = expand(self, args, load_command)
            return super().make_context(info_name, list(self._arguments), *rest, **more)
        except (UsageError, ConfigError) as error:
            self._fail(error)

    def get_params(self, ctx: Any) -> Any:
        return _with_plain_values(super().get_params(ctx))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write an overview that fits 24 lines; `fleet help COMMAND` prints the details."""
        formatter.write(_overview())

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        return name, load_command(name) if name in _COMMANDS else command, rest

    def invoke(self, ctx: Any) -> Any:
        json_out.begin()
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()  # a full disk gives a readable error here, but not at exit
            return result
        except KeyboardInterrupt:
            raise typer.Exit(_INTERRUPTED_EXIT_CODE) from None
        except BrokenPipeError:
            # The reader of our output has closed it, as `head` does. Python would report that again when it flushes at
            # exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(1) from None
        except (FleetError, UsageError, ModuleNotFoundError, OSError) as error:
            self._fail(error)

    def _fail(self, error: Exception) -> NoReturn:
        """Print an error in one line, with --json also as JSON. A command group without arguments shows its help."""
        failure = failure_of(error)
        if failure is None or type(error).__name__ == "NoArgsIsHelpError":
            raise error
        tell(failure, error, as_json=wants_json(self._arguments, list(_COMMANDS)))
        raise typer.Exit(failure.exit_code) from None


def _overview() -> str:
    left, right = (
        [
            line
            for title, commands in _GROUPS.items()
            if title != _HELP and (title in _LEFT) is is_left
            for line in (title, *(f"  {name:12}{text}" for name, text in commands.items()))
        ]
        for is_left in (True, False)
    )
    rows = (f"{one:{_COLUMN}}{other}".rstrip() for one, other in itertools.zip_longest(left, right, fillvalue=""))
    return (
        "Usage: fleet [--tracker HOST:PORT] [--format json] [--log-level LEVEL] COMMAND\n"
        "Begin with: fleet tune model.onnx. More: help COMMAND, man, completion, version\n" + "\n".join(rows) + "\n"
    )


app = typer.Typer(
    cls=LazyGroup,
    no_args_is_help=True,
    add_completion=False,  # `fleet completion` does it
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": _HELP_NAMES},
)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        print(f"tvm-fleet {package_version()}")
        raise typer.Exit


@app.callback()
def root(
    ctx: typer.Context,
    tracker: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="The tracker to talk to. Default: as 'fleet config show' says."),
    ] = None,
    output: Annotated[
        Literal["table", "json"] | None,
        typer.Option("--format", help="How data is printed. Default: as 'fleet config show' says, else table."),
    ] = None,
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"] | None,
        typer.Option(help="What goes to the log on stderr; debug also shows tracebacks. Default: warning."),
    ] = None,
    version: Annotated[
        bool,
        typer.Option("--version", "-V", help="Print the version and exit.", is_eager=True, callback=_print_version),
    ] = False,
) -> None:
    """A fleet of devices for tuning tensor programs.

    Run an agent on each board and a tracker in the middle, select devices by their properties, and tune on all of them.

    Example: fleet up, and in another terminal: fleet tune model.onnx
    """
    logs.setup(log_level or "warning", is_json=False)
    allow_plain_text()
    ctx.obj = Settings(tracker=tracker, output=output, log_level=log_level)


def load_command(name: str) -> Any:
    """Import a command's module and return its entry: its `app`, or the function of its name."""
    word = name.replace("-", "_")
    with no_collection():
        module = importlib.import_module(f"fleet.cli.{word}")
    found = getattr(module, "app", None)
    if found is None:
        found = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
        found.command()(getattr(module, word))
    found.info.name = name
    command = typer.main.get_command(found)
    _polish(command)
    return command


def _polish(command: Any) -> None:
    """Improve the help of a command and its subcommands."""
    command.help = _flowing(command.help or "")
    _with_plain_values(command.get_params(typer.Context(command, help_option_names=_HELP_NAMES)))
    for below in getattr(command, "commands", {}).values():
        _polish(below)


def _with_plain_values(params: Any) -> Any:
    """Replace placeholders by a word: "<int range>" is unclear, and so is "<bool>" beside a flag without a value."""
    for param in params:
        if getattr(param, "is_flag", False):
            param.metavar = ""
        param.type.name = _TYPES.get(param.type.name, param.type.name)
        if param.param_type_name == "option" and param.metavar is None:
            param.metavar = _VALUES.get(param.type.name)
    return params


def _flowing(text: str) -> str:
    """Join the lines of each paragraph: typer keeps the source's line breaks, which look random on a narrow screen."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


def main() -> None:
    """Entry point of the command `fleet`."""
    app(prog_name="fleet")


if __name__ == "__main__":
    main()
