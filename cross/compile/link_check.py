"""Tries every linker of this machine for every platform, by linking an object that TVM made for it.

    python -m cross.compile.link_check        # JSON: a list of the attempts

In a process of its own, since TVM takes a moment to load and a broken installation may crash.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cross.compile.toolchains import Linker, check_linked, find_linker, find_linkers, link, platform_of
from cross.targets.boards import find_board
from cross.targets.target import Target, make_target, parse_target
from fleet.base.scratch import scratch_dir
from fleet.errors import FleetError

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

BOARDS = {"x86_64": "x86-64-v1", "aarch64": "rpi3-64", "armv7l": "zynq-7000", "android": "android-arm64"}
"""Platforms that linkers are tried for, by a board of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkAttempt:
    """One linker tried for one platform."""

    platform: str
    linker: str
    """Empty when there is none."""

    error: str = ""
    """Why it does not link; empty: it does."""

    link_ms: float = 0.0


def try_linkers() -> Iterator[LinkAttempt]:
    """Link one object with every linker of every platform. The one that builds use comes first."""
    for platform_name, board in BOARDS.items():
        target = parse_target(find_board(board).target_json)
        with scratch_dir("link") as scratch:
            code = scratch / "code.o"
            _write_object(target, code)
            yield from _attempts(platform_name, target, code)


def _attempts(platform_name: str, target: Target, code: Path) -> Iterator[LinkAttempt]:
    try:
        chosen = find_linker(target)
    except FleetError as error:
        yield LinkAttempt(platform=platform_name, linker="", error=str(error))
        return
    others = [linker for linker in find_linkers(target) if linker != chosen]
    for linker in (chosen, *others):
        started = time.perf_counter()
        error_text = _try(linker, target, code)
        link_ms = (time.perf_counter() - started) * 1e3
        yield LinkAttempt(platform=platform_of(target), linker=linker.name, error=error_text, link_ms=link_ms)


def _try(linker: Linker, target: Target, code: Path) -> str:
    output = code.with_suffix(".so")
    output.unlink(missing_ok=True)
    try:
        link(linker, [code], output)
        check_linked(output.read_bytes(), target, linker)
    except (FleetError, OSError) as error:
        return str(error)
    return ""


def _write_object(target: Target, path: Path) -> None:
    import tvm

    tvm.compile(_tiny_program(), target=make_target(target)).mod.write_to_file(str(path), "o")


def _tiny_program() -> PrimFunc:
    from tvm import te

    values = te.placeholder((64,), name="A")
    return te.create_prim_func([values, te.compute((64,), lambda i: te.exp(values[i]) * 2.0, name="B")])


def main() -> None:
    """Print the attempts."""
    sys.stdout.write(json.dumps([asdict(attempt) for attempt in try_linkers()]))


if __name__ == "__main__":
    main()
