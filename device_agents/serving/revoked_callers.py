"""Refuses callers with revoked keys where no token of the tracker vouches for them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from fleet.errors import KeyRevoked
from fleet.identity.roles import Identity

_FRESH_SEC = 2.0
"""An answer of the tracker serves for this long: callers cannot have an agent ask without end."""


class RevokedCallers:
    """Looks callers up in the tracker's list of revoked keys."""

    def __init__(self, list_revoked: Callable[[], Awaitable[frozenset[str]]]) -> None:
        """Args: list_revoked: asks the tracker."""
        self._list_revoked = list_revoked
        self._keys: frozenset[str] = frozenset()
        self._good_until_sec = 0.0
        self._asking = asyncio.Lock()

    async def refuse(self, caller: Identity) -> None:
        """Refuse a caller whose key was revoked.

        Raises:
            KeyRevoked: the tracker lists the key as revoked.
            TrackerUnavailable: the tracker does not answer.
        """
        if not caller.key_id:
            return  # without TLS: the secret of this account is the only credential
        async with self._asking:
            now_sec = asyncio.get_running_loop().time()
            if now_sec >= self._good_until_sec:
                self._keys = await self._list_revoked()
                self._good_until_sec = now_sec + _FRESH_SEC
        if caller.key_id in self._keys:
            raise KeyRevoked(
                f"the key {caller.key_id[:8]} was revoked; ask an admin for a token to join again: fleet login"
            )
