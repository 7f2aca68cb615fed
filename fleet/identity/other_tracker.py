"""Address of a fleet's other tracker, learned from the tracker and kept in a file.

It is only dialled: TLS tells whether the tracker there is of the same fleet.
"""

from __future__ import annotations

import logging
from pathlib import Path

from fleet.base.network import is_address
from fleet.base.private_files import write_private

logger = logging.getLogger(__name__)

_MOST_CHARS = 300


class OtherTracker:
    """Stored address of the other tracker: the standby of a primary, or its primary."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._address: str | None = None

    @property
    def addresses(self) -> tuple[str, ...]:
        """The address, if one is known."""
        if self._address is None:
            self._address = _read(self._path)
        return (self._address,) if self._address else ()

    def learn(self, address: str) -> None:
        """Keep an address. Never fails: a full disk must not end a stream."""
        if not address or (address,) == self.addresses or not is_address(address) or len(address) > _MOST_CHARS:
            return
        self._address = address
        try:
            write_private(self._path, address.encode())
        except OSError as error:
            logger.warning(
                "cannot keep the other tracker's address", extra={"path": str(self._path), "error": str(error)}
            )


def _read(path: Path) -> str:
    try:
        found = path.read_bytes()[:_MOST_CHARS].decode().strip()
    except (OSError, UnicodeError):
        return ""
    return found if is_address(found) else ""
