"""No operator of a generated model calls the C library for each element."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cross.targets.target import host_target, parse_target
from fleet.artifacts.elf import undefined_symbols
from fleet.models.model import load_model
from fleet.testing.models import GENERATED, write
from fleet.workloads.extract import compile_model

pytestmark = pytest.mark.slow

RUNTIME = ("TVM", "_")
"""Prefixes of symbols of TVM's runtime, of loaders and of compilers."""

QUICK = parse_target(json.dumps(dict(host_target().options) | {"opt-level": 0}))
"""LLVM's optimizations take most of the build time and do not replace such calls."""

MEMORY = {"memcpy", "memmove", "memset"}
"""Functions that are called for whole rows."""


@pytest.mark.parametrize("name", GENERATED)
def test_models_call_no_function_of_the_c_library(name: str, tmp_path: Path) -> None:
    """The generated code calls neither `expf` nor `tanhf` nor others: all are computed in vectors."""
    model = load_model(write(name, tmp_path))

    built = compile_model(model, QUICK, {}, tmp_path)

    called = {symbol for symbol in undefined_symbols(built.path.read_bytes()) if not symbol.startswith(RUNTIME)}
    assert called <= MEMORY
