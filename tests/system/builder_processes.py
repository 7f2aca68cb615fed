"""A scheduler and builders as processes, to be killed."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from fleet.building.cluster.address import own_certs
from tests.programs import environment
from tests.system.fleet_processes import FLEET


@dataclass
class Served:
    """One `fleet builder` process."""

    words: Sequence[str]
    log: Path
    around: Sequence[str] = ()
    """Prefix of the command on its machine."""

    process: subprocess.Popen[str] = field(init=False)
    address: str = field(init=False, default="")

    def start(self) -> Served:
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [*self.around, FLEET, "builder", *self.words],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**environment(), "PYTHONPATH": str(Path(__file__).parents[2])},  # for the tests' tasks
            )
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if match := re.search(r"(?:listening on|joined as) (\S+)", line):
                self.address = match[1]
                return self
        raise AssertionError(f"{self.words} did not start: {self.log.read_text()}")

    def kill(self) -> None:
        """kill -9, and reap."""
        self.process.kill()
        self._reap()

    def stop(self) -> int:
        """Terminate it, and return its exit code."""
        self.process.terminate()
        return self._reap()

    def _reap(self) -> int:
        code = self.process.wait(60)
        if self.process.stdout is not None:
            self.process.stdout.close()
        return code


@dataclass
class Cluster:
    """A scheduler and its builders, by TLS."""

    certs: Path
    scheduler: Served
    builders: list[Served]

    @property
    def options(self) -> list[str]:
        """Options of a command that uses this cluster."""
        return ["--dask", self.scheduler.address, "--dask-certs", str(self.certs)]


@contextmanager
def running_cluster(
    folder: Path,
    *,
    hosts: Sequence[str] = ("127.0.0.1",) * 3,
    arounds: Sequence[Sequence[str]] = ((),) * 3,
    has_own_certs: bool = False,
) -> Iterator[Cluster]:
    """Run a scheduler, and a builder with one process on each further host.

    Args:
        hosts: addresses to listen on; "": the default.
        has_own_certs: use the certificates that the scheduler makes for this account.
    """
    certs = own_certs() if has_own_certs else folder / "certs"
    known: list[str] = []
    if not has_own_certs:
        subprocess.run([FLEET, "builder", "certs", str(certs)], check=True, capture_output=True)
        known = ["--dask-certs", str(certs)]
    started: list[Served] = []
    try:
        words = ["scheduler", "--host", hosts[0], "--port", "0", *known]
        scheduler = Served(words, folder / "scheduler.log", arounds[0]).start()
        started.append(scheduler)
        for number, (host, around) in enumerate(zip(hosts[1:], arounds[1:], strict=True)):
            words = ["serve", "--dask", scheduler.address, *known, "--workers", "1"]
            words += ["--host", host] if host else []
            started.append(Served(words, folder / f"builder{number}.log", around).start())
        yield Cluster(certs, scheduler, started[1:])
    finally:
        for each in reversed(started):
            each.stop()
