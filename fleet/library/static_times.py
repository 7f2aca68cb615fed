"""Times of static schedules beside those of the best schedules that trials found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from fleet.domain.measuring import TensorSpec
from fleet.library import counting, rows
from fleet.library.schema import records as table
from fleet.library.schema import workloads
from fleet.library.values import SCHEDULED, RecordKind


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticTimes:
    """One workload in one scope in which its static schedule has a time."""

    name: str
    """TVM's name of the workload."""

    args: tuple[TensorSpec, ...]
    static_sec: float
    best_sec: float
    """The fastest checked schedule, the static one included [s]."""

    trials: int
    """Records of candidates with a time."""


def read(connection: sa.Connection, target_keys: Sequence[str]) -> list[StaticTimes]:
    """Return the workloads of some targets, as `canonical_target` spells them."""
    is_static = table.c.kind == RecordKind.STATIC.value
    scope = (table.c.workload_id, table.c.target_key, table.c.device_model, table.c.tvm_version)
    is_right = sa.or_(is_static, table.c.checked.is_(True))
    times = (
        sa.select(
            *scope,
            sa.func.min(sa.case((is_static, table.c.median_sec))).label("static_sec"),
            sa.func.min(sa.case((is_right, table.c.median_sec))).label("best_sec"),
            sa.func.sum(sa.case((is_static, 0), else_=1)).label("trials"),
        )
        .where(
            table.c.target_key.in_(sorted(set(target_keys))),
            table.c.kind.in_([kind.value for kind in SCHEDULED]),
            table.c.median_sec.is_not(None),
            table.c.error.is_(None),
            sa.or_(table.c.checked.is_(None), table.c.checked.is_(True)),
            counting.is_used(connection),
        )
        .group_by(*scope)
        .subquery()
    )
    query = (
        sa.select(workloads.c.name, workloads.c.args, times.c.static_sec, times.c.best_sec, times.c.trials)
        .select_from(times.join(workloads, times.c.workload_id == workloads.c.id))
        .where(times.c.static_sec.is_not(None))
        .order_by(workloads.c.id)
    )
    return [
        StaticTimes(
            name=row["name"],
            args=rows.args_of(row["args"]),
            static_sec=row["static_sec"],
            best_sec=row["best_sec"],
            trials=int(row["trials"]),
        )
        for row in connection.execute(query).mappings()
    ]
