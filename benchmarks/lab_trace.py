"""A week of a lab, generated from a seed: people at prompts, CI, tuning jobs, and a user who asks for very much.

People and CI also request sets of two to four boards.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from fleet.domain.leases import LeaseClass

DAY_SEC = 86_400.0
BOARDS: Mapping[str, int] = {
    "x86": 40,
    "rpi4": 60,
    "rpi5": 30,
    "orin": 12,
    "mali": 16,
    "adreno": 10,
    "pynq": 6,
    "zcu": 3,
    "rtx": 10,
    "h100": 2,
    "mi300": 2,
    "riscv": 9,
}
"""Boards of each model."""
FAMILIES: Mapping[str, tuple[str, ...]] = {
    "aarch64": ("rpi4", "rpi5", "orin"),
    "opencl": ("mali", "adreno", "orin"),
    "gpu": ("rtx", "h100", "mi300", "orin"),
    "cpu": ("x86", "rpi4", "rpi5", "riscv"),
}
"""Models that each wider selector matches."""
MODELS: Mapping[str, tuple[str, ...]] = {**{name: (name,) for name in BOARDS}, **FAMILIES}
"""Models that each selector of the lab matches."""
HOG = "hog"

_PEOPLE: Mapping[str, float] = {
    "rpi5": 5,
    "rpi4": 6,
    "orin": 2.5,
    "mali": 3,
    "adreno": 2,
    "zcu": 0.5,
    "rtx": 2,
    "h100": 0.4,
    "mi300": 0.4,
    "aarch64": 8,
    "opencl": 4,
    "gpu": 4,
    "pynq": 1.2,
}
_CI: Mapping[str, float] = {
    "x86": 4,
    "rpi4": 5,
    "rpi5": 3,
    "mali": 1,
    "adreno": 0.7,
    "riscv": 1,
    "pynq": 0.5,
    "cpu": 4,
    "aarch64": 4,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One request, or the requests of a tuning job that are made together."""

    at_sec: float
    account: str
    lease_class: LeaseClass
    selector: str
    device_sec: float
    """Device time of each request; of a job, divided into leases."""
    count: int = 1
    also: tuple[str, ...] = ()
    """Selectors of the further boards of a set."""

    @property
    def selectors(self) -> tuple[str, ...]:
        """Selector of each board of one request."""
        return self.selector, *self.also


def week(*, seed: int, job_hours: float, has_hog: bool, days: float = 7.0) -> list[Arrival]:
    """Return all arrivals in order.

    Args:
        job_hours: mean time between the jobs of one tuning user [h]; less is more load.
        has_hog: on the second day one user asks for 2,000 device hours in 400 requests.
    """
    rng = random.Random(seed)
    arrivals = [*_people(rng, days), *_ci(rng, days), *_jobs(rng, days, job_hours)]
    arrivals += _sets(random.Random(f"{seed}:sets"), days)
    if has_hog:
        hog = Arrival(
            at_sec=1.42 * DAY_SEC,
            account=HOG,
            lease_class=LeaseClass.BATCH,
            selector="aarch64",
            device_sec=5 * 3600.0,
            count=400,
        )
        arrivals.append(hog)
    return sorted(arrivals, key=lambda arrival: arrival.at_sec)


def _people(rng: random.Random, days: float) -> Iterator[Arrival]:
    for number in range(14):
        at_sec = rng.expovariate(1 / 1500)
        while at_sec < days * DAY_SEC:
            is_day = 8 <= at_sec / 3600 % 24 < 18
            if rng.random() < (1.0 if is_day else 0.15):
                yield Arrival(
                    at_sec=at_sec,
                    account=f"person-{number}",
                    lease_class=LeaseClass.INTERACTIVE,
                    selector=_pick(rng, _PEOPLE),
                    device_sec=720 * math.exp(rng.gauss(0, 0.8)),
                )
            at_sec += rng.expovariate(1 / 1500)


def _ci(rng: random.Random, days: float) -> Iterator[Arrival]:
    for number in range(4):
        for start in range(int(days * DAY_SEC / 1800)):
            for _ in range(rng.randint(5, 25)):
                yield Arrival(
                    at_sec=start * 1800 + number * 400 + 20 * rng.random(),
                    account=f"ci-{number}",
                    lease_class=LeaseClass.NORMAL,
                    selector=_pick(rng, _CI),
                    device_sec=60 * math.exp(rng.gauss(0, 0.7)),
                )


def _jobs(rng: random.Random, days: float, job_hours: float) -> Iterator[Arrival]:
    boards = {selector: sum(BOARDS[model] for model in models) for selector, models in MODELS.items()}
    weights = {selector: count * (0.3 if selector in FAMILIES else 1.0) for selector, count in boards.items()}
    for number in range(12):
        at_sec = 7200 * rng.random()
        while at_sec < days * DAY_SEC:
            selector = _pick(rng, weights)
            yield Arrival(
                at_sec=at_sec,
                account=f"tuner-{number}",
                lease_class=LeaseClass.BATCH,
                selector=selector,
                device_sec=2.2 * 3600 * math.exp(rng.gauss(0, 0.8)),
                count=max(1, min(12, int(boards[selector] * rng.uniform(0.15, 0.5)))),
            )
            at_sec += rng.expovariate(1 / (job_hours * 3600))


def _sets(rng: random.Random, days: float) -> Iterator[Arrival]:
    """Yield 40 sets of people and 96 of CI a day."""
    for at_sec in _moments(rng, days, DAY_SEC / 40):
        device_sec = 720 * math.exp(rng.gauss(0, 0.8))
        yield _set(rng, at_sec, f"person-{rng.randrange(14)}", LeaseClass.INTERACTIVE, _PEOPLE, device_sec)
    for at_sec in _moments(rng, days, DAY_SEC / 96):
        device_sec = 60 * math.exp(rng.gauss(0, 0.7))
        yield _set(rng, at_sec, f"ci-{rng.randrange(4)}", LeaseClass.NORMAL, _CI, device_sec)


def _moments(rng: random.Random, days: float, pause_sec: float) -> Iterator[float]:
    at_sec = rng.expovariate(1 / pause_sec)
    while at_sec < days * DAY_SEC:
        yield at_sec
        at_sec += rng.expovariate(1 / pause_sec)


def _set(
    rng: random.Random,
    at_sec: float,
    account: str,
    lease_class: LeaseClass,
    weights: Mapping[str, float],
    device_sec: float,
) -> Arrival:
    """Return a set of two to four boards that exist: half of the sets have one selector for all."""
    while True:
        size = rng.randint(2, 4)
        is_uniform = rng.random() < 0.5
        first, *also = [_pick(rng, weights)] * size if is_uniform else [_pick(rng, weights) for _ in range(size)]
        counts = Counter([first, *also])
        if all(count <= sum(BOARDS[model] for model in MODELS[name]) for name, count in counts.items()):
            return Arrival(
                at_sec=at_sec,
                account=account,
                lease_class=lease_class,
                selector=first,
                device_sec=device_sec,
                also=tuple(also),
            )


def _pick(rng: random.Random, weights: Mapping[str, float]) -> str:
    return rng.choices(list(weights), list(weights.values()))[0]
