"""The command line's reference: each command's usage, help, arguments and options, asked of the command itself."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import click
import typer
from words import plain

from fleet.cli import main


def as_markdown() -> str:
    """Return a section for `fleet` itself and for each of its commands."""
    root = typer.main.get_command(main.app)
    lines = list(_section("fleet", root, level=2))
    for name in root.commands:
        lines += _command(f"fleet {name}", main.load_command(name), level=2)
    return "\n".join(lines)


def _command(path: str, command: Any, level: int) -> Iterator[str]:
    yield from _section(path, command, level)
    for name, child in getattr(command, "commands", {}).items():
        yield from _command(f"{path} {name}", child, level + 1)


def _section(path: str, command: Any, level: int) -> Iterator[str]:
    context = click.Context(command, info_name=path)
    usage = " ".join([path, *command.collect_usage_pieces(context)])
    yield from (f"{'#' * level} {path}", "", "```text", usage, "```", "")
    yield from _paragraphs(command.help or "")
    records = [record for parameter in command.params if (record := parameter.get_help_record(context))]
    for names, text in records:
        yield from (f"`{names}`", f":   {plain(text) or 'No more is to be said.'}", "")


def _paragraphs(text: str) -> Iterator[str]:
    """Yield a help text's paragraphs, the command of its example apart."""
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        example = paragraph.removeprefix("Example: ")
        is_command = example != paragraph and ", and " not in example
        yield f"Example:\n\n```text\n{example}\n```\n" if is_command else f"{plain(paragraph)}\n"
