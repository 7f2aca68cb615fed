"""Strict YAML reader: only regular files of bounded size, and no duplicate keys in a mapping."""

from __future__ import annotations

import os
import stat
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from fleet.base.source_locations import SourceLocation
from fleet.errors import ConfigError

_MAX_BYTES = 1024 * 1024
"""Far above hand-written configuration. PyYAML takes a second for each megabyte."""
_MAX_MERGED_KEYS = _MAX_BYTES
"""Keys that "<<" may copy. A few lines that merge one another ask for billions."""

_MOST_LEVELS = 50
"""Of nesting in plain texts."""


def read_text(path: Path, *, most_bytes: int = _MAX_BYTES) -> str:
    """Read a configuration file.

    Raises:
        ConfigError: the file is missing, not a regular file, too large, or not UTF-8.
    """
    try:
        # Without O_NONBLOCK, opening a pipe without a writer blocks.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ConfigError(f"cannot read {path}: it is no regular file; name a file of YAML")
            content = file.read(most_bytes + 1)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    if len(content) > most_bytes:
        raise ConfigError(f"cannot read {path}: it is larger than {most_bytes} bytes; is it the right file?")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not YAML: {error}") from error


def load(text: str, *, where: str, as_text: bool = False, is_plain: bool = False) -> tuple[object, SourceLocation]:
    """Return the content of a YAML document, and its place, which knows the lines.

    Args:
        as_text: leave numbers, dates and booleans as they are written.
        is_plain: refuse tags, anchors and aliases.

    Raises:
        ConfigError: a mapping has a duplicate key, with its line in the message, or merges copy too many keys; or a
            plain text has a tag, an anchor or an alias.
        Exception: the text is not YAML. PyYAML raises its own errors, but other classes for "!!float x" or a hundred
            brackets.
    """
    loader = _TextLoader(text) if as_text else _PlainLoader(text) if is_plain else _Loader(text)
    loader.where = where
    try:
        root = loader.get_single_node()
        return None if root is None else loader.construct_document(root), SourceLocation(where, root)
    finally:
        loader.dispose()


class _Loader(yaml.SafeLoader):
    where = ""
    merged_keys = 0

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        super().flatten_mapping(node)
        self.merged_keys += len(node.value)  # it is called for each merge before the keys are copied
        if self.merged_keys > _MAX_MERGED_KEYS:
            raise ConfigError(f"{self.where}: '<<' copies more than {_MAX_MERGED_KEYS} keys; write them out")

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        self._refuse_repeated_keys(node)  # before the base class merges "<<", which may repeat keys
        return super().construct_mapping(node, deep=deep)

    def _refuse_repeated_keys(self, node: yaml.MappingNode) -> None:
        if not isinstance(node, yaml.MappingNode):
            return  # the base class raises the error
        lines: dict[tuple[str, str], int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            line = key.start_mark.line + 1
            if (first := lines.get((key.tag, key.value))) is not None:
                raise ConfigError(
                    f"{self.where}: line {line}: the key {key.value!r} stands in line {first} already; keep one of them"
                )
            lines[key.tag, key.value] = line


class _TextLoader(_Loader):
    """Reads scalars as they are written, and "<<" as a key like any other."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.yaml_implicit_resolvers = {}


class _PlainLoader(_Loader):
    """Refuses everything beyond values that are written out."""

    level = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        where = f"{self.where}: line {event.start_mark.line + 1}"
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            raise ConfigError(f"{where}: an alias or anchor is not allowed here; write the value out")
        if event.tag is not None:
            raise ConfigError(f"{where}: the tag {event.tag!r} is not allowed here; write a plain value")
        if self.level == _MOST_LEVELS:
            raise ConfigError(f"{where}: lists and mappings are nested more than {_MOST_LEVELS} times")
        self.level += 1
        node = super().compose_node(parent, index)
        self.level -= 1
        return node
