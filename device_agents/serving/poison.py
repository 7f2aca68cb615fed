"""Programs that killed a device, of this agent or of the fleet. The agent refuses to run them unasked.

A program is blamed if a healthy device turns unhealthy while it runs, or within 15 seconds after it failed: some
drivers notice a dead board at the next look, and a killed worker counts as hanging in the kernel after ten seconds.

Two times are needed where chance explains it as well: a device that the agent reaches over a cable or a network may
have been unplugged, and an agent that ended while the program ran may have been killed by a person or a power cut.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

from device_agents.serving.doubts import Doubts
from fleet.domain.poison import KEPT_SEC, MAX_POISON

logger = logging.getLogger(__name__)

_BLAMED_SEC = 15.0


class PoisonList:
    """Digests of programs that this agent refuses."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, doubts: Doubts | None = None) -> None:
        self._clock = clock
        self._doubts = doubts or Doubts()
        self._until_sec: dict[str, float] = {}
        """Time when each is forgotten, on the clock; the oldest first."""
        self._found: dict[str, str] = {}
        """Device of each that the tracker does not have yet."""

    def has(self, digest: str) -> bool:
        """Tell whether a program is poison."""
        return self._until_sec.get(digest, 0.0) > self._clock()

    def blame(self, digest: str, device_name: str, *, may_be_chance: bool) -> None:
        """Add a program under which a device of this agent, or the agent, was lost; at the second time if that may have
        been chance.
        """
        if not may_be_chance or self._doubts.confirm(digest):
            self.add(digest, device_name)

    def blame_lost(self, running: Mapping[str, str]) -> None:
        """Blame the programs that ran when an earlier agent was lost.

        Args:
            running: a device of each.
        """
        for digest, device_name in running.items():
            logger.warning("the agent was lost while a program ran", extra={"device": device_name, "digest": digest})
            self.blame(digest, device_name, may_be_chance=True)

    def add(self, digest: str, device_name: str) -> None:
        """Add a program that killed a device of this agent."""
        logger.warning("a program is refused from now on", extra={"device": device_name, "digest": digest})
        self._keep(digest, KEPT_SEC)
        if len(self._found) < MAX_POISON:
            self._found[digest] = device_name

    def begin(self) -> None:
        """Drop the programs of the tracker's list, which comes anew: some were forgotten while it was away."""
        self._until_sec = {digest: until_sec for digest, until_sec in self._until_sec.items() if digest in self._found}

    def forget(self, digest: str) -> None:
        """Run a program again: an admin wants it."""
        self._until_sec.pop(digest, None)
        self._found.pop(digest, None)
        self._doubts.forget(digest)

    def learn(self, digest: str, remaining_sec: float) -> None:
        """Add a program of the tracker's list for the remaining time of its entry."""
        self._found.pop(digest, None)
        self._keep(digest, min(remaining_sec, KEPT_SEC))

    def unsent(self) -> dict[str, str]:
        """Return the programs that the tracker does not have, with the device that each killed."""
        return dict(self._found)

    def _keep(self, digest: str, sec: float) -> None:
        self._until_sec.pop(digest, None)
        self._until_sec[digest] = self._clock() + sec
        if len(self._until_sec) > MAX_POISON:
            del self._until_sec[next(iter(self._until_sec))]


class Suspicion:
    """The program that is to blame if a device turns unhealthy now."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._digest = ""
        self._ended_at_sec: float | None = None
        self._is_healthy = True
        self.recoveries = 0
        """Number of times that the device became healthy again."""

    @property
    def is_healthy(self) -> bool:
        """Latest health of the device."""
        return self._is_healthy

    def begin(self, digest: str) -> None:
        """Note that a program begins; it is not to blame for a device that is unhealthy already."""
        self._digest, self._ended_at_sec = digest if self._is_healthy else "", None

    def end(self, *, is_failed: bool) -> None:
        """Note that the program has ended."""
        self._ended_at_sec = self._clock()
        if not is_failed:
            self._digest = ""

    def note_health(self, *, is_healthy: bool) -> str:
        """Note the device's health; return the digest of the program that is to blame, or an empty text."""
        was_healthy, self._is_healthy = self._is_healthy, is_healthy
        self.recoveries += is_healthy and not was_healthy
        if is_healthy or not was_healthy:
            return ""
        ended_at_sec, digest = self._ended_at_sec, self._digest
        self._digest = ""
        return digest if ended_at_sec is None or self._clock() - ended_at_sec <= _BLAMED_SEC else ""
