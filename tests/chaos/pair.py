"""A site with a standby: any link between two programs can be cut, and the tracker that grants killed or frozen.

Both trackers listen on fixed ports, which they tell agents and clients. A preloaded library leads each program's
connections to them over links of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from itertools import product
from pathlib import Path

from fleet.tracker.replica.standing import Duty, Standing, read_standing
from tests.chaos.history import What
from tests.chaos.programs import Program
from tests.chaos.proxy import Link
from tests.chaos.schedule import STANDBY, TRACKER, WAY, Fault, PairKind, make_storm_of_pair
from tests.chaos.site import Site

_PORTS = {TRACKER: 9290, STANDBY: 9291}
_WAYS = "CHAOS_WAYS"
_READY = f"(?:{TRACKER}|{STANDBY})"
_MOST_AGENTS = 2
"""Agents that a split cuts off, of three."""


class PairSite(Site):
    """One tracker and its standby, their agents and clients, and the proxies between any two."""

    _ttl_sec = 25.0  # so that leases outlive a takeover

    def __init__(self, folder: Path, seed: int, patience_sec: float, *, tunes: bool) -> None:
        super().__init__(folder, seed, patience_sec, tunes=tunes)
        self.trackers = [TRACKER, STANDBY]
        self._ways: dict[tuple[str, str], Link] = {}
        """Links by caller and tracker."""

    @property
    def _tracker_address(self) -> str:
        return ",".join(_address(name) for name in self.trackers)

    def _links_to(self, name: str) -> list[Link]:
        if name not in self.trackers:
            return super()._links_to(name)
        return [link for (_, to), link in self._ways.items() if to == name]

    async def _open_links(self) -> None:
        for name in self.agents:
            self._links[name] = await self._opened(0)
        callers = (*self.trackers, *self.agents, *self.clients, *self.tuners)
        for caller, tracker in product(callers, self.trackers):
            if caller != tracker:
                self._ways[caller, tracker] = await self._opened(_PORTS[tracker])

    async def _opened(self, target_port: int) -> Link:
        link = Link(self._rng)
        link.target_port = target_port
        await link.open()
        return link

    def _close_links(self) -> None:
        super()._close_links()
        for link in self._ways.values():
            link.close()

    async def _start_trackers(self) -> None:
        for name in self.trackers:
            await self._start(self._programs[name])

    def _make_wares(self) -> None:
        super()._make_wares()
        source = Path(__file__).with_name("ways.c")
        subprocess.run(["cc", "-O1", "-shared", "-fPIC", source, "-o", self._ways_shim], check=True)

    @property
    def _ways_shim(self) -> Path:
        return self.folder / "ways.so"

    def _make_trackers(self) -> None:
        for name in self.trackers:
            words = self._tracker_words("tests.chaos.tracker", name, port=_PORTS[name])
            words += ["--standby-of", _address(TRACKER)] if name == STANDBY else []
            self._add_program(name, words, _READY)

    def _environment_of(self, name: str) -> dict[str, str]:
        environment = super()._environment_of(name)
        ways = " ".join(f"{_PORTS[to]}:{link.port}" for (caller, to), link in self._ways.items() if caller == name)
        preloaded = os.pathsep.join([environment["LD_PRELOAD"], str(self._ways_shim)])
        return {**environment, "LD_PRELOAD": preloaded, _WAYS: ways}

    def _make_storm(self, number: int, length_sec: float) -> list[Fault]:
        storm = super()._make_storm(number, length_sec)
        callers = [*self.agents, *self.clients]
        return make_storm_of_pair(self.seed, number, storm, first=self._faults, length_sec=length_sec, callers=callers)

    async def _perform(self, fault: Fault) -> None:
        match fault.kind:
            case PairKind.FALL | PairKind.FREEZE | PairKind.SPLIT:
                program = self._granting()
                async with program.busy:
                    self.log.write(What.FAULT, number=fault.number, text=f"{fault} ({program.name})")
                    await self._bring_about_takeover(program, fault)
            case PairKind.PART:
                self.log.write(What.FAULT, number=fault.number, text=str(fault))
                caller, to = fault.target.split(WAY)
                await self._part(self._between(caller, to), fault.for_sec, is_reset=bool(fault.amount))
            case _:
                await super()._perform(fault)

    def _granting(self) -> Program:
        """Return the tracker that grants in the largest term."""
        standings = {name: read_standing(self.folder / name) for name in self.trackers}
        return self._programs[max(standings, key=lambda name: _rank(standings[name]))]

    async def _bring_about_takeover(self, program: Program, fault: Fault) -> None:
        match fault.kind:
            case PairKind.FALL:
                await program.kill()
                await asyncio.sleep(fault.for_sec)
                await self._start(program)
            case PairKind.FREEZE:
                program.signal(signal.SIGSTOP)
                await asyncio.sleep(fault.for_sec)
                program.signal(signal.SIGCONT)
            case _:
                others = [name for name in self.trackers if name != program.name]
                callers = [*others, *self.agents[:_MOST_AGENTS]]
                links = [link for caller in callers for link in self._between(caller, program.name)]
                await self._part(links, fault.for_sec, is_reset=False)

    def _between(self, one: str, other: str) -> list[Link]:
        return [self._ways[way] for way in ((one, other), (other, one)) if way in self._ways]

    async def _part(self, links: list[Link], for_sec: float, *, is_reset: bool) -> None:
        with contextlib.ExitStack() as cuts:
            for link in links:
                cuts.enter_context(link.refusing() if is_reset else link.holding())
            await asyncio.sleep(for_sec)


def _address(name: str) -> str:
    return f"127.0.0.1:{_PORTS[name]}"


def _rank(standing: Standing) -> tuple[bool, int]:
    return standing.duty is Duty.GRANTS, standing.term
