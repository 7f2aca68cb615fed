"""Granted devices of a gateway, by match key, until their session begins."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass

from fleet.client.device import Device
from fleet.domain.leases import LeaseTerms
from fleet.gateway.client_process import ClientProcess
from fleet.gateway.kept_leases import KeptLeases


@dataclass(frozen=True, slots=True)
class Grant:
    """A device that waits for its session."""

    terms: LeaseTerms
    device: Device
    host: str
    """Address of the client; its session comes from there."""

    client: ClientProcess | None
    key_id: str
    """Access key of the client; empty for a client of the gateway's user."""

    expiry: asyncio.TimerHandle


class Grants:
    """A match key is good for one session. Unused grants are given back."""

    def __init__(self, leases: KeptLeases, unused_sec: float) -> None:
        """Args:
        unused_sec: time limit of the first use [s].
        """
        self._leases = leases
        self._unused_sec = unused_sec
        self._grants: dict[str, Grant] = {}

    def add(
        self, terms: LeaseTerms, device: Device, host: str, client: ClientProcess | None, *, key_id: str = ""
    ) -> str:
        """Keep a device for a session from this address; return its match key."""
        match_key = f"fleet:{secrets.token_hex(16)}"
        expiry = asyncio.get_running_loop().call_later(self._unused_sec, self._expire, match_key)
        self._grants[match_key] = Grant(terms, device, host, client, key_id, expiry)
        return match_key

    def take(self, match_key: str, host: str) -> Grant | None:
        """Use up a match key and return its grant; None for an unknown key or another address."""
        grant = self._grants.get(match_key)
        if grant is None or grant.host != host:
            return None
        del self._grants[match_key]
        grant.expiry.cancel()
        return grant

    def give_back(self, grant: Grant) -> None:
        """Take the device of a grant back after its session."""
        self._leases.give_back(grant.terms, grant.device, grant.client)

    def close(self) -> None:
        """Give all devices back."""
        for match_key in list(self._grants):
            self._expire(match_key)

    def _expire(self, match_key: str) -> None:
        grant = self._grants.pop(match_key)
        grant.expiry.cancel()
        self.give_back(grant)
