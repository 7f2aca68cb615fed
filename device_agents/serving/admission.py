"""Admits callers to a device by their token alone, without asking the tracker.

Epochs only grow, even across restarts of the agent: a small ledger remembers them. It belongs to one tracker,
identified by its public key. The tracker is told of them, so that it counts on from there even if it lost all it knew.
It says which nonce tokens carry from now on, so that those of a history that it lost are known by more than an epoch.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from device_agents.serving.epochs import EpochLedger, Epochs
from device_agents.serving.tracker_clock import TrackerClock
from fleet.domain.terms import read_term
from fleet.domain.tokens import EPOCHS_END, Claims, TokenVerifier
from fleet.errors import LeaseExpired, LeaseRevoked, TrackerSuperseded, TrackerUnavailable, Unauthenticated
from fleet.wire.tokens import verify_token

logger = logging.getLogger(__name__)

_REMEMBERED_TOKENS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """State of a device's leases, from the tracker. See fleet.v1.Fence."""

    device_name: str
    epoch: int
    """This epoch and all earlier ones have ended."""

    nonce: str = ""
    """Nonce of later tokens; empty: unchanged."""

    live_lease_name: str = ""
    """With a nonce: the lease that continues."""

    is_reset: bool = False
    """True if larger epochs seen before are discarded."""


class Admission:
    """Checks tokens for the devices of one agent."""

    def __init__(self, device_names: Iterable[str], clock: TrackerClock, ledger: EpochLedger | None = None) -> None:
        """Start without known epochs, unless `ledger` is open."""
        self._device_names = set(device_names)
        self._clock = clock
        self._ledger = ledger
        self._verifier: TokenVerifier | None = None
        self._public_key = b""
        self._signed: dict[bytes, Claims] = {}
        self._epochs = ledger.read() if ledger else Epochs()
        self._expected: dict[str, Fence] = {}
        """The last fence with a nonce, by device."""

    def add(self, device_name: str) -> None:
        """Accept tokens for one more device."""
        self._device_names.add(device_name)

    def remove(self, device_name: str) -> None:
        """Refuse tokens for a device that is no longer served."""
        self._device_names.discard(device_name)

    def trust(self, public_key: bytes) -> bool:
        """Accept tokens signed by this tracker, and no others. Return True if another tracker was trusted before."""
        if public_key == self._public_key:
            return False
        is_other = bool(self._public_key)
        self._verifier = TokenVerifier(public_key)
        self._public_key = public_key
        if is_other:
            logger.warning("tracker has another key, forgetting epochs")
        self._signed, self._expected = {}, {}
        self._epochs = self._ledger.read() if self._ledger else Epochs()
        if self._epochs.public_key != public_key:
            self._epochs = Epochs(public_key=public_key)
        return is_other

    @property
    def term_proof(self) -> bytes:
        """Proof of the largest term that a tracker of this fleet has shown; empty: term 0."""
        return self._epochs.term_proof

    def obey(self, term_proof: bytes) -> None:
        """Obey the trusted tracker, unless another one of its fleet has taken over.

        Raises:
            TrackerSuperseded: one has, by its larger term.
            Unauthenticated: the proof of the term is forged.
        """
        known = _term_of(self._public_key, self._epochs.term_proof)
        term = read_term(self._public_key, term_proof)
        if term < known:
            raise TrackerSuperseded(
                f"it has the term {term}, and another tracker of the fleet has taken over with {known}"
            )
        if term > known:
            self._epochs.term_proof = term_proof
            self._write_ledger()

    def fence(self, fence: Fence) -> None:
        """End every lease of a device up to an epoch; from now on expect the fence's nonce."""
        name = fence.device_name
        if fence.epoch >= EPOCHS_END:
            logger.warning("no tracker counts to this epoch", extra={"device": name, "epoch": fence.epoch})
            return
        if fence.nonce:
            self._expected[name] = fence
        if fence.is_reset:
            self._epochs.admitted.pop(name, None)
        if fence.is_reset or fence.epoch > self._epochs.fenced.get(name, 0):
            self._epochs.fenced[name] = fence.epoch
            self._write_ledger()

    def fenced_epoch(self, device_name: str) -> int:
        """Return the largest epoch that was fenced on a device; 0: none."""
        return self._epochs.fenced.get(device_name, 0)

    def highest_epoch(self, device_name: str) -> int:
        """Return the largest epoch that was admitted or fenced on a device; 0: none."""
        return max(self._epochs.admitted.get(device_name, 0), self._epochs.fenced.get(device_name, 0))

    def expects(self, claims: Claims) -> bool:
        """Tell whether a fence is consistent with this agent's last contact with its tracker."""
        fence = self._expected.get(claims.device_name)
        return fence is None or claims.nonce == fence.nonce or claims.lease_name == fence.live_lease_name

    def read(self, token: bytes) -> Claims:
        """Return the claims of the tracker's token for a device of this agent. The lease may have ended.

        Raises:
            TrackerUnavailable: this agent has not met its tracker since it started.
            Unauthenticated: forged, or for a device of another agent.
        """
        if self._verifier is None or self._clock.now_sec() is None:
            raise TrackerUnavailable(
                "this agent has not met its tracker since it started, so it cannot check leases; try again in a moment"
            )
        claims = self._verified(self._verifier, token)
        if claims.device_name not in self._device_names:
            served = ", ".join(sorted(self._device_names))
            raise Unauthenticated(f"the token is for {claims.device_name}; this agent serves {served}")
        if claims.epoch >= EPOCHS_END:
            raise Unauthenticated(f"no tracker counts to epoch {claims.epoch}; acquire a lease from it")
        return claims

    def check(self, token: bytes) -> Claims:
        """Return the claims of a token that is valid now.

        Raises:
            TrackerUnavailable, Unauthenticated: see `read`.
            LeaseExpired: its time is over.
            LeaseRevoked: fenced, superseded by a newer lease, or of a time that the tracker no longer knows.
        """
        claims = self.read(token)
        if not self.expects(claims):
            raise LeaseRevoked(
                f"{claims.lease_name} of {claims.device_name} is not known to the tracker as it was started last; "
                "acquire again"
            )
        if claims.epoch <= self._epochs.fenced.get(claims.device_name, 0):
            raise LeaseRevoked(f"{claims.lease_name} of {claims.device_name} was ended by the tracker; acquire again")
        if claims.epoch < self._epochs.admitted.get(claims.device_name, 0):
            raise LeaseRevoked(f"{claims.lease_name} of {claims.device_name} was superseded by a newer lease")
        remaining_sec = self.remaining_sec(claims)
        if remaining_sec <= 0:
            raise LeaseExpired(
                f"{claims.lease_name} of {claims.device_name} expired {-remaining_sec:.1f} s ago; "
                "renew in time or ask for a longer ttl"
            )
        return claims

    def admit(self, claims: Claims) -> None:
        """Record that a lease was admitted: older ones are refused from now on."""
        if claims.epoch > self._epochs.admitted.get(claims.device_name, 0):
            self._epochs.admitted[claims.device_name] = claims.epoch
            self._write_ledger()

    def remaining_sec(self, claims: Claims) -> float:
        """Return the remaining time of a lease unless renewed; zero or less if it has ended."""
        now = self._clock.now_sec()
        return 0.0 if now is None else claims.expires_at_sec - now

    def _verified(self, verifier: TokenVerifier, token: bytes) -> Claims:
        """Return the claims of a signed token. Cached: calls between two renewals carry the same token."""
        claims = self._signed.get(token)
        if claims is None:
            claims = verify_token(token, verifier)
            if len(self._signed) >= _REMEMBERED_TOKENS:
                self._signed.clear()
            self._signed[token] = claims
        return claims

    def _write_ledger(self) -> None:
        if self._ledger is not None:
            self._ledger.write(self._epochs)


def _term_of(public_key: bytes, kept_proof: bytes) -> int:
    """Return the term of a proof from the ledger; 0 if that was damaged."""
    try:
        return read_term(public_key, kept_proof)
    except Unauthenticated:
        return 0
