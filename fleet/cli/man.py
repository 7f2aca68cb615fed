"""`fleet man`: the manual page of this version, made of the commands' help."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import typer

from fleet.base.config import keys_of
from fleet.base.extras import advice_for
from fleet.base.settings import ClientFile
from fleet.base.version import package_version

_CODES = {
    "0": "done",
    "1": "it failed; the message names the problem and a remedy",
    "2": "the caller's mistake: running it again changes nothing",
    "124": "no device came free within --wait-timeout",
    "126, 127": "'fleet acquire' and 'fleet program': their command cannot be executed, or was not found",
    "129": "ended by SIGHUP: its terminal was closed; leases are released, temporary files removed",
    "130": "ended by Ctrl-C; measurements are kept",
    "143": "ended by SIGTERM; leases are released, temporary files removed; services exit with 0",
    "others": "of 'fleet acquire' and 'fleet program': their command's own, 128 + N where signal N ended it",
}


def man() -> None:
    """Print the manual page, for man(1).

    Example: fleet man > ~/.local/share/man/man1/fleet.1
    """
    print(manual(), end="")


def manual() -> str:
    """Return the page, as troff with the macros of man(7)."""
    from fleet.cli.main import app, load_command

    root = typer.main.get_command(app)
    names = {name: command.help or "" for name, command in getattr(root, "commands", {}).items()}
    lines = [
        f'.TH FLEET 1 "" "tvm-fleet {_plain(package_version())}" "User Commands"',
        *(".SH NAME", r"fleet \- a fleet of devices for tuning tensor programs"),
        *(".SH SYNOPSIS", *_usage("fleet", root)),
        *(".SH DESCRIPTION", *_paragraphs(root.help or "")),
        *(".SH OPTIONS", *_options(root)),
        ".SH COMMANDS",
    ]
    for name, short in names.items():
        try:
            command = load_command(name)
        except ModuleNotFoundError as error:  # a minimal installation has a manual, too
            missing = f"It needs the package {error.name}, which is not installed here; {advice_for(error)}"
            lines += [f'.SS "{_plain(f"fleet {name}")}"', _text(short), ".PP", _text(missing)]
            continue
        lines += _command(f"fleet {name}", command)
    lines += [".SH FILES", ".TP", f".I {_plain('~/.config/tvm-fleet/config.yaml')}"]
    lines += ["What commands take when no flag says otherwise:", ".RS"]
    lines += [part for key in keys_of(ClientFile) for part in (".TP", f".B {_plain(key.name)}", _text(key.doc))]
    lines += [".RE", ".SH EXIT STATUS"]
    lines += [part for code, text in _CODES.items() for part in (".TP", f".B {code}", _text(text))]
    return "\n".join(lines) + "\n"


def _command(path: str, command: Any) -> Iterator[str]:
    """Yield the section of a command, then those of its own commands."""
    children = {name: child for name, child in getattr(command, "commands", {}).items() if not child.hidden}
    yield from (f'.SS "{_plain(path)}"', *_usage(path, command), *_paragraphs(command.help or ""), *_options(command))
    for name, child in children.items():
        yield from _command(f"{path} {name}", child)


def _usage(path: str, command: Any) -> Iterator[str]:
    pieces = command.collect_usage_pieces(typer.Context(command, info_name=path))
    yield from (".PP", f"\\fB{_plain(path)}\\fR {_plain(' '.join(pieces))}")


def _paragraphs(text: str) -> Iterator[str]:
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        example = paragraph.removeprefix("Example: ")
        if example != paragraph:
            yield from (".PP", "Example:", ".RS 4", ".nf", _text(example), ".fi", ".RE")
        elif paragraph:
            yield from (".PP", _text(" ".join(paragraph.split())))


def _options(command: Any) -> Iterator[str]:
    context = typer.Context(command)
    for names, text in filter(None, (parameter.get_help_record(context) for parameter in command.params)):
        yield from (".TP", f".B {_plain(names)}", _text(text) or "No more is to be said.")


def _text(text: str) -> str:
    """Escape a line of text that begins with . or ', which troff would read as an instruction."""
    return f"\\&{_plain(text)}" if text[:1] in (".", "'") else _plain(text)


def _plain(text: str) -> str:
    """Escape text for troff, and keep - as the ASCII hyphen that shells expect."""
    return text.replace("\\", "\\(rs").replace("-", "\\-").replace('"', "\\(dq")
