"""Stored specification of a submitted job: its options, and its model's files."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from fleet.base.network import check_address
from fleet.base.plain import from_plain, to_plain
from fleet.domain.selectors import parse_selector
from fleet.errors import InvalidRequest
from fleet.library import Job, Library
from fleet.models.importers import IMPORTERS, has_code, importer_of
from fleet.models.model import check_exists
from fleet.optimizer.options import TuneOptions
from fleet.optimizer.strategies import strategy_of

FORMAT = 1
"""Incremented when an older optimizer would misread an order."""


_MOST = 2**31 - 1
"""Trials, and seeds: limit of a database's integer."""

_MOST_MINUTES = 366 * 24 * 60


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOrder:
    """A submitted job in a form that any optimizer can run."""

    options: TuneOptions
    """Options as the user gave them; `model` is relative to where the files are written."""

    files: Mapping[str, str] = field(default_factory=dict)
    """Digests in the library by relative path."""

    tracker: str = ""
    """Address of the fleet that it is for; "": that of the optimizer that takes it."""

    fleet_id: str = ""
    """Id of that fleet by its tracker; "": it did not answer when the job was submitted."""

    format: int = FORMAT

    def to_plain(self) -> dict[str, object]:
        """Return it as JSON values."""
        plain = to_plain(self)
        return plain if isinstance(plain, dict) else {}


def order_of(job: Job) -> JobOrder:
    """Return the order of a stored job.

    Raises:
        InvalidRequest: it has none, or one that this program cannot read.
    """
    if job.spec is None:
        raise InvalidRequest(f"{job.name} was not submitted; there is nothing to run it from")
    if job.spec.get("format") != FORMAT:
        raise InvalidRequest(f"{job.name} was submitted by another version of tvm-fleet; submit it again")
    return from_plain(JobOrder, dict(job.spec))


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
    if options.devices < 1:
        raise InvalidRequest(f"nothing can be measured on {options.devices} devices")
    if options.trials is not None and not 0 <= options.trials <= _MOST:
        raise InvalidRequest(f"{options.trials} trials cannot be made; choose from 0 to {_MOST}")
    if not 0 <= options.seed <= _MOST:
        raise InvalidRequest(f"the seed {options.seed} is out of bounds; choose one from 0 to {_MOST}")


def is_data(model: Path) -> bool:
    """Tell whether a model's file can be read without running code of its author, as the queue requires."""
    return importer_of(model) is not None and not has_code(model)


def check_is_data(model: Path) -> None:
    """Raise InvalidRequest for a model file with code: an optimizer would run it under its own account."""
    if not is_data(model):
        data = [importer for importer in IMPORTERS if not importer.frontend.has_code]
        known = ", ".join(sorted(form for importer in data for form in importer.forms))
        raise InvalidRequest(
            f"{model} is of a format that is code, and an optimizer runs no code of others; tune it with 'fleet tune', "
            f"or submit it as {known}"
        )


def submit(library: Library, options: TuneOptions, *, holder: str, owner: str = "", fleet_id: str = "") -> Job:
    """Store a job with its model's files, for any optimizer to run.

    Args:
        owner: see `Job.owner`.
        fleet_id: see `JobOrder`.

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
        fleet_id=fleet_id,
    )
    job = library.queue.submit(
        title=options.title, spec=order.to_plain(), priority=options.priority, holder=holder, owner=owner
    )
    for path in files:  # once more: `fleet library prune` removes files that no job refers to
        library.model_files.add(source / path)
    return job


def restore_model(library: Library, order: JobOrder, folder: Path) -> Path:
    """Write a job's model into a folder and return its path there.

    Raises:
        NotFound: the library has it no more, or damaged.
        LibraryError: it cannot be read.
        InvalidRequest: the order names a file without content, a path that leaves the folder, or a format that is
            code.
    """
    name = str(order.options.model)
    check_is_data(order.options.model)
    if name not in order.files:
        raise InvalidRequest(f"the order has no file {name!r}, and no file of this machine is taken; submit it again")
    for path, digest in order.files.items():
        place = folder / path
        if not place.resolve().is_relative_to(folder.resolve()):
            raise InvalidRequest(f"the model's file {path} would lie outside of its folder")
        place.parent.mkdir(parents=True, exist_ok=True)
        library.model_files.write(digest, place)
    return folder / name


def _files_of(model: Path) -> list[str]:
    """Return the paths of a model's files, relative to its folder."""
    importer = importer_of(model)
    files = importer.files(model) if importer else []
    return [file.relative_to(model.parent).as_posix() for file in files]
