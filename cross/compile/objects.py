"""Object files of programs, kept beside a job's artifacts by the content of the program.

A program that was compiled to be measured alone need not be compiled again for the whole model: its object file is
linked there under the model's name for the program.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from cross.targets.target import Target
from fleet.artifacts.elf import with_renamed_symbols

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

NAME = "main"
"""Name of each kept program."""

_PREFIX = "__tvm_ffi_"
"""TVM's prefix of the symbols of functions."""

_PLACEHOLDERS = ("__truncsfhf2", "__extendhfsf2")
"""Empty functions in programs without half-precision numbers. Another program of the model may have the real ones."""

_WITHOUT_EFFECT = ("global_symbol", "op_pattern", "tirx.is_scheduled")
_WITHOUT_EFFECT_PREFIX = "fleet."
"""Attributes of functions that do not change their code."""


def object_path(function: PrimFunc, target: Target, out_dir: Path) -> Path:
    """Return the place of a program's object file among the artifacts in a folder."""
    import tvm_ffi

    for name in list(function.attrs.keys()) if function.attrs else ():
        if name in _WITHOUT_EFFECT or name.startswith(_WITHOUT_EFFECT_PREFIX):
            function = function.without_attr(name)
    parts = (int(tvm_ffi.structural_hash(function)), target.json)
    return out_dir / "objects" / f"{hashlib.sha256(repr(parts).encode()).hexdigest()}.o"


def keep_object(written: Path, path: Path) -> None:
    """Move an object file of the program `NAME` to its place.

    Raises:
        OSError: it cannot be written there.
    """
    path.parent.mkdir(exist_ok=True)
    written.replace(path)


def write_named(kept: Path, name: str, output: Path) -> None:
    """Write a kept object file as that of a program with another name.

    Raises:
        OSError: it cannot be written.
    """
    own = {f"{_PREFIX}{NAME}": f"{_PREFIX}{name}"} | _own_placeholders(name)
    output.write_bytes(with_renamed_symbols(kept.read_bytes(), own))


def name_placeholders(path: Path, name: str) -> None:
    """Give the placeholders of an object file names that begin with `name`.

    Raises:
        OSError: it cannot be written.
    """
    path.write_bytes(with_renamed_symbols(path.read_bytes(), _own_placeholders(name)))


def _own_placeholders(name: str) -> dict[str, str]:
    return {placeholder: f"{name}{placeholder}" for placeholder in _PLACEHOLDERS}
