"""Figures of a tuning run as plain data, for `fleet report --json`."""

from __future__ import annotations

from collections.abc import Mapping

from fleet.reports.figures import Curve, DeviceFigures, JobFigures
from fleet.reports.whole_model import times_of


def as_data(figures: JobFigures) -> Mapping[str, object]:
    """Return all figures of the page. An infinite time is unknown: no right measurement was made yet."""
    job = figures.job
    return {
        "job": job.name,
        "title": job.title,
        "state": job.state,
        "trials_done": job.trials_done,
        "lasted_sec": figures.lasted_sec,
        "tvm_versions": figures.tvm_versions,
        "targets": figures.targets,
        "whole_model": [
            {"program": program, "latency_ms": ms} for times in times_of(figures) for program, ms in times.items()
        ],
        "devices": [_device(one) for one in figures.by_device],
    }


def _device(one: DeviceFigures) -> Mapping[str, object]:
    return {
        "device_model": one.device_model,
        "devices": one.devices,
        "model_curve": _curve(one.model_curve),
        "workloads": [
            {
                "operator": name,
                "weight": entry.weight,
                "trials": entry.trials,
                "untuned_sec": entry.untuned_sec,
                "static_sec": one.static_sec.get(entry.workload.shash),
                "best_sec": entry.best_sec,
                "errors": {kind.value: count for kind, count in entry.errors.items()},
                "curve": _curve(curve),
            }
            for entry, (name, curve) in zip(one.workloads, one.curves.items(), strict=True)
        ],
        "device_time": [{"spent_on": what, "device_sec": sec} for what, sec in one.device_sec.items()],
        "disturbances": dict(one.disturbances),
    }


def _curve(curve: Curve) -> Mapping[str, object]:
    return {"by_trial_secs": curve.by_trial, "by_time_secs": curve.by_time}
