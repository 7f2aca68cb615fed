"""Persists the epochs of an agent's devices in a small file that only its user can read."""

from __future__ import annotations

import contextlib
import json
import logging
import os
from dataclasses import dataclass, field
from pathlib import Path

from fleet.domain.tokens import EPOCHS_END

logger = logging.getLogger(__name__)

_MAX_BYTES = 16 * 1024 * 1024
"""A larger file was not written by us: a thousand devices take 100 kB."""


@dataclass(slots=True, kw_only=True)
class Epochs:
    """The largest epochs seen, by device."""

    public_key: bytes = b""
    """Public key of the tracker that issued them; empty: no tracker yet."""

    admitted: dict[str, int] = field(default_factory=dict)
    fenced: dict[str, int] = field(default_factory=dict)
    term_proof: bytes = b""
    """Proof of the largest term of that tracker's fleet; empty: term 0."""


class EpochLedger:
    """`epochs.json` in a directory of mode 0700."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "epochs.json"

    def open(self) -> None:
        """Create the directory, or restrict its permissions; move in the file of a version that kept it beside it."""
        directory = self._path.parent
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        directory.chmod(0o700)
        former = directory.parent / self._path.name
        with contextlib.suppress(FileNotFoundError):
            if not self._path.exists():
                former.rename(self._path)

    def read(self) -> Epochs:
        """Read the file. A damaged file counts as empty: the tracker sends its fences again."""
        try:
            if self._path.stat().st_size > _MAX_BYTES:
                raise ValueError(f"more than {_MAX_BYTES} bytes")
            content = json.loads(self._path.read_text())
            return Epochs(
                public_key=bytes.fromhex(content["public_key"]),
                admitted=_epochs(content["admitted"]),
                fenced=_epochs(content["fenced"]),
                term_proof=bytes.fromhex(content.get("term_proof", "")),
            )
        except FileNotFoundError:
            return Epochs()
        except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
            logger.warning(
                "ledger of epochs is damaged, starting a new one", extra={"path": str(self._path), "error": str(error)}
            )
            return Epochs()

    def write(self, epochs: Epochs) -> None:
        """Replace the file. Never fails: a full disk must not prevent the use or end of a lease."""
        content = {
            "public_key": epochs.public_key.hex(),
            "admitted": epochs.admitted,
            "fenced": epochs.fenced,
            "term_proof": epochs.term_proof.hex(),
        }
        fresh = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            fresh.write_text(json.dumps(content))
            fresh.chmod(0o600)
            fresh.replace(self._path)
        except OSError as error:
            logger.warning("cannot write the ledger of epochs", extra={"path": str(self._path), "error": str(error)})


def _epochs(content: dict[str, object]) -> dict[str, int]:
    """Validate a table of epochs by device.

    Raises:
        ValueError: an epoch is none that a tracker counts to.
    """
    epochs = {str(name): epoch for name, epoch in content.items() if isinstance(epoch, int)}
    if len(epochs) < len(content) or not all(0 <= epoch < EPOCHS_END for epoch in epochs.values()):
        raise ValueError("an entry is not an epoch")
    return epochs
