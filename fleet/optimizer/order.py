"""What is stored of a job that somebody submits: its options, and its model's files."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from fleet.base.plain import from_plain, to_plain
from fleet.domain.selectors import parse_selector
from fleet.errors import InvalidRequest
from fleet.library import Job, Library
from fleet.models.model import check_exists, is_of_transformers
from fleet.optimizer.job import TuneOptions
from fleet.optimizer.strategies import strategy_of

if TYPE_CHECKING:
    from onnx import ModelProto

FORMAT = 1
"""Incremented when an older optimizer would misread an order."""

_OF_TRANSFORMERS = "hf:"
_MOST = 2**31 - 1
"""Trials, and seeds: what a database's integer holds."""

_MOST_MINUTES = 366 * 24 * 60


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOrder:
    """A job as any optimizer can run it."""

    options: TuneOptions
    """As its user gave them; `model` is relative to where the files are written."""

    files: Mapping[str, str] = field(default_factory=dict)
    """Digests in the library by relative path."""

    tracker: str = ""
    """Address of the fleet that it is for; "": that of whoever takes it."""

    fleet_id: str = ""
    """What that fleet's tracker calls it; "": it did not answer when the job was submitted."""

    format: int = FORMAT

    def to_plain(self) -> dict[str, object]:
        """Return what JSON holds of it."""
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
    """Refuse at once what could never run.

    Raises:
        InvalidRequest: a malformed selector, an unknown strategy, a deadline that is past, a number out of bounds.
        ConfigError: a cluster of builders that cannot be used.
    """
    if options.cluster is not None:
        options.cluster.check()
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


def submit(library: Library, options: TuneOptions, *, holder: str, fleet_id: str = "") -> Job:
    """Store a job with its model's files, for any optimizer to run.

    Args:
        fleet_id: see `JobOrder`.

    Raises:
        ImportFailed: there is no such model.
        InvalidRequest: see `check_options`.
        LibraryError, DiskFull: it could not be stored.
    """
    check_exists(options.model, takes_programs=True)
    check_options(options, datetime.now(UTC))
    source, name = _source_of(options.model)
    files = {path: library.model_files.add(source / path) for path in _files_of(options.model)}
    anywhere = replace(options, model=Path(name), tracker=None, library=None, snapshots=None)
    order = JobOrder(
        options=replace(anywhere, workers=None, cluster=None, build_cache=None),
        files=files,
        tracker=options.tracker or "",
        fleet_id=fleet_id,
    )
    job = library.queue.submit(title=options.title, spec=order.to_plain(), priority=options.priority, holder=holder)
    for path in files:  # once more: a file that no job names is one that `fleet library prune` takes
        library.model_files.add(source / path)
    return job


def restore_model(library: Library, order: JobOrder, folder: Path) -> Path:
    """Write a job's model into a folder and return what `load_model` reads.

    Raises:
        NotFound: the library has it no more, or damaged.
        LibraryError: it cannot be read.
        InvalidRequest: a path leads out of the folder.
    """
    for path, digest in order.files.items():
        place = folder / path
        if not place.resolve().is_relative_to(folder.resolve()):
            raise InvalidRequest(f"the model's file {path} would lie outside of its folder")
        place.parent.mkdir(parents=True, exist_ok=True)
        library.model_files.write(digest, place)
    name = str(order.options.model)
    if not order.files:
        return order.options.model
    if is_of_transformers(name):
        return Path(f"{_OF_TRANSFORMERS}{folder / name.removeprefix(_OF_TRANSFORMERS)}")
    return folder / name


def _source_of(model: Path) -> tuple[Path, str]:
    """Return the folder that a model's files are relative to, and its name there."""
    if not is_of_transformers(model):
        return model.parent, model.name
    folder = Path(str(model).removeprefix(_OF_TRANSFORMERS))
    return folder.parent, f"{_OF_TRANSFORMERS}{folder.name}" if folder.is_dir() else str(model)


def _files_of(model: Path) -> list[str]:
    """Return the paths of a model's files, relative to its folder's parent or to the file's own folder."""
    if is_of_transformers(model):
        folder = Path(str(model).removeprefix(_OF_TRANSFORMERS))
        found = sorted(path for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else []
        return [str(path.relative_to(folder.parent)) for path in found]
    return [model.name, *(_weight_files(model) if model.suffix == ".onnx" else [])]


def _weight_files(path: Path) -> list[str]:
    """Return the files beside an ONNX file that hold its weights."""
    import onnx
    from google.protobuf.message import DecodeError

    try:
        proto: ModelProto = onnx.load(str(path), load_external_data=False)
    except (DecodeError, OSError):
        return []  # whoever reads the model says what is wrong with it
    entries = (entry for tensor in proto.graph.initializer for entry in tensor.external_data)
    return sorted({entry.value for entry in entries if entry.key == "location"})
