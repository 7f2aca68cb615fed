"""Stored specification of a submitted job: its options, and its model's files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fleet.base.plain import from_plain
from fleet.errors import InvalidRequest
from fleet.jobs.options import TuneOptions
from fleet.library import Job, Library
from fleet.models.importers import IMPORTERS, has_code, importer_of

FORMAT = 1
"""Incremented when an older optimizer would misread an order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOrder:
    """A submitted job in a form that any optimizer can run."""

    options: TuneOptions
    """Options as the user gave them; `model` is relative to where the files are written."""

    files: Mapping[str, str] = field(default_factory=dict)
    """Digests in the library by relative path."""

    tracker: str = ""
    """Tracker address of the fleet to tune on; empty: the fleet of the optimizer that claims the job."""

    fleet_id: str = ""
    """Id of that fleet by its tracker; "": it did not answer when the job was submitted."""

    account: str = ""
    """The submitter's account in that fleet; "": unknown."""

    format: int = FORMAT


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
