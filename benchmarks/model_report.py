"""The comparison of models as JSON and as a table."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.common import JsonObject, print_table
from benchmarks.model_list import Entry

_PEERS = ("onnxruntime", "openvino")
_COLUMNS = (*_PEERS, "static", "tuned")
_LONG_MINUTES = 20.0
_WRONG, _WRONG_INT8 = 1e-3, 0.1
"""Relative errors from which on an answer is wrong. In int8 the engines round differently, by up to some percent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """Amount of work in a run."""

    threads: int
    rounds: int
    block_sec: float
    """Time that an engine computes in its turn."""

    trials: int | None
    minutes: float | None
    """Limits of tuning, per model; without any limit there is no tuning."""

    @property
    def tunes(self) -> bool:
        """True if anything is tuned."""
        return self.trials is not None or self.minutes is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFigures:
    """Figures of one model."""

    entry: Entry
    operations: float
    """Floating-point operations of one run; for int8 those of the float model."""

    ms: Mapping[str, float]
    """Median time by column; a missing one has a problem, or was not requested."""

    relative_errors: Mapping[str, float]
    """Distance from ONNX Runtime's outputs over their size, by column."""

    problems: Mapping[str, str]
    effort: Effort

    @property
    def ours(self) -> str | None:
        """The column that counts as ours: tuned if there is one."""
        return next((column for column in ("tuned", "static") if column in self.ms), None)

    @property
    def budget(self) -> float:
        """Largest time as a multiple of ONNX Runtime's, for the effort that was made."""
        if not self.effort.tunes:
            return self.entry.budget.static
        is_long = self.effort.minutes is not None and self.effort.minutes >= _LONG_MINUTES
        return self.entry.budget.long if is_long else self.entry.budget.short

    @property
    def ratio(self) -> float | None:
        """Our time as a multiple of ONNX Runtime's."""
        return self.ms[self.ours] / self.ms["onnxruntime"] if self.ours and "onnxruntime" in self.ms else None

    @property
    def faster_peer_ms(self) -> float | None:
        """Time of the faster of the other engines; None if none ran the model."""
        return min((self.ms[name] for name in _PEERS if name in self.ms), default=None)

    @property
    def ratio_to_faster(self) -> float | None:
        """Our time divided by the faster engine's; None without both times."""
        return self.ms[self.ours] / self.faster_peer_ms if self.ours and self.faster_peer_ms else None

    @property
    def wrong(self) -> list[str]:
        """Columns with other outputs than ONNX Runtime's."""
        limit = _WRONG_INT8 if self.entry.is_int8 else _WRONG
        return [column for column, error in self.relative_errors.items() if not error <= limit]


def figures_of(found: Sequence[ModelFigures], peak: float | None) -> JsonObject:
    """Return everything as JSON; the means are over the models that both sides ran."""
    both = [figures for figures in found if figures.ratio is not None]
    peer = _mean([figures.ms["onnxruntime"] for figures in both])
    ours = _mean([figures.ms[figures.ours] for figures in both if figures.ours])
    return {
        "name": "models",
        "unit": "ms, geometric mean",
        "peer": _rounded(peer),
        "ours": _rounded(ours),
        "ratio": _rounded(peer / ours) if peer and ours else None,
        "times_faster_peer": _rounded(_mean_ratio(found)),
        "budget": _rounded(_mean([figures.ms["onnxruntime"] * figures.budget for figures in both])),
        "openvino": _rounded(_mean([figures.ms["openvino"] for figures in both if "openvino" in figures.ms])),
        "peak_gflop_per_sec": _rounded(peak / 1e9) if peak else None,
        "models": {figures.entry.name: _figures(figures, peak) for figures in found},
    }


def _figures(figures: ModelFigures, peak: float | None) -> JsonObject:
    return {
        **{f"{column}_ms": _rounded(figures.ms.get(column)) for column in _COLUMNS},
        "times_onnxruntime": _rounded(figures.ratio),
        "times_faster_peer": _rounded(figures.ratio_to_faster),
        "budget": figures.budget,
        "gflop": _rounded(figures.operations / 1e9),
        "share_of_peak": {column: _rounded(_share(figures, column, peak)) for column in figures.ms},
        "relative_error": dict(figures.relative_errors),
        "wrong": figures.wrong,
        "problems": dict(figures.problems),
    }


def print_models(found: Sequence[ModelFigures], peak: float | None, notes: Sequence[str]) -> None:
    """Print a row per model."""
    rows = [
        (
            figures.entry.name,
            *(_shown(figures.ms.get(column)) for column in _COLUMNS),
            _shown(figures.ratio),
            _shown(figures.ratio_to_faster),
            f"{figures.budget:g}",
            *(_percent(_share(figures, column, peak)) for column in ("onnxruntime", figures.ours or "")),
            ", ".join([*(f"{name} is wrong" for name in figures.wrong), *figures.problems]) or "yes",
        )
        for figures in found
    ]
    columns = (
        *("[ms]", "ORT", "OpenVINO", "static", "tuned", "ours / ORT", "ours / faster", "budget"),
        *("ORT of peak", "ours of peak", "agree"),
    )
    effort = found[0].effort
    mean = _mean_ratio(found)
    said = (
        *([f"ours over the faster of ONNX Runtime and OpenVINO: {mean:.3g} (geometric mean)"] if mean else []),
        f"{effort.threads} threads, float32; median of {effort.rounds} rounds of alternating blocks",
        f"peak of the machine: {peak / 1e9:.0f} GFLOP/s"
        if peak
        else "no C compiler to measure the machine's peak with",
    )
    print_table("models, time of one run", columns, rows, [*said, *notes])


def _share(figures: ModelFigures, column: str, peak: float | None) -> float | None:
    ms = figures.ms.get(column)
    return figures.operations / (ms * 1e-3) / peak if ms and peak else None


def _mean_ratio(found: Sequence[ModelFigures]) -> float | None:
    """Return the geometric mean of the models' ratios of our time to the faster engine's."""
    return _mean([figures.ratio_to_faster for figures in found if figures.ratio_to_faster is not None])


def _mean(values: Sequence[float]) -> float | None:
    return statistics.geometric_mean(values) if values else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"
