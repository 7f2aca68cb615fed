"""Revoked keys, from the tracker: an optimizer refuses them, and ends their streams.

The tracker is polled. While it is unreachable, its last list counts; before the first one, all callers are refused.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fleet.client.identity_calls import IdentityCalls
from fleet.errors import FleetError, KeyRevoked
from fleet.identity.roles import Identity
from fleet.wire.peers import Guard

logger = logging.getLogger(__name__)

_ASK_EVERY_SEC = 2.0


@asynccontextmanager
async def guarded_by(tracker: str, *, ask_every_sec: float = _ASK_EVERY_SEC) -> AsyncIterator[Guard]:
    """Yield a guard that refuses revoked keys, and ends their streams, while the block runs.

    Args:
        tracker: its address.

    Raises:
        FleetError: it could not be asked.
    """
    async with IdentityCalls(tracker) as calls:
        revoked = _RevokedKeys(await calls.revoked_keys())
        asking = asyncio.create_task(
            _keep_asking(calls, revoked, ask_every_sec), name="poll the tracker for revoked keys"
        )
        try:
            yield revoked.guard
        finally:
            asking.cancel()
            await asyncio.wait([asking])


class _RevokedKeys:
    """The list of revoked keys, and the guard that uses it."""

    def __init__(self, keys: frozenset[str]) -> None:
        self._keys = keys
        self.guard = Guard(check_member=self._check)

    async def replace(self, keys: frozenset[str]) -> None:
        """Replace the list, and end the streams of newly revoked keys."""
        new, self._keys = keys - self._keys, keys
        for key_id in sorted(new):
            await self.guard.streams.end(key_id, _refusal(key_id))

    def _check(self, caller: Identity) -> None:
        if caller.key_id in self._keys:
            raise _refusal(caller.key_id)


def _refusal(key_id: str) -> KeyRevoked:
    return KeyRevoked(f"the key {key_id[:8]} was revoked; ask an admin for a token to join again: fleet login")


async def _keep_asking(calls: IdentityCalls, revoked: _RevokedKeys, ask_every_sec: float) -> None:
    is_away = False
    while True:
        await asyncio.sleep(ask_every_sec)
        revoked.guard.streams.end_expired(time.time())  # by the machine's clock, as in TLS
        try:
            await revoked.replace(await calls.revoked_keys())
            is_away = False
        except FleetError as error:
            if not is_away:
                logger.warning("using the last known list of revoked keys", extra={"error": str(error)})
            is_away = True
