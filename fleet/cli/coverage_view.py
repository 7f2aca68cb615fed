"""Output of `fleet library coverage`: tables for people, data for scripts."""

from __future__ import annotations

from collections.abc import Sequence

from cross.targets.target import Target
from fleet.base.quantities import time_text
from fleet.cli.tables import line, make_console, make_table
from fleet.domain.scope import ScopeFilter
from fleet.optimizer.library_coverage import Coverage, CoveredOperator, Share, shares

_WORDS = {
    Coverage.EXACT: "exact record",
    Coverage.STATIC: "static is enough",
    Coverage.NEIGHBOUR: "neighbour",
    Coverage.NOTHING: "nothing",
}


def coverage_data(found: Sequence[CoveredOperator], target: Target, within: ScopeFilter) -> dict[str, object]:
    """Return the coverage of a model as JSON data."""
    return {
        "target": dict(target.options),
        "device_model": within.device_model,
        "tvm_version": within.tvm_version,
        "shares": [
            {"coverage": one.coverage.value, "operators": one.operators, "operations": one.operations}
            for one in shares(found)
        ],
        "operators": [_operator_data(one) for one in found],
    }


def _operator_data(one: CoveredOperator) -> dict[str, object]:
    return {
        "operator": one.workload.operator,
        "name": one.workload.name,
        "shash": one.workload.shash,
        "calls": one.workload.weight,
        "flop": one.workload.flop,
        "coverage": one.coverage.value,
        "best_sec": one.record.median_sec if one.record else None,
        "kind": one.quality.kind if one.quality else None,
        "neighbour": one.neighbour.operator if one.neighbour else None,
    }


def print_coverage(found: Sequence[CoveredOperator]) -> None:
    """Print a row for each operator, and the shares."""
    console = make_console(is_wide=False)
    table = make_table("operator", "calls", "library", left=frozenset({"operator", "library"}))
    for one in found:
        table.add_row(line(one.workload.operator), str(one.workload.weight), line(_words(one)))
    console.print(table)
    console.print()
    table = make_table("library", "operators", "operations", left=frozenset({"library"}))
    for share in shares(found):
        table.add_row(_WORDS[share.coverage], _count(share, len(found)), f"{share.operations:.1%}")
    console.print(table)


def _words(one: CoveredOperator) -> str:
    words = _WORDS[one.coverage]
    if one.coverage is Coverage.EXACT and one.record is not None:
        return f"{words}, {time_text(one.record.median_sec)}"
    if one.coverage is Coverage.STATIC and one.quality is not None:
        kept = one.quality.searched - one.quality.improved
        return f"{words}: {kept} of {one.quality.searched} {one.quality.kind}"
    return f"{words}: {one.neighbour.operator}" if one.coverage is Coverage.NEIGHBOUR and one.neighbour else words


def _count(share: Share, total: int) -> str:
    return f"{share.operators} of {total}"
