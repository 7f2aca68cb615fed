"""Races of jobs on a real tracker, agent and optimizers with recorded candidates: see `benchmarks.live_tasks`."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import fleet
from benchmarks.live_lab import publish, write_model
from benchmarks.live_scenarios import Race, Scenario
from benchmarks.live_scores import LOAD_SEC, Trial, pretended_sec
from benchmarks.live_tasks import TRACKS_VARIABLE, key_of, tracks_in
from benchmarks.processes import Process, python
from fleet.client.identity_calls import IdentityCalls
from fleet.identity.roles import Role
from fleet.identity.store import CredentialStore
from fleet.jobs.fleets import Destination
from fleet.jobs.options import TuneOptions
from fleet.library import JobState, Library, RecordKind
from fleet.optimizer.submit import submit
from fleet.wire.joining import join

_RACE_TIMEOUT_SEC = 600.0
_START_SEC, _TRIAL_SEC = 120.0, 2.0
"""Most time of a job's start, and of a trial with its search, on a busy machine."""

_BEGUN = 8
"""Trials of each other job after which the urgent one arrives."""

_BOARDS = 2
_CREDENTIALS = "FLEET_CREDENTIALS_DIR"


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """One side: its boards, its library, and optimizers that may ask for the accounts of their jobs."""

    name: str
    library: Library
    models: Path

    @property
    def selector(self) -> str:
        """Its boards."""
        return f"side={self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lab:
    """A tracker with the boards of all sides."""

    fleet_id: str
    tracks: Path
    sites: Sequence[Site]

    @property
    def sides(self) -> list[str]:
        """Names of the sides."""
        return [site.name for site in self.sites]

    def run(self, scenario: Scenario, race: Race, *, label: str, trials: int) -> Mapping[str, list[Trial]]:
        """Run the jobs of a race on all sides at once, and return their trials in order. The urgent one arrives later.

        Args:
            label: name of the race, which keeps its accounts apart from those of others.
            trials: for each workload.
        """
        usual = {name: some for name, some in race.items() if name != scenario.urgent}
        late = {name: some for name, some in race.items() if name == scenario.urgent}
        jobs = {site.name: self._submit(site, scenario, usual, label, trials) for site in self.sites}
        complete = set() if late else set(self.sides)
        until = time.monotonic() + _RACE_TIMEOUT_SEC
        while running := [
            one for one in self.sites if one.name not in complete or not _have_ended(one, jobs[one.name])
        ]:
            if time.monotonic() > until:
                raise TimeoutError(f"jobs of {[site.name for site in running]} still run; see the optimizers' logs")
            for site in running:
                if site.name not in complete and _have_begun(site, jobs[site.name]):
                    complete.add(site.name)
                    jobs[site.name] |= self._submit(site, scenario, late, label, trials)
            time.sleep(0.2)
        return {site.name: _trials(site, jobs[site.name], self.tracks, scenario.urgent) for site in self.sites}

    def _submit(self, site: Site, scenario: Scenario, race: Race, label: str, trials: int) -> dict[str, str]:
        """Submit some jobs of a side; return the names of the race's jobs by those of the library."""
        found = {}
        for name, programs in race.items():
            model = site.models / f"{label}-{name}.onnx"
            write_model(model, {one.key: one.calls for one in programs})
            count = trials * len(programs)
            options = TuneOptions(
                model=model,
                selector=site.selector,
                trials=count,
                until_gain=0.0,
                compares_model=False,
                deadline=_deadline(count) if name == scenario.urgent else None,
            )
            account = f"{label}-{scenario.accounts[name]}"
            place = Destination(fleet_id=self.fleet_id, account=account)
            found[submit(site.library, options, holder=account, destination=place).name] = name
        return found


@contextmanager
def running_lab(
    scratch: Path,
    sides: Mapping[str, Sequence[str]],
    *,
    snapshot: bytes,
    tracks: Mapping[str, object],
    optimizers: int,
) -> Iterator[Lab]:
    """Run a tracker, simulated boards and the optimizers of each side.

    Args:
        sides: module and first arguments of its optimizers, by the name of each side.
        snapshot: cost model of all sides' libraries.
        tracks: see `benchmarks.live_tasks.TRACKS_VARIABLE`.
        optimizers: processes of each side.
    """
    path = scratch / "tracks.json"
    path.write_text(json.dumps(tracks))
    with ExitStack() as stack:
        address = _start_fleet(stack, scratch, sides)
        asyncio.run(_join_for_others(address, scratch / "credentials"))
        environment = {TRACKS_VARIABLE: str(path), _CREDENTIALS: str(scratch / "credentials")}
        sites = []
        for side, start in sides.items():
            folder = scratch / side
            folder.mkdir()
            library = stack.enter_context(Library.open(folder / "library.sqlite"))
            publish(library, snapshot)
            words = ("--tracker", address, "--library", folder / "library.sqlite", "--jobs", 5, "--workers", 1)
            for number in range(optimizers):
                command = python(*start, *words)
                stack.enter_context(Process(command, folder / f"{number}.log", environment=environment))
            sites.append(Site(name=side, library=library, models=folder))
        with fleet.connect(address) as client:
            fleet_id = client.fleet_id
        yield Lab(fleet_id=fleet_id, tracks=path, sites=sites)


def _start_fleet(stack: ExitStack, scratch: Path, sides: Collection[str]) -> str:
    """Start tracker and agent; return the tracker's address."""
    load_ms = 1e3 * LOAD_SEC
    devices = [
        {"driver": "simulated", "name": side, "count": _BOARDS, "load_ms": load_ms, "labels": {"side": side}}
        for side in sides
    ]
    (scratch / "agent.yaml").write_text(json.dumps({"devices": devices}))  # which is YAML
    listen = ("--host", "127.0.0.1", "--port", 0, "--state-dir")
    command = python("fleet.tracker", *listen, scratch / "tracker", "--no-discovery")
    tracker = stack.enter_context(Process(command, scratch / "tracker.log"))
    address = tracker.wait_for(r"tracker listening on (\S+)")[1]
    words = ("--tracker", address, "--config", scratch / "agent.yaml")
    agent = stack.enter_context(
        Process(python("device_agents", *listen, scratch / "agent", *words), scratch / "agent.log")
    )
    agent.wait_for(r"agent listening on \S+, serving")
    return address


async def _join_for_others(address: str, folder: Path) -> None:
    """Make credentials that may ask for the accounts of others."""
    async with IdentityCalls(address) as calls:
        token, _ = await calls.invite(Role.USER, ttl_sec=60.0, note="optimizer", may_ask_for_others=True)
    credentials, _ = await join(address, token, name="optimizer")
    CredentialStore(folder).save(address, credentials)


def _deadline(trials: int) -> datetime:
    """Return a moment at which a job has made its trials on a busy machine, too: scores count device seconds alone."""
    return datetime.now(UTC) + timedelta(seconds=_START_SEC + trials * _TRIAL_SEC)


def _have_begun(site: Site, jobs: Collection[str]) -> bool:
    """Tell whether each job has made some trials."""
    made = (len(site.library.records(job_name=name, kinds=[RecordKind.CANDIDATE])) for name in jobs)
    return all(count >= _BEGUN for count in made)


def _have_ended(site: Site, jobs: Mapping[str, str]) -> bool:
    """Tell whether all jobs are finished.

    Raises:
        RuntimeError: one failed.
    """
    found = [site.library.queue.get(name) for name in jobs]
    for job in found:
        if job.state in (JobState.FAILED, JobState.CANCELLED):
            raise RuntimeError(f"{site.name}: {job.name} of {job.title} {job.state.value.lower()}: {job.message}")
    return all(job.state is JobState.FINISHED for job in found)


def _trials(site: Site, jobs: Mapping[str, str], path: Path, urgent: str) -> list[Trial]:
    """Return the trials of a race in the order of their records, with the recorded times of their candidates.

    The urgent job starts with its first unscheduled program: until then a busy machine imports its model.
    """
    keys = {stored.shash: key_of(stored.args) for stored in site.library.find_workloads()}
    tracks = tracks_in(path)
    records = [record for name in jobs for record in site.library.records(job_name=name, kinds=[RecordKind.CANDIDATE])]
    own = [name for name, title in jobs.items() if title == urgent]
    started = [one.id for name in own for one in site.library.records(job_name=name, kinds=[RecordKind.BASELINE])]
    arrival = min(started, default=0)
    found = []
    for record in sorted(records, key=lambda one: one.id):
        track = tracks[keys[record.workload]]
        run_sec = track.run_secs[track.digests.index(record.trace_digest)]
        device_sec = pretended_sec(run_sec, len(record.run_secs))
        program = keys[record.workload]
        found.append(
            Trial(
                job=jobs[record.job_name],
                program=program,
                run_sec=run_sec,
                device_sec=device_sec,
                is_early=record.id < arrival,
            )
        )
    return found
