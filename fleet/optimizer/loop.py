"""The tuning loop: propose, build, measure, check, learn, over all workloads of a job.

The core (`fleet.optimizer.core.state`) decides; the loop performs its effects and feeds back their results. Two tasks
are joined by a queue of one batch. If the device is on another machine, the next batch is made while the last one is
measured. If builds and measurements share cores, they take turns anyway, so the next batches wait for the results of
the last and are the better for it. A few workloads are searched side by side then: one search keeps one core busy. The
last workload of a job is searched while its batch is built. With several devices, each measures another workload.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from contextvars import ContextVar
from typing import NamedTuple, TypeVar

from cross.compile.cache import BuildCache
from cross.targets.target import parse_target
from fleet.artifacts.artifact import Artifact
from fleet.base.quantities import count_text
from fleet.base.tasks import stopped, together
from fleet.building.pool import Pool
from fleet.building.turns import Turns, stepped_aside
from fleet.client.device import Device
from fleet.client.steady import SteadyDevice
from fleet.domain.model_snapshots import ModelSnapshot
from fleet.domain.origin import Origin
from fleet.domain.workload import Workload
from fleet.library import Library
from fleet.optimizer.checker import Checker
from fleet.optimizer.core import events as ev
from fleet.optimizer.core.candidates import Candidate, CandidateStage
from fleet.optimizer.core.progress import Phase
from fleet.optimizer.core.state import JobCore
from fleet.optimizer.device_lane import DeviceLane
from fleet.optimizer.group_commit import GroupCommit
from fleet.optimizer.measurer import Measurer
from fleet.optimizer.narrator import narrate
from fleet.optimizer.recorder import Recorder
from fleet.optimizer.searcher import Searcher

E = TypeVar("E")

_MOST_SEARCHES = 4
"""Workloads searched side by side: the more, the longer until their results decide the next step."""

_HELD_BACK_SEC = 0.2
"""Pause before a batch that waits for another kind of boards is planned again."""

SHORT_WORK_BID = 1e6
"""Bid before and after the search, above all estimates: few trials tell the worth of batches, or complete a result."""


class Round(NamedTuple):
    """A workload and the digests of its new candidates."""

    workload: str
    digests: tuple[str, ...]
    worth: float = 0.0
    """Value of a second of the device, in the prioritizer's currency."""


_lane: ContextVar[DeviceLane | None] = ContextVar("lane", default=None)


class TuningLoop:
    """Runs the loop for one job that was started in its core."""

    def __init__(
        self,
        core: JobCore,
        *,
        device: SteadyDevice,
        others: Sequence[SteadyDevice] = (),
        pool: Pool,
        library: Library,
        turns: Turns,
        gives_back: bool = False,
        cache: BuildCache | None = None,
    ) -> None:
        """Store the arguments.

        Args:
            others: more devices of the same model, for batches of other workloads at the same time.
            gives_back: end the lease whenever nothing is left to measure for the moment.
            cache: built libraries that outlive the job.
        """
        self._core = core
        self._gives_back = gives_back
        self._turns = turns
        self._learning = asyncio.Lock()
        self._ahead: asyncio.Task[None] | None = None
        self._is_next_built: Callable[[], bool] = lambda: False
        self._applied_one_by_one: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._recorder = Recorder(library, core.conditions)
        self._searcher = Searcher(pool, core.conditions, self._workload_of, cache)
        self._baselines: dict[str, Artifact] = {}
        self._next: list[Round] = []
        """Batches of the search that are on their way to devices. The most valuable one determines the bid."""

        self._lanes = [self._lane_of(each) for each in (device, *others)]
        self._checker = self._lanes[0].checker

    def use_snapshot(self, snapshot: ModelSnapshot) -> None:
        """Search with the library's model of such targets, from the next round on."""
        if parse_target(self._core.conditions.scope.target_json).kind in snapshot.target_kinds:
            self._searcher.shared = snapshot.content
            self._core.use_snapshot(snapshot.digest)

    async def apply(self, event: ev.Event, *kept: type[E]) -> list[E]:
        """Apply an event and perform everything that follows, except effects of some kinds.

        Args:
            kept: kinds of effects that the caller performs; they are returned.

        Raises:
            LibraryError, DiskFull: a result could not be stored; the job must stop.
            DeviceUnreachable: the device never gives a result.
        """
        return await self._follow(_only(event), *kept)

    async def measure_static(self) -> None:
        """Build and time the static schedule of each workload, unless a better one is known."""
        items = self._core.progress.workloads
        missing = list(dict.fromkeys(item.workload.shash for item in items if item.best_trace is None))
        # The first one alone, so that users soon see that everything works.
        for some in filter(None, (missing[:1], missing[1:])):
            self._core.say(f"building {count_text(len(some), 'static schedule')}", Phase.STATIC)
            made = await asyncio.gather(*map(self._make_static, some))
            await self._measure_all(one for one in made if one.digests)

    async def measure_untuned(self) -> None:
        """Build and time the unscheduled program of each workload that has no such record yet."""
        items = self._core.progress.workloads
        missing = list(dict.fromkeys(item.workload.shash for item in items if not math.isfinite(item.untuned_sec)))
        if not missing:
            return
        self._core.say(f"building {count_text(len(missing), 'unscheduled program')}")
        async with self._turns.building():
            for built in await asyncio.gather(*map(self._checker.build_baseline, missing)):
                await self.apply(built)
        async with self.measuring():
            await self.apply(ev.BaselinesWanted(missing))

    async def take_up(self, in_flight: Mapping[str, Mapping[str, str]]) -> None:
        """Build and measure candidates from before the job's interruption, within its trials.

        Args:
            in_flight: for each workload, traces by digest.
        """
        left = self._core.progress.trials_total
        for shash, traces in in_flight.items():
            some = [
                Candidate(trace_json=trace, digest=digest, origin=Origin.of_trace(trace))
                for digest, trace in itertools.islice(traces.items(), left)
            ]
            left -= len(some)
            async with self._turns.building():
                await self._perform(ev.Claim(shash, tuple(some)))
            await self._measure_round(Round(shash, tuple(one.digest for one in some)))

    async def run(self) -> None:
        """Spend the trials, then compare the best few of each workload once more."""
        self._core.begin_search()
        queue: asyncio.Queue[Round | None] = asyncio.Queue(maxsize=len(self._lanes))
        self._is_next_built = lambda: not queue.empty()
        await together({"produce": self._produce(queue), "measure": self.measure_rounds(queue)})
        self._core.finish_search()
        self._is_next_built = lambda: False
        async with self.measuring():
            for item in self._core.progress.workloads:
                await self.apply(ev.RunOffWanted(item.workload.shash))
        await self._prove_winners()

    async def _prove_winners(self) -> None:
        """Prove the best schedules that are still unproven: those of earlier jobs, and winners of the run-off."""
        wanted = [ev.ProofWanted(item.workload.shash) for item in self._core.progress.workloads]
        events: Sequence[ev.Event] = wanted
        while proofs := [effect for event in events for effect in await self.apply(event, ev.Prove)]:
            async with self._turns.building():
                ready = await asyncio.gather(*map(self._checker.prepare_proof, proofs))
            async with self.measuring():
                events = [
                    event
                    for effect, built in zip(proofs, ready, strict=True)
                    if built is not None
                    async for event in self._here.checker.prove(effect, built)
                ]

    async def _produce(self, queue: asyncio.Queue[Round | None]) -> None:
        try:
            while any(rounds := await self._make_rounds()):
                for made in rounds:
                    if made is not None and made.digests:
                        await queue.put(made)
                if self._turns.shares_cores:
                    await queue.join()
                if self._core.is_held_back:
                    await asyncio.sleep(_HELD_BACK_SEC)
        finally:
            await self._stop_searching_ahead()
        await queue.put(None)

    async def _make_rounds(self) -> Sequence[Round | None]:
        """Search and build for several workloads side by side, where nothing is measured meanwhile."""
        is_one = not self._turns.shares_cores or self._core.is_alone
        count = 1 if is_one else min(self._core.conditions.search_threads, _MOST_SEARCHES)
        return await together({f"search {n}": self._make_round() for n in range(count)})

    async def measure_rounds(self, queue: asyncio.Queue[Round | None]) -> None:
        """Measure the batches of a queue on all devices, until None arrives.

        A single device gets the next batch while the last is measured, stored and checked; with several, the others
        take it.
        """
        lines = 1 if self._turns.shares_cores or len(self._lanes) > 1 else 2
        consumers = [lane for lane in self._lanes for _ in range(lines)]
        await together({f"measure {n}": self._consume(queue, lane) for n, lane in enumerate(consumers)})

    async def _consume(self, queue: asyncio.Queue[Round | None], lane: DeviceLane) -> None:
        _lane.set(lane)
        while (made := await self._next_round(queue, lane)) is not None:
            self._next.append(made)
            await self._measure_round(made)
            self._next.remove(made)
            queue.task_done()
        queue.put_nowait(None)  # for the next task; nothing else is put, so there is space
        await self._give_back_unused(lane)

    async def _next_round(self, queue: asyncio.Queue[Round | None], lane: DeviceLane) -> Round | None:
        if queue.empty():
            await self._give_back_unused(lane)
        return await queue.get()

    async def _give_back_unused(self, lane: DeviceLane) -> None:
        if self._gives_back and not lane.users:
            await lane.device.give_back()

    async def _make_static(self, shash: str) -> Round:
        async with self._turns.building():
            await together(
                {"make static": self.apply(ev.StaticWanted(shash)), "build unscheduled": self._build_baseline(shash)}
            )
        return Round(shash, tuple(digest for workload, digest in self._core.candidates if workload == shash))

    async def _build_baseline(self, shash: str) -> None:
        """Build the unscheduled program of a workload, which checks of its candidates need."""
        if shash not in self._baselines:
            await self.apply(await self._checker.build_baseline(shash))

    async def _make_round(self) -> Round | None:
        """Choose a batch from the backlog, and build it; search if the backlog is empty.

        Return None if the search is over, and no digests if others measure the chosen ones or the batch is held back.
        """
        async with self._turns.building():
            while True:
                wanted = await self._next_effect(ev.RoundWanted(time.monotonic()))
                match wanted:
                    case ev.Claim():
                        builds = await self._perform(wanted, ev.Build)
                        self._go_on_searching_ahead()  # including this workload: the built candidates are known by now
                        for build in builds:
                            await self._perform(build)
                        digests = [one.digest for one in wanted.proposals]
                        ours = [digest for digest in digests if (wanted.workload, digest) in self._core.candidates]
                        return Round(wanted.workload, tuple(ours), wanted.worth)
                    case ev.Propose():
                        await self._perform(wanted)
                    case None if self._core.is_held_back:
                        return Round("", ())
                    case None if self._core.has_trials_left and self._ahead is not None and self._is_searching_ahead():
                        async with stepped_aside():  # that search takes turns, too
                            await asyncio.wait([self._ahead])
                    case None:
                        return None

    async def _next_effect(self, wanted: ev.RoundWanted | ev.AheadWanted) -> ev.Claim | ev.Propose | None:
        """Return the next step, with the newest cost model."""
        async with self._learning:
            found: list[ev.Claim | ev.Propose] = await self.apply(wanted, ev.Claim, ev.Propose)
        return found[0] if found else None

    def _go_on_searching_ahead(self) -> None:
        """Search while others build and measure. If they share cores, they would mostly wait for each other."""
        if self._core.searches_beside_builds and not self._is_searching_ahead():
            self._ahead = asyncio.create_task(self._search_ahead(), name="search ahead")

    def _is_searching_ahead(self) -> bool:
        """Tell whether a search is in progress. Raises the error that has ended it, if any."""
        if self._ahead is None or not self._ahead.done():
            return self._ahead is not None
        self._ahead.result()
        return False

    async def _search_ahead(self) -> None:
        while True:
            async with self._turns.building():
                if (wanted := await self._next_effect(ev.AheadWanted(time.monotonic()))) is None:
                    return
                await self._perform(wanted)
            if self._turns.shares_cores:  # the candidates built by now are measured first
                return

    async def _stop_searching_ahead(self) -> None:
        if self._ahead is not None:
            await stopped(self._ahead)

    async def _measure_all(self, rounds: Iterable[Round]) -> None:
        """Measure one after the other, holding the device until the last."""
        left = deque(rounds)
        self._is_next_built = lambda: bool(left)
        while left:
            await self._measure_round(left.popleft())

    async def _measure_round(self, made: Round) -> None:
        """Measure a batch. Results of one workload are applied batch by batch, on any device."""
        lane, (shash, digests, _) = self._here, made
        if shash not in self._baselines:  # while nobody waits for the device
            async with self._turns.building():
                await self._build_baseline(shash)
        if len(self._lanes) > 1:
            # Lock the workload before the lease to prevent a deadlock: a task with a device may wait for another task's
            # results on the workload, while that one has lost its device and waits for this one.
            if self._applied_one_by_one[shash].locked():
                await self._give_back_unused(lane)
            async with self._applied_one_by_one[shash], self.measuring():
                await self.apply(ev.BatchWanted(shash, digests))
            return
        known = [self._core.candidates.get((shash, digest)) for digest in digests]
        artifacts = [one.built.artifact for one in known if one is not None and one.stage is CandidateStage.BUILT]
        async with self.measuring() as device:
            if not artifacts or self._turns.are_ours(device.inventory):
                async with lane.applying:
                    await self.apply(ev.BatchWanted(shash, digests))
                return
            await lane.device.send_ahead(artifacts)
            await lane.until_free()
            (measure,) = await self.apply(ev.BatchWanted(shash, digests), ev.Measure)
            async with lane.measuring_ahead(measure) as results:
                await self._follow(results)

    @asynccontextmanager
    async def measuring(self) -> AsyncIterator[Device]:
        """Hold a device, and its cores if they are shared; at the end, release it unless it is needed at once.

        A device for which the account has a more valuable batch elsewhere is released first, after the batches on it.

        The lease comes first: a task that held the cores while waiting for one could keep others from ending theirs.
        """
        lane = self._here
        lane.device.bid(max((one.worth for one in self._next), default=SHORT_WORK_BID))
        if self._gives_back and lane.device.is_outbid:
            await lane.until_unused()
            await self._give_back_unused(lane)
        with lane.in_use():
            device = await lane.device.device()
            async with self._turns.measuring(device.inventory):
                yield device
        if self._gives_back and not lane.users and not self._is_next_built():
            await lane.device.give_back()

    @property
    def _here(self) -> DeviceLane:
        """Device of this task: the first one, except in tasks that measure rounds."""
        return _lane.get() or self._lanes[0]

    def _lane_of(self, device: SteadyDevice) -> DeviceLane:
        checker = Checker(
            conditions=self._core.conditions,
            device=device,
            searcher=self._searcher,
            workload_of=self._workload_of,
            baselines=self._baselines,
        )
        return DeviceLane(device=device, measurer=Measurer(device), checker=checker)

    async def _perform(self, effect: ev.Effect, *kept: type[E]) -> list[E]:
        """Perform one effect and everything that follows; return further effects of the kinds `kept`."""
        return await self._follow(self._outcomes(effect), *kept)

    async def _follow(self, events: AsyncGenerator[ev.Event, None], *kept: type[E]) -> list[E]:
        """Apply events as they come and perform their effects; return those of the kinds `kept` instead.

        Results are stored together; all are stored before anything but a result is applied.
        """
        left: list[E] = []
        async with aclosing(events), GroupCommit(self._store) as storing:
            async for event in events:
                if not isinstance(event, ev.Measured | ev.BuildFailed):
                    await storing.finish()
                for effect in self._core.apply(event):
                    if isinstance(effect, kept):
                        left.append(effect)
                    elif isinstance(effect, ev.Store):
                        storing.add(effect)
                    elif isinstance(effect, ev.Notice):
                        self._core.progress.notice(narrate(effect.news))
                    else:
                        left += await self._perform(effect, *kept)
        return left

    async def _store(self, results: Sequence[ev.Store]) -> None:
        async for stored in self._recorder.store(results):
            self._core.note_stored(stored)

    def _outcomes(self, effect: ev.Effect) -> AsyncGenerator[ev.Event, None]:
        """Perform one effect and yield the resulting events."""
        match effect:
            case ev.Learn():
                return self._searcher.learn(effect)
            case ev.Propose():
                return self._searcher.propose(effect)
            case ev.Claim():
                return self._recorder.claim(effect)
            case ev.Build():
                return self._searcher.build(effect)
            case ev.Measure():
                return self._here.measure(effect)
            case ev.CheckOutputs():
                return self._here.checker.check(effect)
            case ev.MarkChecked() | ev.MarkWrong() | ev.KeepProof():
                return self._recorder.mark(effect)
            case ev.Prove() | ev.Store() | ev.Notice():
                raise RuntimeError(f"{type(effect).__name__} is not performed alone: see _prove_winners and _follow")

    def _workload_of(self, shash: str) -> Workload:
        return self._core.workload(shash).workload


async def _only(event: ev.Event) -> AsyncGenerator[ev.Event, None]:
    yield event
