"""Arguments in files: `@tune.yaml` in a command stands for the options in that file.

Keys are the command's long options without dashes, and the names of its arguments. All values are text, as in a shell.
Relative paths start at the file's folder. The command line wins over a file, and a later file over an earlier one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typer.core import TyperCommand

from fleet.base import yaml_text
from fleet.base.config import at_home, did_you_mean, parse_yaml, shown
from fleet.base.source_locations import SourceLocation, at, at_key
from fleet.cli.groups import ListingGroup, UsageError
from fleet.errors import ConfigError

_MARK = "@"
_END = "--"
"""Ends the options: all words behind it are left alone."""

_PATHS = ("path", "file", "directory")
"""Names of click's types of paths."""

_PROGRAMS = ("model", "models", "workload")
"""Parameters that take a path or the name of a program."""

_BOOLEANS = {"true": True, "false": False}


class LineCommand(TyperCommand):
    """Command with a command line as its arguments; it reads the files of that line itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Value:
    """Value of one parameter in a file, as words of a command line."""

    param: Any
    words: tuple[str, ...]


def expand(root: Any, arguments: Sequence[str], load: Callable[[str], Any]) -> list[str]:
    """Return a command line with the content of its argument files; `@@word` becomes `@word`.

    Args:
        root: the group of all commands.
        arguments: all words behind `fleet`.
        load: returns a command by its name.

    Raises:
        ConfigError: a file cannot be read, or has a key or value that the command does not take.
    """
    own = list(itertools.takewhile(lambda word: word != _END, arguments))
    if not any(word.startswith(_MARK) for word in own):
        return list(arguments)
    command, start, given = _command_of(root, own, load)
    if command is None or isinstance(command, LineCommand):
        return list(arguments)
    files = [word for word in own[start:] if _is_file(word)]
    typed = [_plain(word) for word in own[start:] if not _is_file(word)]
    given |= _given(command, typed)
    found: dict[str, _Value] = {}
    for file in files:
        found |= {value.param.name: value for value in _values(command, file.removeprefix(_MARK))}
    kept = [value for name, value in found.items() if name not in given]
    options = [word for value in kept if not _is_argument(value.param) for word in value.words]
    order = [param.name for param in command.params]
    behind = sorted((value for value in kept if _is_argument(value.param)), key=lambda one: order.index(one.param.name))
    return [
        *own[:start],
        *options,
        *typed,
        *(word for value in behind for word in value.words),
        *arguments[len(own) :],
    ]


def _command_of(root: Any, words: Sequence[str], load: Callable[[str], Any]) -> tuple[Any, int, set[str]]:
    """Return the command that a line names, the number of its first own word, and parameters of the groups before."""
    command, start, given = root, 0, set[str]()
    while commands := getattr(command, "commands", None):
        before = list(itertools.takewhile(lambda word, names=commands: word not in names, words[start:]))  # type: ignore[misc]
        if start + len(before) == len(words):
            return _default(command), start, given
        given |= _given(command, before)
        name = words[start + len(before)]
        command = load(name) if command is root else commands[name]
        start += len(before) + 1
    return command, start, given


def _default(group: Any) -> Any:
    """Return the command that a group runs without the name of one."""
    if isinstance(group, ListingGroup):
        return group.commands["list"]
    return group if group.invoke_without_command and group.params else None


def _given(command: Any, words: Sequence[str]) -> set[str]:
    """Return the names of the parameters that words set; none if the words are wrong, which the command reports."""
    context = command.context_class(command, resilient_parsing=True)
    try:
        values, _, _ = command.make_parser(context).parse_args(list(words))
    except UsageError:
        return set()
    flags = {param.name for param in command.params if not _is_argument(param)}
    return {name for name, value in values.items() if name in flags or isinstance(value, str) or _is_filled(value)}


def _is_filled(value: object) -> bool:
    return isinstance(value, tuple) and any(isinstance(item, str) for item in value)


def _is_argument(param: Any) -> bool:
    return bool(param.param_type_name == "argument")


def _is_file(word: str) -> bool:
    return word.startswith(_MARK) and not word.startswith(_MARK * 2)


def _plain(word: str) -> str:
    return word[1:] if word.startswith(_MARK * 2) else word


def _values(command: Any, file: str) -> Iterator[_Value]:
    """Yield the values of an argument file."""
    content, place = parse_yaml(yaml_text.read_text(Path(file)), where=file, as_text=True)
    known = _keys(command)
    for key, value in content.items():
        if key not in known:
            word = key if isinstance(key, str) else shown(key)
            raise ConfigError(f"{at_key(place, key)}: unknown key {shown(key)}{did_you_mean(word, known)}")
        param, flag = known[key]
        yield _Value(param=param, words=tuple(_words(param, flag, value, key, place, Path(file).parent)))


def _keys(command: Any) -> Mapping[str, tuple[Any, str]]:
    """Return the parameter and the flag of each key. An argument goes before a flag of its name."""
    shown_params = [param for param in command.params if not getattr(param, "hidden", False)]
    flags = {
        flag.removeprefix("--"): (param, flag)
        for param in shown_params
        if not _is_argument(param)
        for flag in (*param.opts, *param.secondary_opts)
        if flag.startswith("--")
    }
    return flags | {param.name.replace("_", "-"): (param, "") for param in shown_params if _is_argument(param)}


def _words(param: Any, flag: str, value: object, key: str, place: SourceLocation, folder: Path) -> Iterator[str]:
    where = at(place, key)
    if getattr(param, "is_flag", False):
        yield from _flag_words(param, flag, value, where)
        return
    takes_several = getattr(param, "multiple", False) or param.nargs == -1
    items = value if isinstance(value, list) else [value]
    if isinstance(value, list) and not takes_several:
        raise ConfigError(f"{where}: takes one value, found a list")
    for item in items:
        if not isinstance(item, str) or not item:
            expected = "a value or a list of values" if takes_several else "one value"
            raise ConfigError(f"{where}: expected {expected}, found {shown(item)}; put text in quotes")
        text = _seen_from(folder, param, item)
        yield f"{flag}={text}" if flag else text


def _flag_words(param: Any, flag: str, value: object, where: str) -> Iterator[str]:
    if not isinstance(value, str) or value not in _BOOLEANS:
        raise ConfigError(f"{where}: expected true or false, found {shown(value)}")
    if _BOOLEANS[value]:
        yield flag
        return
    yield from (param.secondary_opts if flag in param.opts else param.opts)[:1]


def _seen_from(folder: Path, param: Any, text: str) -> str:
    """Return a value, with a path below the file's folder."""
    if param.name in _PROGRAMS:
        return _program_from(folder, text)
    if param.type.name in _PATHS or (param.name == "library" and "://" not in text):
        return _joined(folder, text)
    return text


def _program_from(folder: Path, text: str) -> str:
    """Resolve the path of a model or program against the folder; leave other names unchanged."""
    from fleet.models.importers import importer_of
    from fleet.workloads.sources import is_program

    if is_program(text) and not text.partition(":")[0].endswith((".py", ".json")):
        return text
    importer = importer_of(text)
    prefix = importer.prefix if importer and text.startswith(importer.prefix) else ""
    path = _joined(folder, text.removeprefix(prefix))
    return prefix + path if not prefix or Path(path).exists() else text


def _joined(folder: Path, text: str) -> str:
    return str(folder / at_home(text))
