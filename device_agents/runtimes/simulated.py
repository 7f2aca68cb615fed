"""Runs simulated artifacts inside a real worker process, with latency, noise and real faults.

A candidate's behaviour follows from its content, so that it is the same everywhere and every time:

- content that starts with a fault (up to a space, a colon or the end) does that: b"crash", b"sleep:2.5", b"hang 17",
  see device_agents.runtimes.simulated_faults;
- else a share `crash_rate` of all contents crash and a share `hang_rate` hang;
- else it runs for `latency_us` times something between 0.5 and 4.5 that its digest decides, give or take `noise`;
  content that starts with b"latency_us:120" runs that long instead.

`Call` copies the first tensor into every output of its size and leaves the others zero.
"""

from __future__ import annotations

import hashlib
import math
import random
import time
from pathlib import Path

from device_agents.runtimes.evaluating import run_schedule
from device_agents.runtimes.proving import NotProvable, ProofParts
from device_agents.runtimes.simulated_faults import FAULTS, refuse_if_broken
from fleet.domain.measuring import Call, Clocks, Measurement, Tensor, TensorSpec, Trial
from fleet.domain.proving import ProofOrder

_ITEM_BYTES = {"bool": 1, "int8": 1, "uint8": 1, "int16": 2, "float16": 2, "bfloat16": 2, "int32": 4, "float32": 4}


def preload() -> None:
    """Do nothing: this module is all that has to be loaded."""


class SimulatedRuntime:
    """Simulates running candidates."""

    def __init__(
        self,
        *,
        latency_us: float = 100.0,
        noise: float = 0.01,
        seed: int = 0,
        crash_rate: float = 0.0,
        hang_rate: float = 0.0,
        load_ms: float = 0.0,
        time_scale: float = 1.0,
    ) -> None:
        self._latency_us = latency_us
        self._noise = noise
        self._seed = seed
        self._crash_rate = crash_rate
        self._hang_rate = hang_rate
        self._load_ms = load_ms
        self._time_scale = time_scale

    def measure(self, trial: Trial, path: str) -> Measurement:
        """Return simulated times of a candidate."""
        started = time.perf_counter()
        content = self._load(path)
        loaded = time.perf_counter()
        self._perform_faults(content)
        kernel_sec = self._kernel_sec(content)
        draw = random.Random(f"{self._seed}:{trial.artifact_digest}:{trial.candidate_id}")

        def time_repeats(*, number: int, repeat: int, min_repeat_ms: int) -> list[float]:
            runs = max(number, round(min_repeat_ms / 1000 / kernel_sec))
            time.sleep(self._time_scale * kernel_sec * (runs * repeat + 1))  # one warm-up run
            return [kernel_sec * max(0.1, draw.gauss(1, self._noise)) for _ in range(repeat)]

        timing = run_schedule(trial.evaluator, time_repeats)
        ended = time.perf_counter()
        return Measurement(
            candidate_id=trial.candidate_id,
            run_secs=tuple(timing.secs),
            stopped=timing.stopped,
            clocks=Clocks(load_sec=loaded - started, run_sec=ended - loaded),
        )

    def call(self, call: Call, path: str) -> list[Tensor]:
        """Return simulated outputs of a function."""
        content = self._load(path)
        self._perform_faults(content)
        time.sleep(self._time_scale * self._kernel_sec(content))
        given = next((argument.content for argument in call.args if isinstance(argument, Tensor)), b"")
        return [
            _output(argument, given)
            for argument in call.args
            if isinstance(argument, TensorSpec) and argument.is_output
        ]

    def reference(self) -> list[float]:
        """Return no times: simulated times say nothing about hardware."""
        return []

    def prepare_proof(self, order: ProofOrder) -> ProofParts:
        raise NotProvable("it only pretends to run programs")

    def _load(self, path: str) -> bytes:
        time.sleep(self._load_ms / 1000)
        return Path(path).read_bytes()

    def _perform_faults(self, content: bytes) -> None:
        refuse_if_broken()
        word, _, rest = content[:200].decode(errors="replace").partition(":")
        name = word.split(" ")[0].strip()
        if name in FAULTS:
            FAULTS[name](rest)
        elif self._fraction(content, "crash") < self._crash_rate:
            FAULTS["crash"]("")
        elif self._fraction(content, "hang") < self._hang_rate:
            FAULTS["hang"]("")

    def _kernel_sec(self, content: bytes) -> float:
        if content.startswith(b"latency_us:"):
            return float(content[len(b"latency_us:") :].split()[0]) / 1e6
        return self._latency_us * (0.5 + 4 * self._fraction(content, "latency")) / 1e6

    def _fraction(self, content: bytes, what: str) -> float:
        """Return a number in 0..1, derived from content, seed and purpose."""
        digest = hashlib.sha256(f"{self._seed}:{what}:".encode() + content).digest()
        return int.from_bytes(digest[:6], "big") / 2**48


def _output(spec: TensorSpec, given: bytes) -> Tensor:
    size = _ITEM_BYTES.get(spec.dtype, 8) * math.prod(spec.shape)
    return Tensor(spec, given if len(given) == size else bytes(size))
