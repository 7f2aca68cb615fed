"""Programs that were to blame once where chance explains it as well: the second time within seven days is proof.

`doubts.json` in a directory that only the agent's user can read keeps them over restarts.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from pathlib import Path

from fleet.base.private_files import write_private
from fleet.domain.poison import DIGEST, KEPT_SEC, MAX_POISON

logger = logging.getLogger(__name__)

_MAX_BYTES = 1024 * 1024
"""A larger file was not written by us: a thousand programs take 100 kB."""
_UNREADABLE = (OSError, ValueError, TypeError, AttributeError, RecursionError, OverflowError)


class Doubts:
    """Times of the first blame, by digest."""

    def __init__(self, path: Path | None = None, clock: Callable[[], float] = time.time) -> None:
        """Args: path: of the file; None: nothing is kept."""
        self._path = path
        self._clock = clock
        self._at_sec: dict[str, float] | None = None
        """[s since 1970], the oldest first."""

    def confirm(self, digest: str) -> bool:
        """Blame a program; return True at the second time."""
        at_sec = self._current()
        is_second = at_sec.pop(digest, None) is not None
        if not is_second:
            at_sec[digest] = self._clock()
            if len(at_sec) > MAX_POISON:
                del at_sec[next(iter(at_sec))]
        self._write(at_sec)
        return is_second

    def forget(self, digest: str) -> None:
        """Forget that a program was blamed."""
        at_sec = self._current()
        if at_sec.pop(digest, None) is not None:
            self._write(at_sec)

    def _current(self) -> dict[str, float]:
        """Return the doubts of the last seven days. None is younger than now: the clock may have been set."""
        if self._at_sec is None:
            self._at_sec = self._read()
        now_sec = self._clock()
        recent = {digest: min(at, now_sec) for digest, at in self._at_sec.items() if at > now_sec - KEPT_SEC}
        self._at_sec = recent
        return recent

    def _write(self, at_sec: dict[str, float]) -> None:
        """Replace the file. Never fails: without it the agent forgets its doubts when it ends."""
        if self._path is None:
            return
        try:
            write_private(self._path, json.dumps(at_sec).encode())
        except OSError as error:
            logger.warning("cannot write doubts about programs", extra={"path": str(self._path), "error": str(error)})

    def _read(self) -> dict[str, float]:
        """Read the file. A damaged file counts as empty."""
        if self._path is None:
            return {}
        try:
            if self._path.stat().st_size > _MAX_BYTES:
                raise ValueError(f"more than {_MAX_BYTES} bytes")
            found = json.loads(self._path.read_bytes())
            return {digest: float(at_sec) for digest, at_sec in found.items() if DIGEST.fullmatch(digest)}
        except FileNotFoundError:
            return {}
        except _UNREADABLE as error:
            extra = {"path": str(self._path), "error": str(error)}
            logger.warning("doubts about programs are damaged, starting new ones", extra=extra)
            return {}
