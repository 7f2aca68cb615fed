"""A job's options as an argument file, for `fleet tune @job.yaml` and `fleet jobs submit @job.yaml`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import yaml

from fleet.base.plain import from_plain, to_object
from fleet.jobs.options import UNTIL_GAIN, TuneOptions
from fleet.jobs.spec import order_of
from fleet.library import Job

_PLAIN = {
    "devices": "devices",
    "trials": "trials",
    "minutes": "minutes",
    "top": "top",
    "strategy": "strategy",
    "seed": "seed",
    "batch-size": "input_batch_size",
    "random-weights": "random_weights",
    "target": "target_json",
    "batch": "batch_size",
    "enough": "enough",
    "wait-timeout": "wait_timeout_sec",
    "connect-timeout": "connect_timeout_sec",
    "priority": "priority",
    "target-ms": "target_ms",
}
"""Options, and the fields of `TuneOptions` with their values."""


def argument_file(job: Job) -> str:
    """Return an argument file that repeats a job. Options with their default value are left out.

    Raises:
        InvalidRequest: the job was submitted by another version, in a form that this program cannot read.
    """
    options, tracker = _asked(job)
    return yaml.safe_dump(dict(_entries(options, tracker)), sort_keys=False, allow_unicode=True)


def _asked(job: Job) -> tuple[TuneOptions, str]:
    """Return a job's options, and its tracker. A run of `fleet tune` keeps no others than its conditions."""
    if job.spec is None:
        return from_plain(TuneOptions, {"model": job.title, "tags": list(job.tags), **job.conditions}), ""
    order = order_of(job)
    return order.options, order.tracker


def _entries(options: TuneOptions, tracker: str) -> Iterator[tuple[str, object]]:
    default = TuneOptions(model=Path())
    yield "model", options.program or str(options.model)
    yield "on", list(options.selectors)
    if tracker:
        yield "tracker", tracker
    values, usual = to_object(options), to_object(default)
    yield from ((key, values[name]) for key, name in _PLAIN.items() if values[name] != usual[name])
    if options.tasks:
        yield "tasks", list(options.tasks)
    if options.tags:
        yield "tag", list(options.tags)
    if shapes := list(_shapes(options)):
        yield "shape", shapes
    if options.max_age_sec is not None:
        yield "max-age", f"{round(options.max_age_sec)}s"
    if options.deadline is not None:
        yield "deadline", options.deadline.isoformat()
    if options.until_gain == 0:
        yield "exhaust", True
    elif options.until_gain != UNTIL_GAIN:
        yield "until-gain", 100 * options.until_gain
    yield from _evaluator_entries(options, default)
    if not options.compares_model:
        yield "no-model", True


def _shapes(options: TuneOptions) -> Iterator[str]:
    for shapes in options.shapes:
        yield from (f"{name}={','.join(map(str, shape))}" for name, shape in shapes.items())


def _evaluator_entries(options: TuneOptions, default: TuneOptions) -> Iterator[tuple[str, object]]:
    evaluator = options.evaluator
    if evaluator.cooldown_interval_ms != default.evaluator.cooldown_interval_ms:
        yield "cooldown-ms", evaluator.cooldown_interval_ms
    if evaluator.cool_below_c:
        yield "cool-below-c", evaluator.cool_below_c
    if evaluator.flush_cache:
        yield "flush-cache", True
