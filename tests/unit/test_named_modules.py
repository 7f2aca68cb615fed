"""Modules and classes that the agent loads by name exist, so that a move of files is noticed in strings, too."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from device_agents import registry
from device_agents.driver import Driver
from device_agents.runtimes.contract import Runtime

_ROOT = Path(__file__).parents[2]
_NO_MODULES = (
    "cross.yaml",
    "fleet.drivers",
    "fleet.observers",
    "fleet.strategies",
    "fleet.opencl.use_events",
    "fleet.attention",
    "fleet.concat",
    "fleet.constants",
    "fleet.left_to_compiler",
    "fleet.recurrence",
    "fleet.winograd",
)
"""Names with dots that are not modules.

A configuration file, an entry point group, a function that the OpenCL plugin registers with TVM, and attributes of
tensor programs and of their loops.
"""

_RPCS = tuple(
    f"fleet.v1.SessionService.{name}"
    for name in ("Call", "CallInPieces", "Measure", "Prove", "ProveInPieces", "PutArtifact")
)

_NAME = re.compile(r"(?:device_agents|fleet|cross)(?:\.\w+)+(?::\w+)?")
_QUOTED = re.compile(rf"[\"']{_NAME.pattern}[\"']")
"""A file without a match names no module, and need not be parsed while tests are collected."""


def _named(folder: str) -> Iterator[str]:
    """Yield the names of our modules, and of classes in them, in the texts of the code below a folder."""
    for path in sorted((_ROOT / folder).rglob("*.py")):
        if "v1" not in path.parts and _QUOTED.search(source := path.read_text()):
            for node in ast.walk(ast.parse(source)):
                text = node.value if isinstance(node, ast.Constant) else None
                if isinstance(text, str) and _NAME.fullmatch(text) and text not in _NO_MODULES + _RPCS:
                    yield text


_IN_DRIVERS = sorted(set(_named("device_agents/drivers")))
_RUNTIMES = [name for name in _IN_DRIVERS if ":" in name]
_PRELOADS = [name for name in _IN_DRIVERS if ":" not in name and ".runtimes." in name]


@pytest.mark.parametrize("name", _RUNTIMES)
def test_every_runtime_that_a_driver_names_is_one(name: str) -> None:
    """The runtime's methods have the positional parameters that the worker passes."""
    module, _, class_name = name.partition(":")
    runtime = getattr(importlib.import_module(module), class_name)

    wanted = {method: signature for method, signature in _methods(Runtime) if not method.startswith("_")}
    assert wanted
    for method, signature in wanted.items():
        found = inspect.signature(getattr(runtime, method))
        assert list(found.parameters) == list(signature.parameters), method


@pytest.mark.parametrize("name", _PRELOADS)
def test_every_module_that_a_driver_preloads_can_be(name: str) -> None:
    """The process that workers are forked from calls its `preload`."""
    assert not inspect.signature(importlib.import_module(name).preload).parameters


def test_there_are_names_to_test() -> None:
    """Drivers name all runtimes except those that are parts of others."""
    assert len(_RUNTIMES) >= 7
    assert len(_PRELOADS) >= 4


@pytest.mark.parametrize("name", sorted({*_named("fleet"), *_named("device_agents"), *_named("cross")}))
def test_every_module_that_is_named_in_a_text_is_there(name: str) -> None:
    """Started by `python -m`, imported when needed, or shown to users."""
    module, _, member = name.partition(":")
    parts = module.split(".")
    is_there = any(
        (_ROOT.joinpath(*parts[:depth])).with_suffix(".py").exists() for depth in (len(parts), len(parts) - 1)
    )

    assert is_there or _ROOT.joinpath(*parts).is_dir()
    assert not member or hasattr(importlib.import_module(module), member)


def test_driver_entry_points_equal_the_built_in_table() -> None:
    """The entry points in pyproject.toml equal the table for boards without metadata, and all are drivers."""
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]

    assert project["entry-points"][registry.GROUP] == registry.BUILT_IN
    for name in registry.BUILT_IN:
        assert issubclass(registry.load_driver(name, where="test"), Driver)


def _methods(protocol: type) -> list[tuple[str, inspect.Signature]]:
    return [(name, inspect.signature(found)) for name, found in inspect.getmembers(protocol, inspect.isfunction)]
