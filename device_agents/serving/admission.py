"""Decides who may use a device, from the token alone, without asking the tracker.

Epochs only grow, even across restarts of the agent: a small ledger file remembers them. It belongs to one tracker,
identified by its public key, because a tracker that lost its state starts again at epoch 1.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable
from pathlib import Path

from device_agents.serving.tracker_clock import TrackerClock
from fleet.domain.tokens import Claims, TokenVerifier
from fleet.errors import LeaseExpired, LeaseRevoked, TrackerUnavailable, Unauthenticated
from fleet.wire.tokens import verify_token

logger = logging.getLogger(__name__)

_REMEMBERED_TOKENS = 64


class Admission:
    """Checks tokens for the devices of one agent."""

    def __init__(self, device_names: Iterable[str], clock: TrackerClock, ledger: Path | None = None) -> None:
        self._device_names = set(device_names)
        self._clock = clock
        self._ledger = ledger
        self._verifier: TokenVerifier | None = None
        self._public_key = b""
        self._signed: dict[bytes, Claims] = {}
        self._admitted: dict[str, int] = {}
        self._fenced: dict[str, int] = {}

    def add(self, device_name: str) -> None:
        """Accept tokens for one more device."""
        self._device_names.add(device_name)

    def remove(self, device_name: str) -> None:
        """Refuse tokens for a device that is no longer served."""
        self._device_names.discard(device_name)

    def trust(self, public_key: bytes) -> bool:
        """Accept what this tracker signs, and nothing else. Return True if it was another tracker until now."""
        if public_key == self._public_key:
            return False
        is_other = bool(self._public_key)
        self._verifier = TokenVerifier(public_key)
        self._public_key = public_key
        if is_other:
            logger.warning("tracker has another key, forgetting epochs")
        self._signed, self._admitted, self._fenced = {}, {}, {}
        self._read_ledger()
        return is_other

    def fence(self, device_name: str, epoch: int) -> None:
        """End every lease of a device up to this epoch."""
        if epoch > self._fenced.get(device_name, 0):
            self._fenced[device_name] = epoch
            self._write_ledger()

    def check(self, token: bytes) -> Claims:
        """Return the claims of a token that is valid now.

        Raises:
            TrackerUnavailable: this agent has not met its tracker since it started.
            Unauthenticated: forged, or for a device of another agent.
            LeaseExpired: its time is over.
            LeaseRevoked: fenced, or superseded by a newer lease.
        """
        now = self._clock.now_sec()
        if self._verifier is None or now is None:
            raise TrackerUnavailable(
                "this agent has not met its tracker since it started, so it cannot check leases; try again in a moment"
            )
        claims = self._verified(self._verifier, token)
        if claims.device_name not in self._device_names:
            served = ", ".join(sorted(self._device_names))
            raise Unauthenticated(f"the token is for {claims.device_name}; this agent serves {served}")
        if claims.epoch <= self._fenced.get(claims.device_name, 0):
            raise LeaseRevoked(f"{claims.lease_name} of {claims.device_name} was ended by the tracker; acquire again")
        if claims.epoch < self._admitted.get(claims.device_name, 0):
            raise LeaseRevoked(f"{claims.lease_name} of {claims.device_name} was superseded by a newer lease")
        if claims.expires_at_sec <= now:
            raise LeaseExpired(
                f"{claims.lease_name} of {claims.device_name} expired {now - claims.expires_at_sec:.1f} s ago; "
                "renew in time or ask for a longer ttl"
            )
        return claims

    def admit(self, claims: Claims) -> None:
        """Remember that a lease was admitted: from now on older ones are refused."""
        if claims.epoch > self._admitted.get(claims.device_name, 0):
            self._admitted[claims.device_name] = claims.epoch
            self._write_ledger()

    def remaining_sec(self, claims: Claims) -> float:
        """Return how long a lease lasts unless renewed; zero or less when it is over."""
        now = self._clock.now_sec()
        return 0.0 if now is None else claims.expires_at_sec - now

    def _verified(self, verifier: TokenVerifier, token: bytes) -> Claims:
        """Return the claims of a signed token. It is checked once: calls between two renewals carry the same."""
        claims = self._signed.get(token)
        if claims is None:
            claims = verify_token(token, verifier)
            if len(self._signed) >= _REMEMBERED_TOKENS:
                self._signed.clear()
            self._signed[token] = claims
        return claims

    def _read_ledger(self) -> None:
        if self._ledger is None:
            return
        try:
            content = json.loads(self._ledger.read_text())
            if content["public_key"] == self._public_key.hex():
                self._admitted = {str(name): int(epoch) for name, epoch in content["admitted"].items()}
                self._fenced = {str(name): int(epoch) for name, epoch in content["fenced"].items()}
        except FileNotFoundError:
            return
        except (ValueError, KeyError, AttributeError, TypeError):
            # Torn by a power cut. The tracker will send its fences again.
            logger.warning("ledger of epochs is damaged, starting a new one", extra={"path": str(self._ledger)})

    def _write_ledger(self) -> None:
        if self._ledger is None:
            return
        content = {"public_key": self._public_key.hex(), "admitted": self._admitted, "fenced": self._fenced}
        fresh = self._ledger.with_name(f".{self._ledger.name}.{os.getpid()}")
        try:
            fresh.write_text(json.dumps(content))
            fresh.replace(self._ledger)
        except OSError as error:
            # A full disk must keep nobody from using or ending a lease; this process remembers epochs anyway.
            logger.warning("cannot write the ledger of epochs", extra={"path": str(self._ledger), "error": str(error)})
