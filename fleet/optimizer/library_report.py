"""Reads the figures of a library's report. Reads no programs and no traces."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from glob import escape

from fleet.base.text import sanitize
from fleet.domain.freshness import judge
from fleet.domain.scope import RecordScope
from fleet.domain.tvm_versions import tvm_version as installed_tvm
from fleet.library import Library
from fleet.optimizer.kind_coverage import cover_kinds
from fleet.optimizer.static_quality import instructions, static_qualities
from fleet.reports.library_figures import LibraryFigures, Regression, points_of, regressions_of

MAX_AGE = timedelta(days=180)
"""As of `fleet library stale`."""


def read_figures(library: Library, *, max_age: timedelta = MAX_AGE) -> LibraryFigures:
    """Return the figures of a library.

    Freshness and coverage count the records of the installed TVM; those of all versions if it has none.
    """
    now, scopes, times, outlines = datetime.now(UTC), library.scopes(), library.build_times(), library.outlines()
    version = installed_tvm()
    if version not in {scope.tvm_version for scope in scopes}:
        version = None
    counted = [scope for scope in scopes if version in (None, scope.tvm_version)]
    in_use = [time for time in times if version in (None, time.tvm_version)]
    kept = library.kept_times(counted)
    found = regressions_of(times, {outline.shash: outline.operator for outline in outlines})
    return LibraryFigures(
        made_at=now,
        tvm_version=version,
        max_age=max_age,
        freshness=judge(kept, library.environments(), now=now, max_age=max_age),
        candidates=sum(time.candidates for time in times),
        workloads=len({time.workload for time in times}),
        coverage=cover_kinds(outlines, in_use, _enough(library, scopes)),
        points=points_of(times),
        regressions=_with_commands(library, found),
    )


def _enough(library: Library, scopes: Sequence[RecordScope]) -> dict[str, frozenset[str]]:
    """Return the kinds with static schedules that are enough, by device model: on its newest target."""
    targets = {scope.device_model: scope.target_json for scope in scopes}
    by_instructions = {instructions(target): target for target in targets.values()}
    kinds = {
        key: frozenset(kind for kind, one in static_qualities(library, target).items() if one.is_enough)
        for key, target in by_instructions.items()
    }
    return {model: kinds[instructions(target)] for model, target in targets.items()}


def _with_commands(library: Library, found: Sequence[Regression]) -> list[Regression]:
    jobs = library.jobs_of([one.now.last_id for one in found])
    return [replace(one, command=_command(one, *jobs.get(one.now.last_id, ("", {})))) for one in found]


def _command(one: Regression, title: str, conditions: Mapping[str, object]) -> str:
    """Return a command that searches the workload again or, without a job, shows its records."""
    selector = conditions.get("selector")
    if title and isinstance(selector, str):
        words = ["fleet", "tune", title, "--on", selector, "--tasks", escape(one.operator)]
    else:
        words = ["fleet", "library", "best", one.workload, "--device-model", one.now.device_model]
        words += ["--tvm-version", "all"]
    return shlex.join(map(sanitize, words))
