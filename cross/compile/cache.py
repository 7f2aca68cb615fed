"""A cache of built libraries, shared by all processes and machines (over NFS) that can write to its folder.

An entry is one file, named by a digest of everything that decides the library: the program's structural hash, target,
options, linker, and the compilers' versions. It appears by a rename, so that readers never see a partial one. Content
is compared with the digest before it, which detects damage but no malice. Write access to the folder decides the code
that runs on devices.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import random
import re
import time
import uuid
import zlib
from dataclasses import dataclass
from pathlib import Path

from cross.targets.target import Target
from fleet.artifacts.artifact import Artifact, facts_from_json, side_file_of
from fleet.base.version import package_version

logger = logging.getLogger(__name__)

FORMAT = 4
"""Incremented when the output for a program changes without a new version of this package."""

DEFAULT_MAX_BYTES = 4 * 1000**3

_KINDS = ("llvm", "opencl")
"""Targets that TVM compiles for alone; the versions of CUDA's and ROCm's compilers are not told."""

_LOOKS_PER_FILL = 50
"""Number of clean-ups, which remove the oldest entries, per size limit of written bytes. Each writer cleans up at
random, in proportion to its bytes: writers share no state."""

_LEFT_OVER_SEC = 3600.0
_ENTRY, _UNFINISHED = re.compile(r"[0-9a-f]{64}"), re.compile(r"\.[0-9a-f]{32}")
"""Names of files that may be removed."""

_LEVEL = 1
"""Compression level of zlib: a third of the size for 1 ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildCache:
    """A folder of built libraries."""

    folder: str
    max_bytes: int = DEFAULT_MAX_BYTES

    def get(self, key: str, out_dir: Path) -> Artifact | None:
        """Write a cached library into a folder as `build` does. Return None if it is missing, damaged or unsuitable."""
        path = self._path(key)
        try:
            check, _, body = path.read_bytes().partition(b"\n")
        except OSError:
            return None
        if check.decode(errors="replace") != hashlib.sha256(body).hexdigest():
            logger.warning("damaged entry of the build cache removed", extra={"path": str(path)})
            _remove(path)
            return None
        with contextlib.suppress(OSError):  # the entry belongs to another user
            os.utime(path)  # mark the entry as recently used
        facts, _, packed = body.partition(b"\n")
        content = zlib.decompress(packed)
        found = hashlib.sha256(content).hexdigest()
        known = facts_from_json(facts.decode())
        artifact = Artifact(path=out_dir / f"{found}.so", digest=f"sha256:{found}", **known)
        try:
            _write(side_file_of(artifact.path), facts)
            _write(artifact.path, content)
        except OSError:
            return None  # the build meets the same error and reports it
        return artifact

    def put(self, key: str, artifact: Artifact, chance: random.Random | None = None) -> None:
        """Keep a library. A folder that cannot be written costs a warning."""
        try:
            body = artifact.facts_json().encode() + b"\n" + zlib.compress(artifact.path.read_bytes(), _LEVEL)
            content = hashlib.sha256(body).hexdigest().encode() + b"\n" + body
            path = self._path(key)
            path.parent.mkdir(parents=True, exist_ok=True)
            _write(path, content)
            if (chance or random.Random()).random() < _LOOKS_PER_FILL * len(content) / self.max_bytes:
                self.trim()
        except OSError as error:
            logger.warning("build cache not written", extra={"folder": self.folder, "error": str(error)})

    def trim(self) -> None:
        """Remove the least recently used entries until nine tenths of the limit are left, and leftovers of dead
        writers.

        Raises:
            OSError: the folder cannot be read.
        """
        entries = []
        for path in Path(self.folder).glob("??/*"):
            try:
                status = path.stat()
            except FileNotFoundError:  # another process trims the cache, too
                continue
            if _UNFINISHED.fullmatch(path.name):
                if status.st_mtime < time.time() - _LEFT_OVER_SEC:
                    _remove(path)
                continue
            if not _ENTRY.fullmatch(path.name):  # the folder also holds unrelated files
                continue
            entries.append((status.st_mtime, path.name, status.st_size, path))
        size_bytes = sum(entry[2] for entry in entries)
        for _, _, freed_bytes, path in sorted(entries):
            if size_bytes <= 0.9 * self.max_bytes:
                return
            _remove(path)
            size_bytes -= freed_bytes

    def _path(self, key: str) -> Path:
        return Path(self.folder, key[:2], key)


def cache_key(program: int, target: Target, **options: object) -> str | None:
    """Return the name of a library in any cache, or None if libraries of its target are not kept.

    Args:
        program: structural hash of the compiled program.
        options: everything else that determines the output, each with a complete `repr`.
    """
    if target.kind not in _KINDS:
        return None
    parts = (FORMAT, package_version(), program, sorted(target.options.items(), key=repr), sorted(options.items()))
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _write(path: Path, content: bytes) -> None:
    fresh = path.with_name(f".{uuid.uuid4().hex}")
    try:
        fresh.write_bytes(content)
        fresh.replace(path)
    except OSError:
        _remove(fresh)
        raise


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        logger.warning("build cache not cleaned", extra={"path": str(path), "error": str(error)})
