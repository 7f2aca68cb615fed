"""Runs inputs on a target, by mutation alone or guided by coverage, and keeps the harmful ones."""

from __future__ import annotations

import gc
import hashlib
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.fuzz.mutate import mutated
from tests.fuzz.target import Target
from tests.fuzz.watch import Limits, Taken, check, place_of

_SHARE_OF_OURS = 0.1
"""Of the inputs that coverage guides: ours repeat parts, which libFuzzer does little of."""

_GROWTH_AFTER = 2000
"""Inputs."""


@dataclass(slots=True, kw_only=True)
class Run:
    """Outcome of some inputs."""

    target: Target
    limits: Limits
    kept_in: Path | None = None
    """Folder for harmful inputs."""

    count: int = 0
    most: Taken = field(default_factory=Taken)
    findings: dict[str, bytes] = field(default_factory=dict)
    """The first input of each finding, by error and place."""

    def take(self, content: bytes) -> None:
        """Try one input."""
        self.count += 1
        try:
            self.most.note(check(self.target, content, self.limits))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
            self._keep(place_of(error), content, error)

    def _keep(self, place: str, content: bytes, error: Exception) -> None:
        known = self.findings.get(place)
        if known is not None and len(known) <= len(content):
            return
        self.findings[place] = content
        if self.kept_in is not None:
            self.kept_in.mkdir(parents=True, exist_ok=True)
            path = self.kept_in / hashlib.sha256(place.encode()).hexdigest()[:12]
            path.write_bytes(content)
            if known is None:
                print(f"{self.target.name}: {place}: {str(error)[:200]!r}; the input is {path}", flush=True)


def inputs_of(target: Target, count: int, seed: int) -> Iterator[bytes]:
    """Yield the target's seeds and then `count` mutations of them."""
    starts = target.starts()
    yield from starts
    rng = random.Random(f"{target.name} {seed}")
    for _ in range(count):
        yield mutated(rng, starts, words=target.words, most_bytes=target.most_bytes, large_bytes=target.large_bytes)


def explore(run: Run, count: int, seed: int) -> None:
    """Try inputs that are made by mutation alone."""
    for content in inputs_of(run.target, count, seed):
        run.take(content)


def explore_guided(run: Run, count: int, seed: int, *, most_cpu_sec: float) -> None:
    """Try inputs that libFuzzer makes, guided by coverage. Ends the process, with 1 if anything was found."""
    import atheris

    started, target, rng = time.monotonic(), run.target, random.Random(f"{run.target.name} {seed}")
    starts = target.starts()
    growth = Growth()
    gc.freeze()

    def one_input(content: bytes) -> None:
        run.take(content)
        growth.note()
        if run.count == count or time.process_time() > most_cpu_sec:
            report(run, time.monotonic() - started, growth)
            os._exit(1 if run.findings else 0)  # libFuzzer would report success, and its statistics

    def mutate(content: bytes, most_bytes: int, _: int) -> bytes:
        if rng.random() < _SHARE_OF_OURS:
            made = mutated(
                rng,
                [content[: target.most_bytes], *starts],
                words=target.words,
                most_bytes=target.most_bytes,
                large_bytes=target.large_bytes,
            )
            return made[:most_bytes]
        return bytes(atheris.Mutate(content[: target.most_bytes], min(most_bytes, target.most_bytes)))

    with tempfile.TemporaryDirectory(prefix="fleet-fuzz-") as folder:
        corpus = Path(folder) / "corpus"
        corpus.mkdir()
        for number, content in enumerate(starts):
            (corpus / str(number)).write_bytes(content)
        words = Path(folder) / "words"
        words.write_text("".join(f'"{_escaped(word)}"\n' for word in target.words or (b"\0",)))
        options = [
            *(f"-runs={count}", f"-seed={seed}", f"-max_len={target.large_bytes + target.most_bytes}"),
            *("-len_control=0", "-timeout=60", "-rss_limit_mb=6000", "-verbosity=0", "-detect_leaks=0"),
            *(f"-dict={words}", f"-artifact_prefix={run.kept_in or folder}/killed-", str(corpus)),
        ]
        atheris.Setup([sys.argv[0], *options], one_input, custom_mutator=mutate)
        atheris.Fuzz()


class Growth:
    """Growth of the process's memory since the first inputs, after which caches are full and modules imported."""

    def __init__(self) -> None:
        self._count = 0
        self._before_mib = 0.0

    def note(self) -> None:
        """Count an input."""
        self._count += 1
        if self._count == _GROWTH_AFTER:
            self._before_mib = _resident_mib()

    @property
    def mib(self) -> float:
        """Growth since then; 0 if there were fewer inputs."""
        return _resident_mib() - self._before_mib if self._count >= _GROWTH_AFTER else 0.0


def report(run: Run, took_sec: float, growth: Growth) -> None:
    """Print the outcome of a run, in one line."""
    most = run.most
    print(
        f"{run.target.name:24} {run.count:>9,} inputs  {run.count / max(took_sec, 1e-9):>7,.0f} /s  "
        f"longest {most.cpu_sec * 1e3:7.1f} ms  turn {most.turn_sec * 1e3:5.1f} ms  "
        f"one input {most.memory_mib:5.1f} MiB  growth {growth.mib:6.1f} MiB  findings {len(run.findings)}",
        flush=True,
    )


def _resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


def _escaped(word: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in word)
