"""Ends work for clients on other machines once their access key is revoked."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fleet.errors import ConfigError, NotAllowed
from fleet.gateway.access_keys import AccessKeys

logger = logging.getLogger(__name__)

_LOOK_SEC = 0.25
"""Interval of looks at the file of keys, which another process changes."""


class Revocations:
    """Watches the keys of waiting requests and running sessions, while there are any."""

    def __init__(self, keys: AccessKeys) -> None:
        self._keys = keys
        self._watched: dict[asyncio.Timeout, str] = {}
        self._looking: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def watching(self, key_id: str) -> AsyncIterator[None]:
        """Interrupt the block once a key is no longer valid.

        Args:
            key_id: empty for a client of the gateway's user; its work is not interrupted.

        Raises:
            NotAllowed: it was interrupted.
        """
        if not key_id:
            yield
            return
        limit = asyncio.timeout(None)
        try:
            async with limit:
                self._watch(limit, key_id)
                yield
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise NotAllowed(f"access key {key_id} was revoked; ask the gateway's owner for another one") from error
        finally:
            self._watched.pop(limit, None)

    async def close(self) -> None:
        """Stop watching. Idempotent."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    def _watch(self, limit: asyncio.Timeout, key_id: str) -> None:
        self._watched[limit] = key_id
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look(), name="gateway keys")

    async def _look(self) -> None:
        while self._watched:
            valid = self._valid_ids()
            for limit in [limit for limit, key_id in self._watched.items() if key_id not in valid]:
                del self._watched[limit]
                limit.reschedule(asyncio.get_running_loop().time())
            await asyncio.sleep(_LOOK_SEC)

    def _valid_ids(self) -> set[str]:
        """Return the ids of the valid keys: none if their file cannot be read."""
        try:
            return {key.key_id for key in self._keys.all() if key.revoked_at_sec is None}
        except ConfigError as error:
            logger.warning("access keys cannot be read", extra={"error": str(error)})
            return set()
