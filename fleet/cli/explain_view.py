"""Renders the lowering of a model: passes and programs as tables. Pure functions of the explanation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fleet.base.quantities import size_text, time_text
from fleet.cli.tables import ROOMY_COLUMNS, WIDE_COLUMNS, line, make_table
from fleet.domain.roofline import Roofline
from fleet.graph.concats import CopyReason
from fleet.graph.explaining import Explanation, GraphStage, Program, Scheduled
from fleet.optimizer.prioritizer.values import StaticQuality

_MOST_OPERATORS = 8
"""Operators of the imported graph that are named; the most frequent."""

_MOST_LOOP_NESTS = 8

_WHY_COPIED = {
    CopyReason.NOT_COMPUTED: "an operand is an input or a constant, or not the only result of a program",
    CopyReason.SHARED: "an operand has its place elsewhere",
    CopyReason.RETURNED: "an operand is a result of the model, or is not only read by programs",
    CopyReason.UNKNOWN_SIZE: "the size of an operand is known only when the model runs",
    CopyReason.OPAQUE: "an operand is not only reached by indices",
    CopyReason.FUSED: "in one program with the next operator",
    CopyReason.GPU: "programs of GPUs write tensors of their own",
}


def render_explanation(
    found: Explanation,
    roofline: Roofline,
    qualities: Sequence[StaticQuality] = (),
    *,
    title: str,
    width: int = 80,
) -> RenderableType:
    """Show the passes, then the programs."""
    before, loop_nests = found.stages[0], found.scheduled.loop_nests
    parts: list[RenderableType] = [
        Text(title, style="bold"),
        Text(f"imported: {_counted(before.operators)}", style="dim"),
        "",
        _stage_table(found),
        "",
        _program_table(found, roofline, width),
        "",
        *([Text(loop_nests_line(loop_nests), style="yellow")] if loop_nests else []),
        *(Text(quality_line(quality)) for quality in qualities),
        *(Text(text, style="dim") for text in _footnotes(found, roofline)),
    ]
    return Group(*parts)


def estimated_sec(program: Program, roofline: Roofline) -> float | None:
    """Return the roofline estimate for all calls of a program [s], or None if it is unknown.

    This is not a lower bound: a program with cached data can be faster.
    """
    once = roofline.least_sec(program.flop, program.moved_bytes)
    return None if once is None else once * program.calls


def quality_line(quality: StaticQuality) -> str:
    """Return how often trials improved on the static schedules of a kind of operator."""
    kept = quality.searched - quality.improved
    gain = f"{quality.mean_gain:.1%} on average"
    if quality.is_enough:
        return f"static is enough: {kept} of {quality.searched} {quality.kind}; trials gained {gain}"
    return f"trials improved on the static schedule: {quality.improved} of {quality.searched} {quality.kind}, {gain}"


def loop_nests_line(names: Sequence[str]) -> str:
    """List the programs that nothing can schedule."""
    shown = ", ".join(names[:_MOST_LOOP_NESTS])
    rest = f" and {len(names) - _MOST_LOOP_NESTS} more (--json names all)" if len(names) > _MOST_LOOP_NESTS else ""
    return f"not scheduled, so plain loops: {shown}{rest}"


def concat_lines(scheduled: Scheduled) -> list[str]:
    """Return the number of concats without copies, and the reasons of the others; empty for a model without any."""
    reasons = Counter(scheduled.concats_copied).most_common()
    total = scheduled.concats_in_place + len(scheduled.concats_copied)
    if not total:
        return []
    copied = [f"{count} copied: {_WHY_COPIED[reason]}" for reason, count in reasons]
    return ["; ".join([f"concats: {scheduled.concats_in_place} of {total} written in place", *copied])]


def _stage_table(found: Explanation) -> Table:
    table = make_table("pass", "calls", "transposes", "moved", "convolutions", "why", left=frozenset({"pass", "why"}))
    for stage in found.stages:
        table.add_row(
            line(stage.name),
            str(sum(stage.operators.values())),
            str(stage.transposes),
            size_text(stage.moved_bytes),
            _layouts(stage),
            line(stage.reason),
        )
    return table


def _program_table(found: Explanation, roofline: Roofline, width: int) -> Table:
    has_room, is_wide = width >= ROOMY_COLUMNS, width >= WIDE_COLUMNS
    columns = ["program", "calls", "MFLOP", "moved"]
    columns += ["weights"] if has_room else []
    columns += ["estimate", "bound by", "fused"]
    columns += ["TVM's name"] if is_wide else []
    table = make_table(*columns, left=frozenset({"program", "fused", "TVM's name"}))
    for item in found.programs:
        sec = estimated_sec(item, roofline)
        table.add_row(
            line(item.operator),
            str(item.calls),
            f"{item.flop * item.calls / 1e6:.4g}",
            size_text(item.moved_bytes * item.calls),
            *([size_text(item.constant_bytes * item.calls)] if has_room else []),
            time_text(sec),
            _bound(item, roofline) if sec else "-",
            line(" + ".join(item.fused)),
            *([line(item.name)] if is_wide else []),
        )
    return table


def _bound(program: Program, roofline: Roofline) -> str:
    if not roofline.flop_per_sec or not roofline.memory:
        return "-"
    return "memory" if roofline.is_memory_bound(program.flop, program.moved_bytes) else "arithmetic"


def _footnotes(found: Explanation, roofline: Roofline) -> list[str]:
    flop = sum(item.flop * item.calls for item in found.programs)
    times = [estimated_sec(item, roofline) for item in found.programs]
    known = [sec for sec in times if sec is not None]
    total = f"{flop / 1e9:.4g} GFLOP in {sum(item.calls for item in found.programs)} calls"
    return [
        *concat_lines(found.scheduled),
        f"{total}; estimate {time_text(sum(known))}" if known else total,
        f"limits: {roofline.source}",
        "estimate: data at the rate of its size, arithmetic at its peak; several cores and nearer caches are faster",
        "moved: bytes that calls read and write, weights included, without caches; of tables, only the rows read",
    ]


def _counted(operators: dict[str, int]) -> str:
    named = list(operators.items())[:_MOST_OPERATORS]
    rest = sum(operators.values()) - sum(count for _, count in named)
    texts = [f"{count} {name}" for name, count in named] + ([f"{rest} others"] if rest else [])
    return ", ".join(texts)


def _layouts(stage: GraphStage) -> str:
    return ", ".join(f"{count} {layout}" for layout, count in stage.convolution_layouts.items())
