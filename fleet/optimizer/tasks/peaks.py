"""Builds the programs that measure a device's roofline: stateless tasks for a worker of the build pool."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cross.compile.library import build
from cross.targets.target import Target
from fleet.artifacts.artifact import Artifact
from fleet.workloads.peak_programs import PeakProgram, arithmetic, reading


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakTask:
    """Program to build."""

    kind: Literal["arithmetic", "reading"]
    size: int
    """Lanes of a vector, or bytes to read."""

    target: Target
    out_dir: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltPeak:
    """A built program, with its amount of work in a run."""

    artifact: Artifact
    program: PeakProgram


def build_peak(task: PeakTask) -> BuiltPeak:
    """Compile and link.

    Raises:
        BuildError: it did not compile or link.
    """
    make = arithmetic if task.kind == "arithmetic" else reading
    mod, program = make(task.target, task.size)
    artifact = build(mod, task.target, Path(task.out_dir), args=program.args)
    return BuiltPeak(artifact=artifact, program=program)
