"""The user's packs on disk: copies of verified packs, pinned by their digests in `packs.lock`.

    packs.lock                  names, digests, sources and signers, as JSON
    <hex>/                      the layout of a pack, and its records as a library of this program's schema version

A pack is copied, checked and filled under another name, and moved in place when it is whole. A kill leaves at most a
folder that the next change removes.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from fleet.base.config import data_dir, did_you_mean
from fleet.base.plain import from_plain, to_plain
from fleet.base.private_files import make_private_dir, write_private
from fleet.base.text import sanitize
from fleet.errors import AlreadyExists, ConfigError, InvalidRequest, NotFound
from fleet.library import Library
from fleet.library.schema import SCHEMA_VERSION
from fleet.packs.addresses import Address, name_at, parse_address
from fleet.packs.opening import find_address, open_address
from fleet.packs.reading import fill
from fleet.packs.staging import FoundPack, find_pack, stage
from fleet.packs.web import Web

_LOCK_FILE, _MUTEX = "packs.lock", ".changing"
_STAGING = ".staging-"
_DATABASE = f"records.{SCHEMA_VERSION}.sqlite"
_VERSION = 1
_MOST_CHARS = 400
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptPack:
    """A pack of the user."""

    name: str
    digest: str
    source: str
    """Path or address that it was added from."""

    title: str
    licence: str = ""
    signer: str = ""
    """Name of its signer in the file of allowed ones; empty: unsigned, or by an unknown key."""

    fingerprint: str = ""
    """Of the signer's key."""

    workloads: int
    records: int
    checked: int
    added_at: datetime

    @property
    def is_trusted(self) -> bool:
        """True if an allowed signer had signed it when it was added."""
        return bool(self.signer)

    @property
    def hex(self) -> str:
        """Name of its folder."""
        return self.digest.removeprefix("sha256:")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """Signers that the user trusts."""

    signers: Mapping[bytes, str]
    """Names by public key."""

    file: Path
    allows_unsigned: bool = False
    allows_plain_http: bool = False
    """Registries and web servers on other machines may use plain HTTP."""


@dataclass(frozen=True, slots=True)
class _Lock:
    """The content of `packs.lock`."""

    version: int
    packs: tuple[KeptPack, ...]


@contextmanager
def refusing(shown: str) -> Iterator[None]:
    """Name the pack in the message about a refused one, fit for a terminal."""
    try:
        yield
    except InvalidRequest as error:
        raise InvalidRequest(f"the pack {shown} is refused: {sanitize(str(error), _MOST_CHARS)}") from error


class Shelf:
    """The packs in one folder."""

    def __init__(self, folder: Path | None = None) -> None:
        """Args: folder: None for that of this account."""
        self._folder = folder or data_dir() / "packs"
        self._lock_file = self._folder / _LOCK_FILE

    def kept(self) -> tuple[KeptPack, ...]:
        """Return all packs in the order of their addition.

        Raises:
            ConfigError: `packs.lock` cannot be read, or is of a newer program.
        """
        try:
            found = from_plain(_Lock, json.loads(self._lock_file.read_bytes()))
        except FileNotFoundError:
            return ()
        except (OSError, ValueError, InvalidRequest) as error:
            raise ConfigError(f"cannot read {self._lock_file}: {error}") from error
        if found.version != _VERSION:
            raise ConfigError(f"{self._lock_file} is of a newer tvm-fleet; install that")
        return found.packs

    def named(self, name: str) -> KeptPack:
        """Return a pack. Raises NotFound."""
        found = self.kept()
        for pack in found:
            if pack.name == name:
                return pack
        known = did_you_mean(name, [pack.name for pack in found]) if found else "; 'fleet pack add' adds one"
        raise NotFound(f"there is no pack {name!r}{known}")

    def add(self, source: str | Path, trust: Trust, name: str | None = None) -> KeptPack:
        """Verify a pack and keep a copy. Adding the same one again changes nothing but its source and signer.

        Args:
            source: a path or an address, see `fleet.packs.addresses`.

        Raises:
            InvalidRequest: the pack is refused; nothing is kept.
            AlreadyExists: another pack has this name.
            NotFound: there is no such pack.
            RegistryError: a registry or web server refuses, or does not answer.
        """
        address = find_address(source) if isinstance(source, str) else source
        name = name or name_at(address)
        if not _NAME.fullmatch(name):
            raise InvalidRequest(f"{name!r} is no name for a pack; give --name, of letters, digits, '.', '_' and '-'")
        with self._changing():
            return self._take(address, trust, name, may_replace=False)

    def update(self, pack: KeptPack, trust: Trust) -> KeptPack:
        """Take the present pack of a source in place of an earlier one. Raises as `add`."""
        with self._changing():
            return self._take(parse_address(pack.source), trust, pack.name, may_replace=True)

    def remove(self, name: str) -> KeptPack:
        """Remove a pack. Raises NotFound."""
        with self._changing():
            pack = self.named(name)
            self._write([one for one in self.kept() if one.name != name])
            self._sweep()
        return pack

    def verify(self, pack: KeptPack, trust: Trust) -> KeptPack:
        """Check a kept pack as if it was added now; return it with its present signer.

        Raises:
            InvalidRequest: it was changed, or its signer is not allowed any more.
        """
        present = self.database(pack)
        accepted = replace(trust, allows_unsigned=trust.allows_unsigned or not pack.is_trusted)
        with self._changing(), self._copied(pack, accepted) as (found, fresh):
            if _content(fresh) != _content(present):
                raise InvalidRequest(f"the pack {pack.name} has a changed database; remove the pack, and add it again")
        return _signed(pack, found, trust)

    def database(self, pack: KeptPack) -> Path:
        """Return the library of a pack. It is made anew for a program of another schema version.

        Raises:
            InvalidRequest: the pack was changed.
        """
        path = self._folder / pack.hex / _DATABASE
        if not path.exists():
            anyone = Trust(signers={}, file=Path(), allows_unsigned=True)  # it was verified when it was added
            with self._changing(), self._copied(pack, anyone) as (_, fresh):
                fresh.rename(path)
        return path

    @contextmanager
    def _copied(self, pack: KeptPack, trust: Trust) -> Iterator[tuple[FoundPack, Path]]:
        """Check a copy of a kept pack, and give its library anew. Raises InvalidRequest."""
        with tempfile.TemporaryDirectory(prefix=_STAGING, dir=self._folder) as scratch:
            with refusing(pack.name):
                found, fresh = _checked(self._folder / pack.hex, Path(scratch) / "pack", trust)
                if found.digest != pack.digest:
                    raise InvalidRequest(f"it has another digest than {_LOCK_FILE}")
            yield found, fresh

    def _take(self, address: Address, trust: Trust, name: str, *, may_replace: bool) -> KeptPack:
        kept = self.kept()
        earlier = next((one for one in kept if one.name == name), None)
        with refusing(str(address)), tempfile.TemporaryDirectory(prefix=_STAGING, dir=self._folder) as scratch:
            folder = Path(scratch) / "pack"
            found, _ = _checked(address, folder, trust)
            if earlier is not None and earlier.digest != found.digest and not may_replace:
                raise AlreadyExists(
                    f"there is another pack {name!r}; 'fleet pack update {name}' takes its new version, --name another"
                )
            pack = _signed(_kept(found, name, address), found, trust)
            place = self._folder / pack.hex
            if not (place / _DATABASE).exists():
                shutil.rmtree(place, ignore_errors=True)
                folder.rename(place)
        self._write([pack if one is earlier else one for one in kept] + ([] if earlier else [pack]))
        self._sweep()
        return pack

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Let one process at a time change the folder."""
        make_private_dir(self._folder)
        descriptor = os.open(self._folder / _MUTEX, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _write(self, packs: Sequence[KeptPack]) -> None:
        content = json.dumps(to_plain(_Lock(_VERSION, tuple(packs))), indent=1)
        write_private(self._lock_file, f"{content}\n".encode())

    def _sweep(self) -> None:
        """Remove folders without an entry."""
        wanted = {one.hex for one in self.kept()} | {_LOCK_FILE, _MUTEX}
        for entry in self._folder.iterdir():
            if entry.name not in wanted and entry.is_dir():
                shutil.rmtree(entry, ignore_errors=True)


def _checked(address: Address, folder: Path, trust: Trust) -> tuple[FoundPack, Path]:
    """Copy a pack into a new folder, and return it with the library of its records.

    Raises:
        InvalidRequest: it is refused.
    """
    with open_address(address, Web(allows_plain_http=trust.allows_plain_http)) as source:
        found = find_pack(source)
        _check_signer(found, trust)
        folder.mkdir()
        stage(source, found, folder)
    return found, _fill(folder / _DATABASE, folder, found)


def _fill(path: Path, folder: Path, found: FoundPack) -> Path:
    """Make the library of a pack; a partial one never has its name."""
    partial = path.with_name(f".{path.name}")
    for left in folder.glob(f"{partial.name}*"):
        left.unlink()
    with Library.open(str(partial)) as library:
        fill(library, folder, found.manifest, found.config)
    return partial.rename(path)


def _check_signer(found: FoundPack, trust: Trust) -> None:
    if trust.allows_unsigned or any(one.key.blob in trust.signers for one in found.signatures):
        return
    if not found.signatures:
        raise InvalidRequest("it is unsigned; --allow-unsigned takes it all the same")
    keys = ", ".join(one.key.fingerprint for one in found.signatures)
    raise InvalidRequest(f"it is signed by {keys}, and {trust.file} has no such key; 'fleet pack show' prints it")


def _signed(pack: KeptPack, found: FoundPack, trust: Trust) -> KeptPack:
    """Return a pack with its signer as the user knows it now."""
    for one in found.signatures:
        if one.key.blob in trust.signers:
            return replace(pack, signer=trust.signers[one.key.blob], fingerprint=one.key.fingerprint)
    fingerprint = found.signatures[0].key.fingerprint if found.signatures else ""
    return replace(pack, signer="", fingerprint=fingerprint)


def _kept(found: FoundPack, name: str, address: Address) -> KeptPack:
    config = found.config
    return KeptPack(
        name=name,
        digest=found.digest,
        source=str(address.absolute() if isinstance(address, Path) else address),
        title=config.title,
        licence=config.licence,
        workloads=config.workloads,
        records=config.records,
        checked=config.checked,
        added_at=datetime.now(UTC),
    )


def _content(database: Path) -> list[tuple[object, ...]]:
    with contextlib.closing(Library.open_to_read(str(database))) as library:
        return [
            (one.uid, one.workload, one.scope, one.trace_json, one.run_secs, one.checked, one.kind)
            for one in library.records()
        ]
