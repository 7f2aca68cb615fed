"""The files of an exported model: one archive `model.fleet`, or the folder with its unpacked files.

The archive is a plain zip, stored without compression (weights hardly compress), with equal bytes for equal content:
`python -m zipfile -e model.fleet model` is all that installing it takes. A folder loads faster, since the system maps
its library straight from the file; out of an archive the library is copied first to a temporary file, without a name
once it is loaded, so that nothing is left behind.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import IO, Protocol

from fleet.errors import ArtifactRefused, ConfigError
from fleet.runtime.manifest import Manifest, format_manifest, parse_manifest

MANIFEST = "manifest.json"
_EARLIEST = (1980, 1, 1, 0, 0, 0)
"""The time stamp of all entries: zip knows no earlier one, and a real one would make two exports differ."""

_DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError)
"""Errors from reading a damaged archive: it may claim an unknown compression, or encryption."""

_READABLE = 0o644 << 16
_UNIX = 3
_CHUNK_BYTES = 1024 * 1024

MOST_MANIFEST_BYTES = 1024 * 1024
"""A model of 200 operators has a manifest of 60 kB. Parsed into Python objects, JSON grows up to 25-fold."""

_MOST_RATIO = 100
"""Maximum compression ratio: only a zip bomb exceeds it. Our archives are uncompressed, but may be packed again."""


class Package(Protocol):
    """Source of an exported model's files."""

    path: Path

    def open_file(self, name: str) -> IO[bytes]:
        """Open a file for reading. Raises KeyError or OSError when there is none."""

    def library_file(self, name: str) -> contextlib.AbstractContextManager[Path]:
        """Provide a path to load the library from, valid within the context. Raises ArtifactRefused or OSError."""


class Folder:
    """An unpacked archive."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def open_file(self, name: str) -> IO[bytes]:
        return self._place(name).open("rb")

    @contextlib.contextmanager
    def library_file(self, name: str) -> Iterator[Path]:
        yield self._place(name)

    def _place(self, name: str) -> Path:
        """Return the path of a file. Raises ArtifactRefused if it leaves the folder, for example by a symbolic link."""
        check_name(name, self.path)
        place = (self.path / name).resolve()
        if not place.is_relative_to(self.path.resolve()):
            raise ArtifactRefused(f"{name} in {self.path} leads out of the folder; get the model again")
        if place.exists() and not place.is_file():
            raise ArtifactRefused(f"{name} in {self.path} is no file; get the model again")
        return place


class Archive:
    """An archive made by `write_archive`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._zip = zipfile.ZipFile(path)
        except _DAMAGED as error:
            raise ArtifactRefused(f"{path} is no exported model, or cut short; make one with: fleet export") from error
        unpacked_bytes = sum(entry.file_size for entry in self._zip.infolist())
        if unpacked_bytes > _MOST_RATIO * path.stat().st_size:
            raise ArtifactRefused(f"{path} unpacks to {unpacked_bytes:,} bytes, more than {_MOST_RATIO} times its size")

    def open_file(self, name: str) -> IO[bytes]:
        check_name(name, self.path)
        return self._zip.open(name)

    @contextlib.contextmanager
    def library_file(self, name: str) -> Iterator[Path]:
        check_name(name, self.path)
        with tempfile.TemporaryDirectory(prefix="fleet-model-") as folder:
            path = Path(folder) / Path(name).name
            try:
                with self.open_file(name) as source, path.open("wb") as goal:
                    shutil.copyfileobj(source, goal, _CHUNK_BYTES)
            except (KeyError, *_DAMAGED) as error:
                raise ArtifactRefused(f"{self.path} lacks {name}, or it is damaged ({error})") from error
            yield path


def check_name(name: str, where: object) -> None:
    """Refuse a file name that leaves the package.

    Raises:
        ArtifactRefused: it is absolute, or contains "..".
    """
    parts = PurePosixPath(name).parts
    if not parts or PurePosixPath(name).is_absolute() or ".." in parts or "\0" in name:
        raise ArtifactRefused(f"{where} names the file {name!r}, which is not in it; get the model again")


def open_package(path: Path | str) -> Package:
    """Open an archive or folder.

    Raises:
        ConfigError: there is no such file or folder, or it cannot be read.
        ArtifactRefused: it is no exported model.
    """
    path = Path(path)
    if path.is_dir():
        return Folder(path)
    try:
        return Archive(path)
    except OSError as error:
        raise ConfigError(f"cannot read the model {path}: {error.strerror or error}") from error


def read_manifest(package: Package) -> Manifest:
    """Read a package's manifest.

    Raises:
        ArtifactRefused: it has no manifest, or one that this version cannot read.
    """
    content = read_file(package, MANIFEST, most_bytes=MOST_MANIFEST_BYTES)
    manifest = parse_manifest(content, where=str(package.path))
    stored = [name for one in manifest.variants for name in (*one.check.inputs, *one.check.outputs)]
    for name in (manifest.library, *stored, *manifest.files):
        check_name(name, package.path)
    missing = sorted({manifest.library, *stored} - manifest.files.keys())
    if missing:
        raise ArtifactRefused(f"the manifest of {package.path} lists no file {missing[0]!r}; get the model again")
    return manifest


def read_file(package: Package, name: str, *, most_bytes: int | None = None) -> bytes:
    """Read one file.

    Raises:
        ArtifactRefused: the file is missing, damaged or too large.
    """
    try:
        with package.open_file(name) as file:
            content = file.read(-1 if most_bytes is None else most_bytes + 1)
            if most_bytes is not None and len(content) > most_bytes:
                raise ArtifactRefused(f"{name} in {package.path} has more than {most_bytes:,} bytes")
            return content
    except (KeyError, OSError, *_DAMAGED) as error:
        raise ArtifactRefused(f"{package.path} lacks {name}, or it is damaged ({error}); export it again") from error


def verify(package: Package, manifest: Manifest) -> None:
    """Compare every file with its hash.

    Raises:
        ArtifactRefused: one is missing, damaged or another one.
    """
    for name, facts in manifest.files.items():
        try:
            with package.open_file(name) as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
        except (KeyError, OSError, *_DAMAGED) as error:
            raise ArtifactRefused(f"{package.path} lacks {name}, or it is damaged: {error}") from error
        if found != facts.sha256:
            raise ArtifactRefused(f"{name} in {package.path} is not the file that was exported; get the model again")


def write_archive(path: Path, manifest: Manifest, files: Mapping[str, Path | bytes]) -> None:
    """Write an archive atomically.

    Args:
        files: content by name, as bytes or from a file.

    Raises:
        ConfigError: it cannot be written there.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with zipfile.ZipFile(partial, "w", zipfile.ZIP_STORED) as archive:
            archive.writestr(_entry(MANIFEST), format_manifest(manifest))
            for name, content in sorted(files.items()):
                with archive.open(_entry(name), "w", force_zip64=True) as goal:
                    if isinstance(content, bytes):
                        goal.write(content)
                    else:
                        with content.open("rb") as source:
                            shutil.copyfileobj(source, goal, _CHUNK_BYTES)
        partial.replace(path)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        # on a read-only file system the file does not exist, and removing it is an error
        with contextlib.suppress(OSError):
            partial.unlink()


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, _EARLIEST)
    entry.external_attr, entry.create_system = _READABLE, _UNIX
    return entry
