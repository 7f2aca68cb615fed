"""The credentials of this account: one private file per tracker, named by its address.

    ~/.local/state/tvm-fleet/credentials/127.0.0.1:9290.pem

A tracker writes its own account's file when it starts, `fleet login` one for a tracker elsewhere. A client looks by the
address that it was given; where the same tracker is reached by another address, it is known by its authority.
"""

from __future__ import annotations

import contextlib
import math
import re
import time
from pathlib import Path

from fleet.base.config import credentials_dir
from fleet.base.network import host_of, is_any_host, is_loopback
from fleet.base.private_files import make_private_dir, read_private, write_private
from fleet.errors import ConfigError
from fleet.identity.credentials import Credentials, Proof, parse_proof
from fleet.identity.other_tracker import OtherTracker

_HOME = re.compile(rb"^# of the tracker in (.+)$", re.MULTILINE)


class CredentialStore:
    """All credentials of one account."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or credentials_dir()

    def path_of(self, address: str) -> Path:
        """Return the path of the credentials for the tracker at "host:port"."""
        return self.folder / f"{canonical_address(address)}.pem"

    def other_tracker(self, address: str) -> OtherTracker:
        """Return the kept address of the other tracker of the fleet at "host:port"."""
        return OtherTracker(self.path_of(address).with_suffix(".other"))

    def find(self, address: str) -> Proof | None:
        """Return the credentials for a tracker, or None.

        Raises:
            ConfigError: there is a file, but it is invalid.
        """
        path = self.path_of(address)
        try:
            return parse_proof(read_private(path), where=str(path))
        except FileNotFoundError:
            return None

    def all(self) -> list[Credentials]:
        """Return all readable credentials of this account."""
        found: list[Credentials] = []
        for path in sorted(self.folder.glob("*.pem")):
            with contextlib.suppress(OSError, ConfigError):
                proof = parse_proof(read_private(path), where=str(path))
                found += [proof] if isinstance(proof, Credentials) else []
        return found

    def of_authority(self, authority_pem: bytes) -> Credentials | None:
        """Return credentials for the fleet of an authority, or None."""
        return next((known for known in self.all() if known.authority_pem == authority_pem), None)

    def version(self, address: str) -> tuple[int, int]:
        """Return a value that changes whenever the credentials for a tracker may have changed; cheap."""
        return _version(self.path_of(address)) or _version(self.folder) or (0, 0)

    def age_sec(self, address: str) -> float:
        """Return the age of the credentials for a tracker's address; infinite if there are none."""
        version = _version(self.path_of(address))
        return max(time.time() - version[0] / 1e9, 0.0) if version is not None else math.inf

    def save(self, address: str, proof: Proof, *, home: Path | None = None) -> Path:
        """Store credentials for a tracker; return the path.

        Args:
            home: state directory of the tracker, when it is this account's own: its file goes when that is gone.

        Raises:
            OSError: they cannot be written.
        """
        make_private_dir(self.folder)
        path = self.path_of(address)
        note = f"# of the tracker in {home.absolute()}\n".encode() if home is not None else _note(path)
        write_private(path, note + proof.to_pem())
        return path

    def replace(self, former: Credentials, fresh: Credentials) -> None:
        """Replace stored credentials by newer ones, in place.

        Raises:
            OSError: they cannot be written.
        """
        for path in sorted(self.folder.glob("*.pem")):
            with contextlib.suppress(FileNotFoundError, ConfigError):
                if parse_proof(read_private(path), where=str(path)) == former:
                    write_private(path, _note(path) + fresh.to_pem())

    def forget(self, address: str) -> None:
        """Remove the credentials for a tracker. Idempotent."""
        self.path_of(address).unlink(missing_ok=True)

    def prune(self) -> None:
        """Remove the credentials for this account's temporary trackers, with a deleted state."""
        for path in self.folder.glob("*.pem"):
            with contextlib.suppress(OSError):
                home = _HOME.search(path.read_bytes()[:4096])
                if home is not None and not Path(home[1].decode(errors="surrogateescape")).exists():
                    path.unlink()


def _version(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_ino)


def _note(path: Path) -> bytes:
    """Return the line that names a file's tracker, or empty text."""
    try:
        found = _HOME.search(path.read_bytes())
    except OSError:
        return b""
    return found[0] + b"\n" if found is not None else b""


def canonical_address(address: str) -> str:
    """Return the canonical form of an address for names of files; this machine's own is 127.0.0.1."""
    host, port = host_of(address).strip("[]").lower(), address.rpartition(":")[2]
    return f"127.0.0.1:{port}" if is_loopback(host) or is_any_host(host) else f"{host}:{port}"
