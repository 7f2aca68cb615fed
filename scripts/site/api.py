"""The exports of `fleet` as directives for mkdocstrings, and the tree of errors."""

from __future__ import annotations

import inspect
import types

import fleet
from fleet import errors


def public_names() -> str:
    """Return one directive for each public name, where it is defined."""
    objects = [getattr(fleet, name) for name in fleet.__all__]
    found = [item for item in objects if not isinstance(item, types.ModuleType)]
    return "\n\n".join(f"::: {item.__module__}.{item.__qualname__}" for item in found)


def error_tree() -> str:
    """Return the tree that the docstring of `fleet.errors` draws."""
    lines = inspect.cleandoc(errors.__doc__ or "").splitlines()
    tree = [line.removeprefix("    ") for line in lines if line.startswith("    ")]
    return "\n".join(["```text", *tree, "```"])
