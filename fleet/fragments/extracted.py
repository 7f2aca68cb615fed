"""Workloads of a model, with fragments that may be faithful. Lowering them is left to tasks in the background."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from cross.targets.target import Target
from fleet.domain.workload import Workload
from fleet.fragments.captured import CapturedModel
from fleet.fragments.faithful import candidates_of
from fleet.fragments.fragment import Fragment
from fleet.fragments.stored import to_stored
from fleet.models.model import Model
from fleet.workloads.extract import extract


@dataclass(frozen=True, slots=True, kw_only=True)
class Extracted:
    """Workloads of a model, the costliest first."""

    workloads: tuple[Workload, ...]
    faithful: Mapping[str, bytes] = field(default_factory=dict)
    """Known fragments by workload hash, in stored form."""

    candidates: tuple[tuple[bytes, ...], ...] = ()
    """For each anchor of the model fragments in stored form, likely ones first; see `faithful_of`."""


def extracted(model: Model, target: Target, *, is_compiled_next: bool = False) -> Extracted:
    """Return the workloads of a model and their candidate fragments; see `extract`. For a worker of the pool.

    Capturing takes 3 % of the time of extraction for ResNet-18, lowering would double it.
    """
    captured: list[CapturedModel] = []
    workloads = extract(
        model, target, is_compiled_next=is_compiled_next, on_import=lambda mod: captured.append(CapturedModel(mod))
    )
    tries = [_stored(fragments) for one in captured for fragments in candidates_of(one)]
    return Extracted(workloads=tuple(workloads), candidates=tuple(dict.fromkeys(tries)))


def _stored(fragments: Iterable[Fragment]) -> tuple[bytes, ...]:
    return tuple(content for content in map(to_stored, fragments) if content is not None)
