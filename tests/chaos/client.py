"""A program that leases devices, measures on them and stores the records, in an endless loop: `python -m
tests.chaos.client`.

Each of its holders is a client of its own to the checker: it logs its requests, grants, measurements and losses, and
each record once the library has acknowledged it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import random
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import fleet.aio
from fleet.artifacts.artifact import Artifact
from fleet.client.device import Device
from fleet.domain.leases import LeaseClass, LeaseTerms
from fleet.domain.measuring import Argument, Evaluator, TensorSpec, Trial
from fleet.domain.scope import RecordScope
from fleet.errors import FleetError
from fleet.library import Library, Record, StoredWorkload
from tests.chaos.board import trial_id
from tests.chaos.history import Log, What
from tests.chaos.kernel import SIDE
from tests.chaos.observer import purpose

WORKLOAD = StoredWorkload(shash="17", name="chaos", mod_json="{}")
_ARGS: tuple[Argument, ...] = tuple(
    TensorSpec((SIDE, SIDE), "float32", is_output=is_output) for is_output in (False, False, True)
)
_SELECTORS = ("simulated", "simulated", "rack=0", "rack=1", "cpu")
_SETS = (("rack=0", "rack=1"), ("simulated", "simulated"), ("simulated", "cpu"))
_SETS_SHARE = 0.15
_CLASSES = {LeaseClass.INTERACTIVE: 2, LeaseClass.NORMAL: 4, LeaseClass.BATCH: 4}
_OBEDIENT_SHARE = 0.7
"""Share of demands to give way that a holder follows; others cost the lease."""
_LONGEST_THOUGHT_SEC = 10.0
SHORT_SEC = 6.0
"""Maximum length of every second lease, so that devices can be booked for a moment later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wares:
    """Artifacts that a client runs."""

    simulated: Sequence[Artifact]
    cpu: Artifact

    @classmethod
    def of(cls, folder: Path) -> Wares:
        simulated = [Artifact.of_file(path) for path in sorted(folder.glob("*.sim"))]
        return cls(simulated=simulated, cpu=Artifact.of_file(folder / "kernel.so"))


class Holder:
    """Requests a device, uses it and releases it, in a loop."""

    def __init__(
        self, name: str, client: fleet.aio.Fleet, wares: Wares, library: Path, log: Log, ttl_sec: float
    ) -> None:
        self._name = name
        self._client = client
        self._wares = wares
        self._library = library
        self._log = log
        self._ttl_sec = ttl_sec
        self._rng = random.Random(f"{name}{time.time_ns()}")
        self._continues = "", ""
        """Selector and name of the batch lease that was given back."""

    async def run(self) -> None:
        """Loop for ever."""
        while True:
            try:
                await self._hold()
            except FleetError as error:
                self._write(What.LOST, text=f"{type(error).__name__}: {error}"[:300])
                await asyncio.sleep(self._rng.uniform(0.1, 0.5))

    async def _hold(self) -> None:
        (lease_class,) = self._rng.choices(list(_CLASSES), list(_CLASSES.values()))
        if self._rng.random() < _SETS_SHARE:
            await self._hold_set(self._rng.choice(_SETS), lease_class)
            return
        (selector, former), self._continues = self._continues, ("", "")
        if former:
            lease_class = LeaseClass.BATCH
        else:
            selector = self._rng.choice(_SELECTORS)
        self._write(What.ASK, text=selector, lease_class=lease_class)
        terms = LeaseTerms(
            selector=selector,
            lease_class=lease_class,
            ttl_sec=self._ttl_sec,
            max_sec=self._rng.choice((None, SHORT_SEC)),
            purpose=purpose(self._name, 1),
        )
        async with self._client.acquire(terms, continues=former) as device:
            await self._use(device)
            if device.yield_wanted is not None and self._rng.random() < _OBEDIENT_SHARE:
                self._continues = selector, device.lease.name
                self._write(What.GIVEN_BACK, device=device.name, lease=device.lease.name)
            elif self._rng.random() < 0.1:
                await asyncio.sleep(self._rng.uniform(0.0, _LONGEST_THOUGHT_SEC))  # think time of the holder

    async def _hold_set(self, selectors: Sequence[str], lease_class: LeaseClass) -> None:
        self._write(What.ASK, text=" and ".join(selectors), lease_class=lease_class)
        told = purpose(self._name, len(selectors))
        acquired = self._client.acquire_all(selectors, lease_class=lease_class, ttl_sec=self._ttl_sec, purpose=told)
        async with acquired as devices:
            for device in devices:
                await self._use(device)

    async def _use(self, device: Device) -> None:
        lease = device.lease
        self._write(What.GRANT, device=device.name, lease=lease.name, epoch=lease.epoch)
        for number in range(self._rng.randrange(1, 5)):
            await self._measure(device, number)
            await asyncio.sleep(self._rng.uniform(0.0, 0.2))

    async def _measure(self, device: Device, number: int) -> None:
        is_cpu = device.inventory.kind == "cpu"
        artifact = self._wares.cpu if is_cpu else self._rng.choice(self._wares.simulated)
        await device.ensure([artifact])
        trial = Trial(
            candidate_id=trial_id(device.lease.name, device.lease.epoch, number),
            artifact_digest=artifact.digest,
            args=_ARGS if is_cpu else (),
            evaluator=Evaluator(number=1, repeat=3),
            allow_poison=True,  # agents that are killed blame the programs that run
        )
        async for measurement in device.measure([trial]):
            if measurement.error is not None:
                self._write(What.LOST, text=f"{measurement.error}: {measurement.error_message}"[:300])
                continue
            self._write(What.SERVED, device=device.name, lease=device.lease.name, run=trial.candidate_id)
            await asyncio.to_thread(self._keep, device, trial, measurement.run_secs)

    def _keep(self, device: Device, trial: Trial, run_secs: Sequence[float]) -> None:
        scope = RecordScope(
            target_json=device.inventory.target_json, device_model=device.inventory.device_model, tvm_version=""
        )
        record = Record(
            workload=WORKLOAD.shash,
            scope=scope,
            trace_json=f'[[["{trial.candidate_id}"]],[]]',
            run_secs=tuple(run_secs),
            uid=trial.candidate_id,
        )
        with Library.open(self._library) as library:
            stored = library.add_record(record)
        self._write(What.RECORDED, run=stored.uid)

    def _write(self, what: What, **facts: object) -> None:
        self._log.write(what, who=self._name, **facts)


async def serve(arguments: argparse.Namespace) -> None:
    """Run all holders until SIGTERM; then release their leases."""
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stopped.set)
    log = Log(arguments.log, arguments.name)
    wares = Wares.of(arguments.wares)
    while not stopped.is_set():
        with contextlib.suppress(FleetError):
            async with fleet.aio.connect(arguments.tracker) as client:
                names = [f"{arguments.name}/{number}" for number in range(arguments.holders)]
                holders = [Holder(name, client, wares, arguments.library, log, arguments.ttl) for name in names]
                tasks = [asyncio.create_task(each.run()) for each in holders]
                await asyncio.wait([*tasks, asyncio.create_task(stopped.wait())], return_when=asyncio.FIRST_COMPLETED)
                ended = list(itertools.filterfalse(lambda task: not task.done(), tasks))
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                for task in ended:
                    task.result()  # a holder ends only by an error that is not the fleet's


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.client")
    for name in ("tracker", "name"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("library", "log", "wares"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--holders", type=int, default=2)
    parser.add_argument("--ttl", type=float, required=True)
    asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
