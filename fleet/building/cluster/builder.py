"""A machine's builder inside its Dask worker: passes incoming tasks to our own build pool.

A Dask worker has threads, which cannot be stopped and share one fate. So its threads only wait: a task that crashes or
hangs does so in a process of the pool, within the task's time limit, and the Dask worker never notices.
"""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from cross.compile.cache import BuildCache
from cross.pool.build_pool import BuildPool
from cross.pool.worker import Answer
from fleet.artifacts.artifact import Artifact
from fleet.base.machine import machine_fingerprint
from fleet.building.build_candidate import BuildTask, build_candidate
from fleet.building.built_candidate import BuiltCandidate
from fleet.building.cluster.address import versions
from fleet.building.cluster.artifact_cache import ArtifactCache
from fleet.errors import BuildError, FleetError

T = TypeVar("T")

SLOT = "slot of "
"""Prefix of the name of Dask's resource for one process of a builder's pool, followed by the builder's versions."""

DELIVERY = "delivery by "
"""The same for deliveries of artifacts, which need not wait for builds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Errand:
    """A task on its way to a builder."""

    call: bytes
    """A pickled `functools.partial` of a module's function."""

    timeout_sec: float
    near: str = ""
    """Key of related tasks: preferably run it in the process that ran those."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOutcome:
    """Answer of a task that ran on a builder."""

    answer: Answer
    builder: str
    """The builder's address in its cluster."""

    host_fingerprint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltElsewhere(Artifact):
    """An artifact on the builder that made it; `path` is for a copy, if one is needed here."""

    task: BuildTask
    """Builds it again if that builder is gone."""

    builder: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Builder:
    """State of a builder's process."""

    pool: BuildPool
    folder: Path
    """Folder of its artifacts."""

    artifacts: ArtifactCache
    cache: BuildCache | None = None
    address: str = ""

    def run(self, errand: Errand) -> TaskOutcome:
        """Run a task in the pool, and wait for it."""
        call: partial[object] = pickle.loads(errand.call)  # noqa: S301 - the cluster is one domain of trust
        try:
            answer = Answer(value=self._run(call, errand))
        except FleetError as error:
            answer = Answer(error=error)
        except RuntimeError as error:  # the pool is shut down together with its builder
            answer = Answer(error=BuildError(f"the builder {self.address} was stopped: {error}"))
        return TaskOutcome(answer=answer, builder=self.address, host_fingerprint=machine_fingerprint())

    def build(self, task: BuildTask, timeout_sec: float) -> BuiltCandidate:
        """Build a candidate, and keep its file in the cache.

        Raises:
            BuildError, InvalidRequest: see `build_candidate`.
        """
        with tempfile.TemporaryDirectory(dir=self.folder) as out_dir:
            here = replace(task, out_dir=out_dir, cache=self.cache)
            built = self.pool.submit_within(timeout_sec, build_candidate, here).result()
            return replace(built, artifact=self.artifacts.put(built.artifact))

    def _run(self, call: partial[object], errand: Errand) -> object:
        if call.func is build_candidate:
            (task,) = call.args
            built = self.build(task, errand.timeout_sec)
            return replace(built, artifact=_as_elsewhere(built.artifact, task, self.address))
        if errand.near:
            return self.pool.submit_near(errand.near, errand.timeout_sec, call).result()
        return self.pool.submit_within(errand.timeout_sec, call).result()


def _as_elsewhere(artifact: Artifact, task: BuildTask, builder: str) -> BuiltElsewhere:
    known = {field.name: getattr(artifact, field.name) for field in fields(Artifact)}
    known["path"] = Path(task.out_dir, artifact.path.name)
    return BuiltElsewhere(**known, task=task, builder=builder)


_builder: Builder | None = None


def set_builder(builder: Builder | None) -> None:
    """Set the builder of this process, or None to clear it."""
    global _builder  # Dask calls functions by name, and a process has one builder
    _builder = builder


def this_builder() -> Builder:
    """Return the builder of this process.

    Raises:
        RuntimeError: it is no builder of ours.
    """
    if _builder is None:
        raise RuntimeError("this Dask worker is no builder: start those with 'fleet builder serve'")
    return _builder


def run_errand(errand: Errand) -> TaskOutcome:
    """Run a task on this machine; called by Dask."""
    return this_builder().run(errand)


def errand_of(fn: Callable[..., T], args: tuple[object, ...], kwargs: dict[str, object]) -> bytes:
    """Return a call in the form that is sent to a builder."""
    return pickle.dumps(partial(fn, *args, **kwargs))


def resource_name(kind: str) -> str:
    """Return the Dask resource that our tasks require: only builders with the same versions have it."""
    return f"{kind}{versions()}"
