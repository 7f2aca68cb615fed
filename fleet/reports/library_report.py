"""The report of a whole library, as a page or as Markdown. Texts from the library are untrusted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from fleet.base.quantities import count_text, elapsed_text, time_text
from fleet.base.text import sanitize
from fleet.domain.freshness import Freshness, Part
from fleet.library.build_times import BuildTime
from fleet.reports.document import Block, Code, Heading, Paragraph, Picture, Table, to_html, to_markdown
from fleet.reports.library_figures import BuildPoint, KindCoverage, LibraryFigures, Regression
from fleet.reports.plot import Panel, Svg, stacked, svg_plots

_TITLE = "The library"
_LONGEST = 80
"""Characters of a name from the library."""

_LONGEST_TITLE = 36
"""Characters above a picture."""

_DIGEST = len("sha256:") + 12
_MOST_MODELS = 12
_MOST_KINDS = 20
_MOST_BUILDS = 40
_OTHER, _UNKNOWN = "other kinds", "unknown"
_CURVE = "time over the best"
_BEST = "best known"
_BUILD_TEXT = (
    "Each point is one build: a version of TVM, of this package, and an environment of the device. Its value is the "
    "geometric mean of its workloads' best times over the best known ones: 1 is the best."
)
_REGRESSION_TEXT = (
    "The best time with the newest build of a workload, over the best earlier one. Fewer schedules are a reason, too."
)
_COVERAGE_TEXT = (
    "Workloads of the library by the best reason to expect a good schedule: a checked record of the program, a kind "
    "for which trials hardly improve the static schedule, or a checked record of the kind."
)


@dataclass(frozen=True, slots=True)
class LibraryReport:
    """Report of all records of a library."""

    figures: LibraryFigures

    def html(self) -> str:
        """Return a self-contained HTML file."""
        return to_html(self._blocks(), title=_TITLE)

    def markdown(self) -> str:
        """Return the same as Markdown."""
        return to_markdown(self._blocks())

    def text(self) -> str:
        """Return the same without pictures, for a terminal."""
        return to_markdown([block for block in self._blocks() if not isinstance(block, Picture)])

    def plot(self) -> Svg:
        """Return the curves of all device models as one picture."""
        return stacked([_picture(model, points).svg for model, points in self._models()])

    def _models(self) -> list[tuple[str, Sequence[BuildPoint]]]:
        return _largest(self.figures.points)

    def _blocks(self) -> list[Block]:
        figures = self.figures
        if not figures.candidates:
            return [Heading(_TITLE, 1), *_first_steps()]
        return [
            Heading(_TITLE, 1),
            Paragraph(_summary(figures)),
            *_freshness(figures),
            *_coverage(figures),
            *_curves(figures, self._models()),
            *_regressions(figures.regressions),
        ]


def _first_steps() -> list[Block]:
    return [
        Paragraph("The library has no times yet. Tune a model, or add records of others:"),
        Code("fleet tune model.onnx\nfleet pack add FILE"),
    ]


def _summary(figures: LibraryFigures) -> str:
    held = f"{count_text(figures.candidates, 'schedule')} with a time, of {count_text(figures.workloads, 'workload')}"
    return f"{held} and {count_text(len(figures.points), 'device model')}; {figures.made_at:%Y-%m-%d %H:%M} UTC."


def _freshness(figures: LibraryFigures) -> Iterator[Block]:
    found = figures.freshness
    counted = "records of any TVM" if figures.tvm_version is None else f"records of TVM {_name(figures.tvm_version)}"
    yield Heading("Freshness")
    age = elapsed_text(figures.max_age.total_seconds())
    yield Paragraph(
        f"The best three schedules of each workload, {counted}; old above {age}. The last column is the device time to "
        "measure them again."
    )
    parts = [(reason.value, part) for reason, part in found.by_reason.items()]
    yield Table(
        ["reason", "records", "workloads", "models' time", "device time"],
        [_part(name, part, found) for name, part in (*parts, ("any of them", found.stale), ("all records", found.all))],
    )
    if found.unknown_environments:
        yield Paragraph(f"Environment not known: {count_text(found.unknown_environments, 'record')}.")
    yield Code("fleet library refresh --on SELECTOR --dry-run")


def _part(name: str, part: Part, found: Freshness) -> list[str]:
    share = f"{part.models_sec / found.all.models_sec:.1%}" if found.all.models_sec else "-"
    return [name, str(part.records), str(part.workloads), share, elapsed_text(part.device_sec)]


def _coverage(figures: LibraryFigures) -> Iterator[Block]:
    yield Heading("Coverage")
    yield Paragraph(_COVERAGE_TEXT)
    by_model = {model: list(those) for model, those in groupby(figures.coverage, key=lambda one: one.device_model)}
    for model, _ in _largest(figures.points):
        if model in by_model:
            yield Heading(_name(model) or _UNKNOWN, 3)
            yield _coverage_table(by_model[model])


def _coverage_table(kinds: Sequence[KindCoverage]) -> Table:
    ordered = sorted(kinds, key=lambda one: (-one.workloads, one.kind))
    shown, rest = ordered[:_MOST_KINDS], ordered[_MOST_KINDS:]
    rows = [(_name(one.kind) or _UNKNOWN, [one]) for one in shown] + ([(_OTHER, rest)] if rest else [])
    return Table(
        ["kind", "workloads", "exact record", "static is enough", "neighbour", "nothing"],
        [[name, *map(str, _sums(those))] for name, those in (*rows, ("all", kinds))],
    )


def _sums(kinds: Sequence[KindCoverage]) -> list[int]:
    return [
        sum(counts)
        for counts in zip(*((k.workloads, k.exact, k.static, k.neighbour, k.nothing) for k in kinds), strict=True)
    ]


def _curves(figures: LibraryFigures, models: Sequence[tuple[str, Sequence[BuildPoint]]]) -> Iterator[Block]:
    yield Heading("Times by build")
    yield Paragraph(_BUILD_TEXT)
    for model, points in models:
        yield Heading(_name(model) or _UNKNOWN, 3)
        yield _picture(model, points)
        yield _build_table(points[-_MOST_BUILDS:])
    if rest := len(figures.points) - len(models):
        yield Paragraph(f"Device models with fewer records: {rest}.")


def _picture(model: str, points: Sequence[BuildPoint]) -> Picture:
    shown = points[-_MOST_BUILDS:]
    ratios = [point.ratio for point in shown]
    panel = Panel(
        title=_CURVE,
        curves={_CURVE: ratios if len(ratios) > 1 else ratios * 2},
        lines={_BEST: 1.0},
        first=_short(shown[0]),
        last=_short(shown[-1]) if len(shown) > 1 else "",
        has_steps=False,
    )
    return Picture(svg_plots([panel], title=sanitize(model, _LONGEST_TITLE) or _UNKNOWN), "times by build")


def _build_table(points: Sequence[BuildPoint]) -> Table:
    return Table(
        ["TVM", "fleet", "environment", "newest time", "workloads", "schedules", _CURVE],
        [
            [
                _name(point.tvm_version) or "-",
                _name(point.version) or "-",
                _name(point.environment[:_DIGEST]) or "-",
                f"{point.last_at:%Y-%m-%d}",
                str(point.workloads),
                str(point.candidates),
                f"{point.ratio:.3f}",
            ]
            for point in points
        ],
        frozenset({"fleet", "environment"}),
    )


def _regressions(found: Sequence[Regression]) -> Iterator[Block]:
    yield Heading("Regressions")
    if not found:
        yield Paragraph("No workload is slower with its newest build than before.")
        return
    yield Paragraph(_REGRESSION_TEXT)
    yield Table(
        ["workload", "device model", "before", "now", "ratio", "schedules", "again"],
        [
            [
                _name(one.operator),
                _name(one.now.device_model),
                _time(one.before),
                _time(one.now),
                f"{one.ratio:.2f}",
                f"{one.before.candidates}, {one.now.candidates}",
                one.command,
            ]
            for one in found
        ],
        frozenset({"device model", "before", "now", "again"}),
    )


def _time(time: BuildTime) -> str:
    build = ", ".join(filter(None, [f"TVM {time.tvm_version}" if time.tvm_version else "", time.version]))
    return f"{time_text(time.best_sec)} ({_name(build) or 'unknown build'})"


def _largest(points: Mapping[str, Sequence[BuildPoint]]) -> list[tuple[str, Sequence[BuildPoint]]]:
    ordered = sorted(points.items(), key=lambda item: (-sum(point.candidates for point in item[1]), item[0]))
    return ordered[:_MOST_MODELS]


def _short(point: BuildPoint) -> str:
    return sanitize(point.tvm_version, 16) or "-"


def _name(text: str) -> str:
    return sanitize(text, _LONGEST)
