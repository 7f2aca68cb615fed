"""Figures of a library as plain data, for `fleet report --library --json`."""

from __future__ import annotations

from collections.abc import Mapping

from fleet.library.build_times import BuildTime
from fleet.reports.library_figures import LibraryFigures


def library_data(figures: LibraryFigures) -> Mapping[str, object]:
    """Return all figures of the page but its freshness."""
    return {
        "tvm_version": figures.tvm_version,
        "workloads": figures.workloads,
        "candidates": figures.candidates,
        "coverage": [
            {
                "device_model": one.device_model,
                "kind": one.kind,
                "exact": one.exact,
                "static": one.static,
                "neighbour": one.neighbour,
                "nothing": one.nothing,
            }
            for one in figures.coverage
        ],
        "builds": [
            {
                "device_model": model,
                "tvm_version": point.tvm_version,
                "version": point.version,
                "environment": point.environment,
                "workloads": point.workloads,
                "candidates": point.candidates,
                "ratio": point.ratio,
                "last_at": point.last_at,
            }
            for model, points in figures.points.items()
            for point in points
        ],
        "regressions": [
            {
                "operator": one.operator,
                "shash": one.workload,
                "device_model": one.now.device_model,
                "before": _time(one.before),
                "now": _time(one.now),
                "ratio": one.ratio,
                "command": one.command,
            }
            for one in figures.regressions
        ],
    }


def _time(time: BuildTime) -> Mapping[str, object]:
    return {
        "best_sec": time.best_sec,
        "tvm_version": time.tvm_version,
        "version": time.version,
        "environment": time.environment,
        "candidates": time.candidates,
        "record": time.last_id,
    }
