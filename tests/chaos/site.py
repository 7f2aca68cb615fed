"""A fleet and its faults, in namespaces of their own.

Storms of faults and calms take turns. In a calm everything runs, all ways are open, and it lasts until every client has
been served, or is too late. Everything is written into FOLDER/logs; `tests.chaos.checker` judges it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import psutil
import yaml

from fleet.base.scratch import remove_abandoned
from fleet.domain.health import HealthState
from fleet.library import Library, Record, RecordKind
from fleet.testing import eventually
from tests.chaos import disks
from tests.chaos.client import SHORT_SEC, WORKLOAD
from tests.chaos.history import Log, What
from tests.chaos.observer import LOG, STATE, install
from tests.chaos.programs import Program, own_environment
from tests.chaos.proxy import Link
from tests.chaos.schedule import LIBRARY, TRACKER, Fault, Kind, make_storm
from tests.programs import REPOSITORY, alive, run_module

_DISK_MIB = 64
_AGENTS = (
    [{"driver": "chaos_simulated", "name": "a", "count": 2, "labels": {"rack": "0"}, "latency_us": 3000}],
    [{"driver": "chaos_simulated", "name": "b", "count": 2, "labels": {"rack": "1"}, "latency_us": 3000}],
    [{"driver": "chaos_cpu", "name": "c"}],
)
_RULES = "yield_grace: 3s\nslice: 5s\n"
_PAUSE_SEC, _LEAVE_SEC = 0.5, 30.0
_TUNER = "tuner"
_OBSERVERS = "observers"
_TUNED_TRIALS = 6
_CLIENTS = 3
_HOLDERS = 3
_DEVICES = ("a-0", "a-1", "b-0", "b-1", "c")
_KINDS = ("simulated", "simulated", "cpu")
"""Kinds of devices that are booked."""
_BOOK_TRIES = 4
_MOST_TRIES = 20
"""Tries to resume a device in a calm."""
_WARES = ("latency_us:2000", "latency_us:20000", "latency_us:100000")


class Site:
    """One tracker, its agents and clients, and the proxies between them."""

    _ttl_sec = 5.0
    """A lease of a client ends this long after its last renewal."""

    def __init__(self, folder: Path, seed: int, patience_sec: float, *, tunes: bool) -> None:
        """Args:
        patience_sec: longest wait of a calm until every client has been served.
        tunes: whether a program is tuned on the processor, too.
        """
        self.folder = folder
        self.seed = seed
        self._patience_sec = patience_sec
        self.logs = folder / "logs"
        self.log = Log(self.logs / "site.jsonl", "site")
        self._rng = random.Random(f"{seed}:site")
        self._wares = folder / "wares"
        self._library = folder / LIBRARY / "library.sqlite"
        self._library_busy = asyncio.Lock()
        self._shim = folder / "clock.so"
        self._links: dict[str, Link] = {}
        self._programs: dict[str, Program] = {}
        self._faults = 0
        self._repairs = 0
        """Number of journals set back."""
        self._drains = {device: asyncio.Lock() for device in _DEVICES}
        self._unsure: set[str] = set()
        """Devices with a resume that was not answered."""
        self.trackers = [TRACKER]
        self.agents = [f"agent-{number}" for number in range(len(_AGENTS))]
        self.clients = [f"client-{number}" for number in range(_CLIENTS)]
        self.tuners = [_TUNER] if tunes else []
        self.waiting = [f"{client}/{number}" for client in self.clients for number in range(_HOLDERS)]

    async def open(self) -> None:
        """Create everything that does not change, and start all processes."""
        self._make_wares()
        for name in (*self.trackers, LIBRARY, *self.agents):
            disks.mount(self.folder / name, _DISK_MIB)
        with Library.open(self._library) as library:
            library.add_workload(WORKLOAD)
        await self._open_links()
        self._make_programs()
        await self._start_trackers()
        for name in (*self.agents, *self.clients, *self.tuners):
            await self._start(self._programs[name])

    async def storm(self, number: int, length_sec: float) -> None:
        """Perform the scheduled faults."""
        self.log.write(What.STORM, number=number)
        faults = self._make_storm(number, length_sec)
        self._faults += len(faults)
        began = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            for fault in faults:
                await asyncio.sleep(max(0.0, began + fault.at_sec - time.monotonic()))
                tasks.create_task(self._perform(fault), name=str(fault))

    async def calm(self) -> None:
        """Wait until every client is served or the time is up; then take a census of all processes."""
        for program in self._programs.values():
            async with program.busy:
                if not program.is_running:
                    await self._start(program)
        await self._resume_all()
        await self._cancel_bookings()
        sizes = {path: path.stat().st_size for path in self.logs.glob("client-*.jsonl")}
        calm_sec = time.monotonic()
        self.log.write(What.CALM, names=self.waiting)
        try:
            await eventually(lambda: self._served(sizes, calm_sec) >= set(self.waiting), self._patience_sec)
        except TimeoutError:
            return  # the checker names the starved clients
        for program in (self._programs[name] for name in (*self.trackers, *self.agents, *self.clients)):
            self.log.write(What.CENSUS, who=program.name, number=program.pid, counts=program.count())

    async def close(self) -> None:
        """Stop everything, and log all leftovers."""
        for names in (self.tuners, self.clients, self.agents, self.trackers):
            await asyncio.gather(*(self._stop(self._programs[name]) for name in names))
        self._close_links()
        remove_abandoned(self.folder / "tmp")  # as the next process does that makes a folder there
        with contextlib.suppress(TimeoutError):  # the checker reports leftovers
            await eventually(lambda: not self._left(), _LEAVE_SEC)
        self.log.write(What.LEFT, names=self._left())
        with Library.open(self._library) as library:
            self.log.write(What.KEPT, names=_names(library.records(kinds=[RecordKind.CANDIDATE])))

    @property
    def _tracker_address(self) -> str:
        """The trackers' address for clients and agents."""
        return f"127.0.0.1:{self._links[TRACKER].port}"

    def _links_to(self, name: str) -> list[Link]:
        """Return the links that lead to a server."""
        return [self._links[name]]

    async def _open_links(self) -> None:
        for name in (TRACKER, *self.agents):
            self._links[name] = Link(self._rng)
            await self._links[name].open()

    def _close_links(self) -> None:
        for link in self._links.values():
            link.close()

    async def _start_trackers(self) -> None:
        await self._start(self._programs[TRACKER])
        credentials = self.folder / "credentials"
        (made,) = credentials.glob("*.pem")
        shutil.copy2(made, credentials / f"{self._tracker_address}.pem")

    def _make_storm(self, number: int, length_sec: float) -> list[Fault]:
        return make_storm(
            self.seed,
            number,
            first=self._faults,
            length_sec=length_sec,
            agents=self.agents,
            clients=[*self.clients, *self.tuners],
            devices=_DEVICES,
            kinds=_KINDS,
        )

    async def _perform(self, fault: Fault) -> None:
        if fault.target == LIBRARY:
            async with self._library_busy:
                self.log.write(What.FAULT, number=fault.number, text=str(fault))
                await self._fill(fault)
            return
        if fault.kind in (Kind.DRAIN, Kind.BOOK):
            await (self._drain(fault) if fault.kind is Kind.DRAIN else self._book(fault))
            return
        program = self._programs[fault.target]
        async with program.busy:
            self.log.write(What.FAULT, number=fault.number, text=str(fault))
            match fault.kind:
                case Kind.KILL | Kind.TEAR:
                    await program.kill()
                    if fault.kind is Kind.TEAR:
                        torn = disks.tear_last_page(self.folder / TRACKER / "journal.sqlite", self._rng)
                        self.log.write(What.FAULT, number=fault.number, text=f"tore {torn}")
                    await asyncio.sleep(fault.for_sec)
                    await self._start(program)
                case Kind.STOP:
                    program.signal(signal.SIGSTOP)
                    await asyncio.sleep(fault.for_sec)
                    program.signal(signal.SIGCONT)
                case Kind.WORKERS:
                    await self._stop_workers(program, fault.for_sec)
                case Kind.FILL:
                    await self._fill(fault)
                case Kind.STEP:
                    program.set_clock(fault.amount)
                case _:
                    await self._disturb(self._links_to(fault.target), fault)

    async def _drain(self, fault: Fault) -> None:
        """Drain a device and resume it. Neither need succeed: the tracker may be away.

        A resume without an answer may take effect late, so the device's next drain proves nothing until the calm.
        """
        device = fault.target
        async with self._drains[device]:
            self.log.write(What.FAULT, number=fault.number, text=str(fault))
            repairs, asked_sec = self._repairs, time.monotonic()
            if await self._judge("drain", device) is not None and device not in self._unsure:
                answer = await self._ask("devices", "show", device, "--json")
                shown = json.loads(answer) if answer is not None else {}
                # After a takeover, the drain and this question may reach different trackers.
                if (shown.get("health_mark") or {}).get("state") == HealthState.DRAINING and repairs == self._repairs:
                    # A takeover since it was asked may have lost it.
                    epoch = int(shown.get("epoch", 0))
                    self.log.write(What.DRAINED, device=f"devices/{device}", epoch=epoch, at_sec=asked_sec)
            await asyncio.sleep(fault.for_sec)
            self.log.write(What.RESUMING, device=f"devices/{device}")
            if await self._judge("resume", device) is None:
                self._unsure.add(device)

    async def _book(self, fault: Fault) -> None:
        """Book a device, use it, and cancel the booking. None of it need succeed."""
        self.log.write(What.FAULT, number=fault.number, text=str(fault))
        words = ("book", fault.target, "--from", f"{SHORT_SEC + 1:g}s", "--for", "60s", "--json")
        for _ in range(_BOOK_TRIES):
            if (shown := await self._ask(*words)) is None:
                continue
            (booking,) = json.loads(shown)["bookings"]
            await self._ask("acquire", "--booking", booking["name"], "--wait-timeout", f"{SHORT_SEC + 5:g}", "true")
            await asyncio.sleep(fault.for_sec)
            await self._ask("bookings", "cancel", booking["name"])
            return

    async def _cancel_bookings(self) -> None:
        """Cancel all bookings: one of a clock that was ahead would keep a device from leases for an hour."""
        for _ in range(_MOST_TRIES):
            shown = await self._ask("bookings", "--json")
            if shown is None:
                continue
            names = [each["name"] for each in json.loads(shown)["bookings"]]
            if not names:
                return
            for name in names:
                await self._ask("bookings", "cancel", name)

    async def _resume_all(self) -> None:
        """Resume all devices, quarantined ones too."""
        for device in _DEVICES:
            self.log.write(What.RESUMING, device=f"devices/{device}")
            for _ in range(_MOST_TRIES):
                if await self._judge("resume", device) is not None:
                    self._unsure.discard(device)
                    break

    async def _judge(self, command: str, device: str) -> str | None:
        return await self._ask("devices", command, f"name={device}", "--reason", "chaos", "--json")

    async def _ask(self, *words: str) -> str | None:
        """Return the output of a `fleet` command as an admin; None if it failed."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "fleet", *words, "--connect-timeout", "3"),
            *("--tracker", self._tracker_address),
            cwd=REPOSITORY,
            env=own_environment(self.folder, self._shim),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        out, _ = await process.communicate()
        return out.decode() if process.returncode == 0 else None

    async def _disturb(self, links: Sequence[Link], fault: Fault) -> None:
        with contextlib.ExitStack() as disturbances:
            for link in links:
                match fault.kind:
                    case Kind.CUT:
                        disturbances.enter_context(link.refusing())
                    case Kind.HOLD:
                        disturbances.enter_context(link.holding())
                    case _:
                        disturbances.enter_context(link.delaying(fault.amount))
            await asyncio.sleep(fault.for_sec)

    async def _fill(self, fault: Fault) -> None:
        folder = self.folder / fault.target
        disks.fill(folder)
        await asyncio.sleep(fault.for_sec)
        disks.make_room(folder)

    async def _stop_workers(self, program: Program, for_sec: float) -> None:
        stopped = program.children()
        _signal_all(stopped, signal.SIGSTOP)
        await asyncio.sleep(for_sec)
        _signal_all(stopped, signal.SIGCONT)

    async def _start(self, program: Program) -> None:
        """Start a program; repair a tracker's damaged journal as its error message tells an operator to."""
        code = await program.start()
        for answer in ("--restore", "--empty"):
            if code is not None and program.name in self.trackers:
                self._repairs += 1
                for device in _DEVICES:  # the former journal may lack their marks
                    self.log.write(What.RESUMING, device=f"devices/{device}")
                text = f"{program.name} refused its journal ({program.last_words()}): {answer}"
                self.log.write(What.FAULT, text=text)
                await self._fsck(program.name, answer)
                code = await program.start()
        if code is not None:
            self.log.write(What.ENDED, who=program.name, text=f"at its start, exit code {code}; {program.last_words()}")
        if program.name in self._links:
            self._links[program.name].target_port = program.port

    async def _stop(self, program: Program) -> None:
        async with program.busy:
            await program.stop()

    async def _fsck(self, name: str, answer: str) -> None:
        command = ["-m", "fleet", "tracker", "fsck", answer, "--state-dir", str(self.folder / name)]
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *command,
            cwd=REPOSITORY,
            env=own_environment(self.folder, self._shim),
            stderr=asyncio.subprocess.DEVNULL,
        )
        await process.wait()

    def _make_wares(self) -> None:
        self._wares.mkdir()
        for number, content in enumerate(_WARES):
            (self._wares / f"{number}.sim").write_text(f"{content} {number}")
        run_module("tests.chaos.kernel", self._wares / "kernel.so")
        source = Path(__file__).with_name("stepped_clock.c")
        subprocess.run(["cc", "-O1", "-shared", "-fPIC", source, "-o", self._shim], check=True)
        (self.folder / "tmp").mkdir()
        for device in _DEVICES:
            path = self.logs / f"devices-{device}.jsonl"
            path.touch()
            path.chmod(0o666)  # workers may be other users

    def _make_programs(self) -> None:
        tracker = self._tracker_address
        install(self.folder / _OBSERVERS)
        self._make_trackers()
        add = self._add_program
        for name, devices in zip(self.agents, _AGENTS, strict=True):
            config = self.folder / f"{name}.yaml"
            shown = {"devices": devices, "advertise_address": f"127.0.0.1:{self._links[name].port}"}
            config.write_text(yaml.safe_dump(shown))
            words = ["-m", "tests.chaos.agent", "--tracker", tracker, "--config", str(config)]
            add(name, [*words, "--port", "0", "--state-dir", str(self.folder / name)], "agent")
        for name in self.clients:
            words = ["-m", "tests.chaos.client", "--tracker", tracker, "--name", name, "--holders", str(_HOLDERS)]
            words += ["--library", str(self._library), "--wares", str(self._wares), "--ttl", str(self._ttl_sec)]
            add(name, [*words, "--log", str(self.logs / f"{name}.jsonl")])

        if self.tuners:
            words = [
                "-m",
                "fleet",
                "tune",
                "matmul-32",
                "--on",
                "cpu",
                "--trials",
                str(_TUNED_TRIALS),
                "--exhaust",
                "--json",
            ]
            self._programs[_TUNER] = Program(
                _TUNER,
                lambda: [*words, "--tracker", tracker, "--library", str(self._library)],
                folder=self.folder,
                log=self.log,
                environment=self._environment_of(_TUNER),
                on_end=self._tuned,
                stop_codes=(0, 1, 130, 128 + signal.SIGTERM, -signal.SIGTERM),  # wherever a signal interrupts it
            )

    def _make_trackers(self) -> None:
        self._add_program(TRACKER, self._tracker_words("fleet.tracker", TRACKER, port=0), TRACKER)

    def _tracker_words(self, module: str, name: str, *, port: int) -> list[str]:
        rules = self.folder / "tracker.yaml"
        rules.write_text(_RULES)
        words = ["-m", module, "--no-discovery", "--config", str(rules), "--port", str(port)]
        return [*words, "--state-dir", str(self.folder / name)]

    def _add_program(self, name: str, words: list[str], ready: str = "") -> None:
        self._programs[name] = Program(
            name,
            lambda: words,
            folder=self.folder,
            log=self.log,
            environment=self._environment_of(name),
            ready=ready,
        )

    def _environment_of(self, name: str) -> dict[str, str]:
        environment = own_environment(self.folder, self._shim)
        if name not in self.trackers:
            return environment
        paths = os.pathsep.join([environment["PYTHONPATH"], str(self.folder / _OBSERVERS)])
        return {
            **environment,
            "PYTHONPATH": paths,
            LOG: str(self.logs / f"{name}.jsonl"),
            STATE: str(self.folder / name),
        }

    async def _tuned(self, code: int) -> None:
        """Record the results that a tuning run reported, and start the next."""
        tuner = self._programs[_TUNER]
        if code:
            self.log.write(What.LOST, who=_TUNER, text=f"exit code {code}; {tuner.last_words()}")
        else:
            told = json.loads(tuner.output())
            for number in range(1, told["trials"] + 1):
                self.log.write(What.RECORDED, who=_TUNER, run=f"{told['job']}#{number}")
        await asyncio.sleep(_PAUSE_SEC)
        async with tuner.busy:
            if tuner.is_wanted and not tuner.is_running:
                await self._start(tuner)

    def _served(self, sizes: dict[Path, int], since_sec: float) -> set[str]:
        found = set()
        for path in self.logs.glob("client-*.jsonl"):
            with path.open("rb") as file:
                file.seek(sizes.get(path, 0))
                lines = file.read().split(b"\n")[:-1]
            for event in map(json.loads, lines):
                if event["what"] == What.SERVED and event["at_sec"] >= since_sec:
                    found.add(event["who"])
        return found

    def _left(self) -> list[str]:
        others = [process for process in psutil.process_iter(["name"]) if process.pid != psutil.Process().pid]
        ports = [c for c in psutil.net_connections("tcp") if c.status == psutil.CONN_LISTEN]
        folders = [self.folder / "tmp", Path("/dev/shm"), *(self.folder / name / "workers" for name in self.agents)]
        segments = Path("/proc/sysvipc/shm").read_text().splitlines()[1:]
        return [
            *(f"process {process.pid} {process.info['name']}" for process in alive(others)),
            *(f"port {port.laddr}" for port in ports),
            *(str(path) for folder in folders if folder.exists() for path in folder.iterdir()),
            *(f"shared memory {segment}" for segment in segments),
        ]


def _names(records: Sequence[Record]) -> list[str]:
    """Return the names of records: the client's own, or the job's name and a running number."""
    counts = Counter[str]()
    names = []
    for record in records:
        counts[record.job_name] += 1
        names.append(f"{record.job_name}#{counts[record.job_name]}" if record.job_name else record.uid)
    return names


def _signal_all(processes: Sequence[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        try:
            process.send_signal(number)
        except psutil.NoSuchProcess:
            continue
