"""Known boards, as data: TVM target, triple, libc, CPU features, and the facts that identify a board.

Each file of `cross/targets/board_files/` describes one family. Common keys of its boards stand under `common:`, builds
of one board (32 and 64 bit) under `variants:`, and each board under `boards:` with its own keys. No TVM is
imported: agents on boards read these files, too.

    found = Found(arch="aarch64", model="Raspberry Pi 4 Model B Rev 1.4", core_count=4)
    board = match(found)                     # rpi4-64
    target_json = refine(board, found)       # with the cores and features that this machine really has
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fleet.base.config import nearest, parse, read_yaml
from fleet.errors import ConfigError

_FILES = Path(__file__).with_name("board_files")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recognise:
    """Facts that identify a machine or GPU; empty ones are ignored. The first three are regular expressions."""

    model: str = ""
    """Found in the device-tree model or the phone's product name: "Raspberry Pi 4"."""

    compatible: str = ""
    """Found in one of the device-tree's compatible strings: "xlnx,zynq-7000"."""

    gpu: str = ""
    """Found in the GPU's name, case ignored: "adreno.*6[0-9][0-9]"."""

    cpu_part: str = ""
    """CPU implementer and part as in /proc/cpuinfo: "0x41:0xd08". All boards with that core have it."""

    features: str = ""
    """Required words of /proc/cpuinfo; of several boards that match, the one with the most wins."""

    gfx: str = ""
    """Exact architecture of an AMD GPU: "gfx90a"."""

    sm: str = ""
    """Exact architecture of an NVIDIA GPU: "sm_87"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """One kind of board."""

    name: str
    """ "rpi4-64"."""

    title: str
    """Readable name."""

    kind: str
    """Driver that serves it."""

    arch: str = ""
    """Architecture of its CPU, in the words of `uname -m`; empty for cards that sit in any machine."""

    triple: str = ""
    """LLVM's triple of its CPU's code; empty for cards."""

    libc: str = ""
    """Oldest C library of its usual systems: "glibc 2.31", "bionic 24"; bundles are built for it."""

    mcpu: str = ""
    """LLVM's name of the core that code is scheduled for; empty: any of the architecture."""

    mattr: list[str] = field(default_factory=list)
    """LLVM's CPU features that code may use beyond those of `mcpu`."""

    cores: int = 0
    """0: it depends on the machine."""

    memory_mb: int = 0
    """Value of the smallest model of its kind; 0: it depends on the machine."""

    gpu: dict[str, object] = field(default_factory=dict)
    """TVM target of its GPU without the host; empty where kernels run on the CPU."""

    recognise: Recognise = field(default_factory=Recognise)
    features: str = ""
    """Words of /proc/cpuinfo that matter and that its CPU has."""

    labels: dict[str, str] = field(default_factory=dict)
    """More for selectors: {"fpga": "xc7z020"}."""

    sources: list[str] = field(default_factory=list)
    """Source of the numbers."""

    @property
    def cpu_target(self) -> dict[str, object]:
        """TVM target of its CPU, which is the host where a GPU runs the kernels."""
        target: dict[str, object] = {"kind": "llvm"}
        if self.triple:
            target["mtriple"] = self.triple
        if self.mcpu:
            target["mcpu"] = self.mcpu
        if self.mattr:
            target["mattr"] = list(self.mattr)
        if self.arch == "armv7l":
            target["mfloat-abi"] = "hard"
        return target

    @property
    def target(self) -> dict[str, object]:
        """TVM target of its kernels."""
        if self.gpu:
            return {**self.gpu, "host": self.cpu_target} if self.triple else dict(self.gpu)
        return {**self.cpu_target, "num-cores": self.cores} if self.cores else self.cpu_target

    @property
    def target_json(self) -> str:
        """The target as JSON."""
        return json.dumps(self.target)

    @property
    def memory_bytes(self) -> int:
        """The memory as inventories state it."""
        return self.memory_mb * 1024**2


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Facts that an agent reads from a machine, phone or GPU; unknown ones stay unset."""

    kind: str = ""
    """Driver of the agent: only its boards are considered."""

    arch: str = ""
    model: str = ""
    compatible: tuple[str, ...] = ()
    gpu: str = ""
    cpu_parts: tuple[str, ...] = ()
    """ "0x41:0xd08" of each core listed in /proc/cpuinfo, in order."""

    features: frozenset[str] = frozenset()
    gfx: str = ""
    sm: str = ""
    core_count: int = 0
    mcpu: str = ""
    """LLVM's name of the core as the machine itself tells it."""


@functools.cache
def load_boards() -> Mapping[str, Board]:
    """Return all boards by name, in the order of their files.

    Raises:
        ConfigError: a file is wrong.
    """
    boards: dict[str, Board] = {}
    for path in sorted(_FILES.glob("*.yaml")):
        content, place = read_yaml(path, where=path.name)
        for board in boards_of(content, where=place):
            if board.name in boards:
                raise ConfigError(f"{path.name}: two boards are named {board.name!r}")
            boards[board.name] = board
    return boards


def find_board(name: str) -> Board:
    """Return the board of a name.

    Raises:
        ConfigError: there is none; the nearest is named.
    """
    boards = load_boards()
    if name not in boards:
        started = (known for known in boards if name and known.startswith(name))
        close = next(started, None) or nearest(name.lower(), boards)
        hint = f"; did you mean {close!r}?" if close else "; list them with: fleet targets"
        raise ConfigError(f"unknown board {name!r}{hint}")
    return boards[name]


def match(found: Found, boards: Iterable[Board] | None = None) -> Board | None:
    """Return the board that fits best, or None. A board fits if all facts that identify it were found."""
    fitting = [
        (score, board)
        for board in (load_boards().values() if boards is None else boards)
        if found.kind in ("", board.kind) and (not (found.arch and board.arch) or board.arch == found.arch)
        if (score := _score(board.recognise, found))
    ]
    return max(fitting, key=lambda item: item[0])[1] if fitting else None


def refine(board: Board, found: Found) -> str:
    """Return the board's TVM target, as JSON, with this machine's cores and the name of its core."""
    target = board.target
    if target["kind"] == "llvm" and found.core_count:
        target["num-cores"] = found.core_count
    if found.mcpu and not board.gpu:
        target["mcpu"] = found.mcpu
    return json.dumps(target)


def boards_of(content: Mapping[str, object], *, where: str) -> list[Board]:
    """Return the boards of one file's content.

    Raises:
        ConfigError: an unknown or missing key.
    """
    family = parse(_Family, content, where=where)
    return [
        _board(_merged(_merged(family.common, variant), entry), suffix, where)
        for entry in family.boards
        for suffix, variant in (family.variants or {"": {}}).items()
        if _has_variant(entry, suffix)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Family:
    """Content of one boards file."""

    common: dict[str, object] = field(default_factory=dict)
    variants: dict[str, dict[str, object]] = field(default_factory=dict)
    boards: list[dict[str, object]] = field(default_factory=list)


def _has_variant(entry: Mapping[str, object], suffix: str) -> bool:
    only = entry.get("only")
    return not isinstance(only, list) or suffix in only


def _board(values: dict[str, object], suffix: str, where: str) -> Board:
    values = {key: value for key, value in values.items() if key != "only"}
    named = f"{where}: {values.get('name', '?')}"
    if suffix:
        values["name"] = f"{values['name']}-{suffix}"
        values["title"] = f"{values['title']}, {suffix} bit"
    recognise = values.pop("recognise", {})
    if isinstance(recognise, dict):
        values["recognise"] = parse(Recognise, recognise, where=f"{named}: recognise")
    return parse(Board, values, where=named)


def _merged(base: Mapping[str, object], more: Mapping[str, object]) -> dict[str, object]:
    """Merge `more` into `base`: mappings key by key, lists of sources appended, everything else replaced."""
    merged = dict(base)
    for key, value in more.items():
        below = merged.get(key)
        if isinstance(value, Mapping) and isinstance(below, Mapping):
            merged[key] = _merged(below, value)
        elif key == "sources" and isinstance(value, list) and isinstance(below, list):
            merged[key] = [*below, *value]
        else:
            merged[key] = value
    return merged


def _score(wanted: Recognise, found: Found) -> int:
    """Return how specifically a board is recognised; 0: it does not match."""
    checks = (
        (wanted.sm, wanted.sm == found.sm, 1000),
        (wanted.gfx, wanted.gfx == found.gfx, 1000),
        (wanted.model, _is_in(wanted.model, (found.model,)), 100 + len(wanted.model)),
        (wanted.compatible, _is_in(wanted.compatible, found.compatible), 100),
        (wanted.gpu, _is_in(wanted.gpu, (found.gpu,)), 100 + len(wanted.gpu)),
        (wanted.cpu_part, wanted.cpu_part in found.cpu_parts, 10),
        (wanted.features, found.features.issuperset(wanted.features.split()), len(wanted.features.split())),
    )
    asked = [(holds, weight) for wish, holds, weight in checks if wish]
    return sum(weight for _, weight in asked) if asked and all(holds for holds, _ in asked) else 0


def _is_in(pattern: str, texts: Iterable[str]) -> bool:
    return any(re.search(pattern, text, re.IGNORECASE) for text in texts)
