"""The files of an exported model: one archive `model.fleet`, or the folder that unpacking it gives.

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
from pathlib import Path
from typing import IO, Protocol

from fleet.errors import ArtifactRefused, ConfigError
from fleet.runtime.manifest import Manifest, format_manifest, parse_manifest

MANIFEST = "manifest.json"
_EARLIEST = (1980, 1, 1, 0, 0, 0)
"""The time stamp of all entries: zip knows no earlier one, and a real one would make two exports differ."""

_DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError)
"""What reading a damaged archive raises: it may say that it is compressed in ways that there are not, or encrypted."""

_READABLE = 0o644 << 16
_UNIX = 3
_PIECE_BYTES = 1024 * 1024


class Package(Protocol):
    """Where the files of an exported model are read from."""

    path: Path

    def open_file(self, name: str) -> IO[bytes]:
        """Open a file for reading. Raises KeyError or OSError when there is none."""
        ...

    def library_file(self, name: str) -> contextlib.AbstractContextManager[Path]:
        """Provide a path to load the library from, valid within the context. Raises ArtifactRefused or OSError."""
        ...


class Folder:
    """An unpacked archive."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def open_file(self, name: str) -> IO[bytes]:
        return (self.path / name).open("rb")

    @contextlib.contextmanager
    def library_file(self, name: str) -> Iterator[Path]:
        yield self.path / name


class Archive:
    """A file as `write_archive` makes it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._zip = zipfile.ZipFile(path)
        except _DAMAGED as error:
            raise ArtifactRefused(f"{path} is no exported model, or cut short; make one with: fleet export") from error

    def open_file(self, name: str) -> IO[bytes]:
        return self._zip.open(name)

    @contextlib.contextmanager
    def library_file(self, name: str) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix="fleet-model-") as folder:
            path = Path(folder) / Path(name).name
            try:
                with self.open_file(name) as source, path.open("wb") as goal:
                    shutil.copyfileobj(source, goal, _PIECE_BYTES)
            except (KeyError, *_DAMAGED) as error:
                raise ArtifactRefused(f"{self.path} lacks {name}, or it is damaged ({error})") from error
            yield path


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
    """Read what a package says about itself.

    Raises:
        ArtifactRefused: it has no manifest, or one that this version cannot read.
    """
    return parse_manifest(read_file(package, MANIFEST), where=str(package.path))


def read_file(package: Package, name: str) -> bytes:
    """Read one file.

    Raises:
        ArtifactRefused: it is missing or damaged.
    """
    try:
        with package.open_file(name) as file:
            return file.read()
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
    """Write an archive, complete or not at all.

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
                            shutil.copyfileobj(source, goal, _PIECE_BYTES)
        partial.replace(path)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):  # on a read-only place there is none, and looking for it is an error
            partial.unlink()


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, _EARLIEST)
    entry.external_attr, entry.create_system = _READABLE, _UNIX
    return entry
