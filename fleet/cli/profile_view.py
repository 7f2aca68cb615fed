"""Renders a profile: operators as a table and as bars, the whole model beside ONNX Runtime. Pure functions of the
profile.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fleet.base.quantities import size_text, time_text
from fleet.cli.tables import ROOMY_COLUMNS, WIDE_COLUMNS, line, make_table, rate
from fleet.domain.roofline import Roofline
from fleet.optimizer.profiling.profile import ModelProfile, ProfiledOperator, by_group

_BARS = 16
"""Operators that get a bar; the costliest."""

_MOST_COLUMNS = 120
"""Maximum width of the bars, where a line may be longer."""

_LABEL_COLUMNS = 32
_TIME_COLUMNS = 10
_LEAST_SHARE = 0.05
"""An operator of less than this share of the costliest one's time has no bar that could be seen."""

_ROOF, _ALONE, _LOST = ("█", "green"), ("▓", "cyan"), ("░", "red")


def render_profile(profile: ModelProfile, *, width: int = 80) -> RenderableType:
    """Show where a model's time goes."""
    parts: list[RenderableType] = [_title(profile), _operator_table(profile, width)]
    slower = [item for item in profile.operators if item.is_slower_in_place]
    if slower:
        lost = time_text(sum(item.lost_sec for item in slower))
        parts.append(
            Text(
                f"first: operators slower in the model than alone; at their time alone, it would save {lost}",
                style="dim",
            )
        )
    parts += ["", _bars(profile.operators, width), "", _whole_table(profile)]
    if profile.reference is not None:
        parts += ["", _group_table(profile)]
    parts += ["", *(Text(text, style="dim") for text in _footnotes(profile))]
    return Group(*parts)


def _title(profile: ModelProfile) -> Text:
    tuned = f"{profile.tuned} schedules of the library" if profile.tuned else "static schedules"
    return Text(f"{profile.title} on {profile.device} ({profile.device_model}), {tuned}", style="bold")


def _operator_table(profile: ModelProfile, width: int) -> Table:
    """Return one row for each function, with the columns that fit the terminal's width."""
    has_room, is_wide = width >= ROOMY_COLUMNS, width >= WIDE_COLUMNS
    shows_alone = any(item.alone_sec for item in profile.operators)
    columns = ["operator", "calls", "in place"]
    columns += ["alone", "ratio"] if shows_alone else []
    columns += ["of model"] if has_room else []
    columns += ["GFLOP/s", "roofline"]
    columns += ["bytes", "bound by"] if has_room else []
    columns += ["TVM's name"] if is_wide else []
    table = make_table(*columns, left=frozenset({"operator", "TVM's name"}))
    for item in profile.operators:
        table.add_row(
            line(item.operator),
            str(item.count),
            time_text(item.in_place_sec),
            *((time_text(item.alone_sec), _ratio(item)) if shows_alone else ()),
            *([f"{item.in_place_sec / profile.total_sec:.1%}"] if has_room else []),
            rate(item.gflops) or "-",
            f"{item.roofline_share:.0%}" if item.roofline_share is not None else "-",
            *([size_text(item.size_bytes), _bound(item)] if has_room else []),
            *([line(item.name)] if is_wide else []),
        )
    return table


def _ratio(item: ProfiledOperator) -> Text:
    text = f"{item.ratio:.2f}x" if item.ratio is not None else "-"
    return Text(text, style="bold red" if item.is_slower_in_place else "")


def _bound(item: ProfiledOperator) -> str:
    if item.least_sec is None:
        return "-"
    return "memory" if item.is_memory_bound else "arithmetic"


def _bars(operators: Sequence[ProfiledOperator], width: int) -> RenderableType:
    """Draw the costliest operators to scale."""
    costliest = sorted(operators, key=lambda item: -item.in_place_sec)[:_BARS]
    longest_sec = max((item.in_place_sec for item in costliest), default=0.0)
    shown = [item for item in costliest if item.in_place_sec > _LEAST_SHARE * longest_sec]
    columns = max(10, min(width, _MOST_COLUMNS) - _LABEL_COLUMNS - _TIME_COLUMNS - 2)
    legend = Text.assemble(
        *(("█ ", "green"), "the device's roofline  "),
        *(("▓ ", "cyan"), "beyond it  "),
        *((("░ ", "red"), "slower than alone") if any(item.is_slower_in_place for item in shown) else ()),
    )
    return Group(legend, *(_bar(item, columns / longest_sec) for item in shown))


def _bar(item: ProfiledOperator, columns_per_sec: float) -> Text:
    """Draw one operator: time of the roofline, the rest of its time, and the time it loses in the model."""
    whole = max(1, round(item.in_place_sec * columns_per_sec))
    lost = min(whole, round(item.lost_sec * columns_per_sec))
    roof = min(whole - lost, round((item.least_sec or 0.0) * columns_per_sec))
    text = Text(f"{item.operator[:_LABEL_COLUMNS]:{_LABEL_COLUMNS}} ", no_wrap=True, overflow="crop")
    for (mark, style), length in ((_ROOF, roof), (_ALONE, whole - lost - roof), (_LOST, lost)):
        text.append(mark * length, style=style)
    return text.append(f" {time_text(item.in_place_sec)}")


def _whole_table(profile: ModelProfile) -> Table:
    """Show the parts of the model's time."""
    table = make_table("whole model", "time", "calls", left=frozenset({"whole model"}))
    calls = sum(item.count for item in profile.operators)
    table.add_row(line("operators in their place"), time_text(profile.operators_sec), str(calls))
    table.add_row(line("the Relax VM's own functions"), time_text(profile.vm_sec), str(profile.vm_calls))
    if profile.rest_sec > 0:
        table.add_row(line("the rest"), time_text(profile.rest_sec), "")
    table.add_row(line("whole, as it runs"), Text(time_text(profile.total_sec), style="bold"), "")
    table.add_row(line("whole, while it is profiled"), time_text(profile.instrumented_sec), "")
    reference = profile.reference
    if reference is not None:
        nodes_sec = sum(node.median_sec for node in reference.nodes)
        table.add_row(line("ONNX Runtime, nodes"), time_text(nodes_sec), str(len(reference.nodes)))
        table.add_row(line("ONNX Runtime, whole"), Text(time_text(reference.median_sec), style="bold"), "")
    return table


def _group_table(profile: ModelProfile) -> Table:
    """Compare our operators with ONNX Runtime's, by group."""
    table = make_table("operators", "ours", "ONNX Runtime", "ratio", left=frozenset({"operators"}))
    for group, ours_sec, theirs_sec in by_group(profile):
        ratio = f"{ours_sec / theirs_sec:.2f}x" if ours_sec and theirs_sec else "-"
        table.add_row(line(group.value), time_text(ours_sec or None), time_text(theirs_sec or None), ratio)
    return table


def _footnotes(profile: ModelProfile) -> Iterator[str]:
    yield from profile.notes
    if profile.roofline.flop_per_sec or profile.roofline.memory:
        yield f"roofline, {profile.roofline.source}: {_limits(profile.roofline)}"


def _limits(roofline: Roofline) -> str:
    rates = [f"{rate.bytes_per_sec / 1e9:.3g} GB/s in {size_text(rate.size_bytes)}" for rate in roofline.memory]
    return ", ".join([*([f"{roofline.flop_per_sec / 1e9:.4g} GFLOP/s"] if roofline.flop_per_sec else []), *rates])
