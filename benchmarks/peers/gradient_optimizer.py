"""`fleet optimizer serve` as a peer: MetaSchedule's gradient scheduler plans each job alone, and bids nothing.

python -m benchmarks.peers.gradient_optimizer found|ranked --tracker HOST:PORT --library FILE

Candidates are recorded ones: in the order in which a search finds them, or ranked by the shared cost model.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from benchmarks import live_tasks
from benchmarks.policies import gradient
from fleet.__main__ import main
from fleet.client.steady import SteadyDevice
from fleet.domain.decisions import Motive, Reason
from fleet.optimizer import searcher
from fleet.optimizer.conditions import Conditions
from fleet.optimizer.core import proposals
from fleet.optimizer.core.planning import has_ahead
from fleet.optimizer.core.progress import JobProgress, WorkloadProgress
from fleet.optimizer.prioritizer.values import Plan, ProposedBatch

_PROPOSE = {"found": live_tasks.propose_as_found, "ranked": live_tasks.propose}


def plan(progress: JobProgress, conditions: Conditions, trials_left: int, now_sec: float) -> Plan:
    """Order the workloads that may have a batch now: those without one first, then by gradient.

    One with a batch under way gets the next only where all have: MetaSchedule waits for its results before that.
    """
    free = [item for item in progress.workloads if item.closing is None and not _is_busy(item, progress, conditions)]
    idle = [item for item in free if not item.under_way] or free
    ordered = sorted(idle, key=lambda item: -_gradient(item, conditions.batch_size))
    count = min(conditions.batch_size, trials_left)
    return Plan(batches=tuple(_batch(item, conditions, count) for item in ordered), finished={})


def _is_busy(item: WorkloadProgress, progress: JobProgress, conditions: Conditions) -> bool:
    return bool(item.asked) or (item.is_searched and not has_ahead(item, progress, conditions))


def _gradient(item: WorkloadProgress, batch: int) -> float:
    times = [record.run_sec for record in item.records]
    best = best_after_batches(times, batch)
    if not best:
        return float("-inf") if item.batches else float("inf")
    return item.workload.weight * gradient(best)


def best_after_batches(times: Sequence[float], batch: int) -> list[float]:
    """Return the best time after each batch."""
    ends = [*range(batch, len(times), batch), len(times)] if times else []
    return [min(times[:end]) for end in ends]


def _batch(item: WorkloadProgress, conditions: Conditions, count: int) -> ProposedBatch:
    reason = Reason(
        motive=Motive.GAIN if item.records else Motive.FIRST,
        gain_sec=0.0,
        spread_sec=0.0,
        horizon=1,
        device_sec=0.0,
        builder_sec=0.0,
        weight=item.workload.weight,
        priority=1.0,
        trust=1.0,
        worth=0.0,
    )
    return ProposedBatch(
        workload=item.workload.shash,
        job=conditions.job_name,
        device_model=conditions.scope.device_model,
        count=count,
        expected_share=0.0,
        reason=reason,
    )


def _is_held(device: SteadyDevice) -> bool:
    """Have each batch release its board first: TVM's runner requests a device for each candidate."""
    return bool(device.name)


if __name__ == "__main__":
    SteadyDevice.is_outbid = property(_is_held)  # type: ignore[method-assign, assignment]
    vars(searcher).update(propose=_PROPOSE[sys.argv.pop(1)], build_candidate=live_tasks.build_candidate)
    vars(proposals).update(plan=plan)
    sys.argv[1:1] = ["optimizer", "serve"]
    main()
