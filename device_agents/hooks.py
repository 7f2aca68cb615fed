"""Hooks of a device in agent.yaml: commands of its owner that the agent runs around leases and after faults.

    devices:
      - driver: tvm_rpc
        before_lease: {command: [/usr/local/bin/prepare-board, --quick]}
        after_lease: {command: [/usr/local/bin/clean-board], timeout_sec: 10}
        power_cycle: {command: [uhubctl, -l, 1-1, -a, cycle], timeout_sec: 60}

A command is a list of words. No shell reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated

from fleet.base.config import parse, shown
from fleet.base.source_locations import at
from fleet.errors import ConfigError

LONGEST_SEC = 600.0
"""Largest time limit of a hook: a holder waits for it."""
_MOST_WORDS = 64
_MOST_CHARS = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class HookKeys:
    """Keys of one hook."""

    command: Annotated[list[object], "The command, as a list of words; no shell reads them."]
    timeout_sec: Annotated[float, "Time limit [s], at most 600; the command and its children are killed then."] = 30.0


@dataclass(frozen=True, slots=True)
class Hook:
    """A command with a time limit."""

    name: str
    """Key in agent.yaml."""
    command: tuple[str, ...]
    timeout_sec: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """The hooks of one device; None: the owner gave none."""

    before_lease: Hook | None = None
    after_lease: Hook | None = None
    power_cycle: Hook | None = None


NO_HOOKS = Hooks()
HOOK_NAMES = tuple(field.name for field in fields(Hooks))


def parse_hooks(entry: Mapping[str, object], *, where: str) -> Hooks:
    """Return the hooks among the keys of an entry.

    Raises:
        ConfigError: an unknown key (the nearest is named), no command, a word that is no text, or a bad time limit.
    """
    return Hooks(**{name: _hook(name, entry[name], at(where, name)) for name in HOOK_NAMES if name in entry})


def _hook(name: str, content: object, where: str) -> Hook:
    if not isinstance(content, Mapping):
        raise ConfigError(f"{where}: expected 'command' and 'timeout_sec', found {shown(content)}")
    keys = parse(HookKeys, content, where=where)
    if not 0 < keys.timeout_sec <= LONGEST_SEC:  # also refuses nan
        expected = f"expected a number above 0, at most {LONGEST_SEC:g}"
        raise ConfigError(f"{at(where, 'timeout_sec')}: {expected}, found {keys.timeout_sec:g}")
    words: list[str] = []
    command = at(where, "command")
    for word in keys.command:
        if not isinstance(word, str) or "\0" in word:
            raise ConfigError(f"{command}: expected words of text, found {shown(word)}; put it in quotes")
        words.append(word)
    if not words or not words[0]:
        raise ConfigError(f"{command}: the first word names a program, and there is none")
    if len(words) > _MOST_WORDS or sum(map(len, words)) > _MOST_CHARS:
        raise ConfigError(
            f"{command}: more than {_MOST_WORDS} words or {_MOST_CHARS} characters; write a script and name it"
        )
    if "/" in words[0] and not words[0].startswith("/"):
        raise ConfigError(f"{command}: {shown(words[0])} is no absolute path; hooks run in the root directory")
    return Hook(name, tuple(words), keys.timeout_sec)
