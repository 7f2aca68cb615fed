"""Source locations in a YAML file, as error messages begin: "agent.yaml: line 3: devices[0]: labels".

A location is a text, so that checks also take a plain one: values from elsewhere have no lines.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator

import yaml

from fleet.errors import ConfigError


class SourceLocation(str):
    """Location of a value in a YAML file."""

    _file: str
    _node: yaml.Node | None
    _line: int
    _path: str

    def __new__(cls, file: str, node: yaml.Node | None = None, *, line: int = 0, path: str = "") -> SourceLocation:
        """Args:
        node: the value; None: unknown.
        line: of its key; 0: unknown.
        path: keys that lead to it, as in messages.
        """
        place = super().__new__(cls, ": ".join(filter(None, (file, f"line {line}" if line else "", path))))
        place._file, place._node, place._line, place._path = file, node, line, path
        return place

    def below(self, key: object) -> SourceLocation:
        """Return the place of a key's value, or of a list's item. Unknown keys have the line of their mapping."""
        line, node = self._found(key)
        return SourceLocation(self._file, node, line=line, path=_joined(self._path, key))

    def of_key(self, key: object) -> SourceLocation:
        """Return this place with the line of one of its keys."""
        line, _ = self._found(key)
        return SourceLocation(self._file, self._node, line=line, path=self._path)

    def _found(self, key: object) -> tuple[int, yaml.Node | None]:
        own_line = self._line or (0 if self._node is None else _line(self._node))
        return self._values.get(str(key), (own_line, None))

    @functools.cached_property
    def _values(self) -> dict[str, tuple[int, yaml.Node]]:
        """Lines and values by key, or by number in a list. Later pairs win, as merged keys come first."""
        if isinstance(self._node, yaml.SequenceNode):
            return {str(index): (_line(item), item) for index, item in enumerate(self._node.value)}
        pairs = self._node.value if isinstance(self._node, yaml.MappingNode) else ()
        return {key.value: (_line(key), value) for key, value in pairs if isinstance(key, yaml.ScalarNode)}


def at(where: str, *keys: object) -> str:
    """Return the place of a value below another place, with its line if the file is known; numbers count a list."""
    for key in keys:
        where = where.below(key) if isinstance(where, SourceLocation) else _joined(where, key)
    return where


def at_key(where: str, key: object) -> str:
    """Return a place with the line of one of its keys, for a message about the key itself."""
    return where.of_key(key) if isinstance(where, SourceLocation) else where


@contextlib.contextmanager
def named_in_errors(where: str) -> Iterator[None]:
    """Begin configuration errors of the block with a place."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error


def _joined(path: str, key: object) -> str:
    if isinstance(key, int):
        return f"{path}[{key}]"
    return f"{path}: {key}" if path else str(key)


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1
