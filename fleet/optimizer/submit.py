"""Submits a job: checks that the optimizer can run it, and stores it with its model's files."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from fleet.base.network import check_address
from fleet.base.plain import to_object
from fleet.domain.selectors import parse_selector
from fleet.errors import InvalidRequest
from fleet.jobs.fleets import NOWHERE, Destination
from fleet.jobs.options import TuneOptions
from fleet.jobs.spec import JobOrder, check_is_data
from fleet.library import Job, Library
from fleet.models.importers import importer_of
from fleet.models.model import check_exists
from fleet.optimizer.strategies import strategy_of

_MOST = 2**31 - 1
"""Trials, and seeds: limit of a database's integer."""

_MOST_MINUTES = 366 * 24 * 60


def check_options(options: TuneOptions, now: datetime) -> None:
    """Refuse jobs that could never run, before they are stored.

    Raises:
        InvalidRequest: a malformed selector, an unknown strategy, a deadline that is past, a number out of bounds.
        ConfigError: a cluster of builders that cannot be used.
    """
    if options.cluster is not None:
        options.cluster.check()
    if options.snapshots is not None:
        check_address(options.snapshots, "the address of --snapshots")
    for selector in options.selectors:
        parse_selector(selector)
    strategy_of(options.strategy)
    if options.deadline is not None and options.deadline <= now:
        raise InvalidRequest(f"the deadline {options.deadline:%Y-%m-%d %H:%M:%S} is past")
    if options.minutes is not None and not 0 < options.minutes <= _MOST_MINUTES:
        raise InvalidRequest(f"a search of {options.minutes:g} minutes cannot be made; give from above zero to a year")
    if options.target_ms is not None and not 0 < options.target_ms < math.inf:
        raise InvalidRequest(f"a target latency of {options.target_ms:g} ms cannot be reached; give one above zero")
    if not 0 <= options.until_gain < 1:
        raise InvalidRequest(f"a gain of {options.until_gain:.3%} ends no search; give from 0 to less than 100 %")
    if options.devices < 1:
        raise InvalidRequest(f"nothing can be measured on {options.devices} devices")
    if options.trials is not None and not 0 <= options.trials <= _MOST:
        raise InvalidRequest(f"{options.trials} trials cannot be made; choose from 0 to {_MOST}")
    if not 0 <= options.seed <= _MOST:
        raise InvalidRequest(f"the seed {options.seed} is out of bounds; choose one from 0 to {_MOST}")


def submit(
    library: Library,
    options: TuneOptions,
    *,
    holder: str,
    owner: str = "",
    destination: Destination = NOWHERE,
) -> Job:
    """Store a job with its model's files, for any optimizer to run.

    Args:
        owner: see `Job.owner`.
        destination: fleet that the job is for.

    Raises:
        ImportFailed: the model does not exist, or names weights outside of its folder.
        InvalidRequest: see `check_options` and `check_is_data`.
        LibraryError, DiskFull: it could not be stored.
    """
    check_exists(options.model, takes_programs=True)
    check_options(options, datetime.now(UTC))
    check_is_data(options.model)
    source = options.model.parent
    files = {path: library.model_files.add(source / path) for path in _files_of(options.model)}
    anywhere = replace(options, model=Path(options.model.name), tracker=None, library=None, snapshots=None)
    order = JobOrder(
        options=replace(anywhere, workers=None, cluster=None, build_cache=None),
        files=files,
        tracker=options.tracker or "",
        fleet_id=destination.fleet_id,
        account=destination.account,
    )
    job = library.queue.submit(
        title=options.title,
        spec=to_object(order),
        priority=options.priority,
        holder=holder,
        owner=owner,
        tags=options.tags,
    )
    for path in files:  # once more: `fleet library prune` removes files that no job refers to
        library.model_files.add(source / path)
    return job


def _files_of(model: Path) -> list[str]:
    """Return the paths of a model's files, relative to its folder."""
    importer = importer_of(model)
    files = importer.files(model) if importer else []
    return [file.relative_to(model.parent).as_posix() for file in files]
