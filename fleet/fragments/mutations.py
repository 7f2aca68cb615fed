"""Makes workloads of other sizes by rules, on all cores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

from cross.pool.build_pool import BuildPool
from fleet.errors import BuildError, ConfigError
from fleet.fragments.lowering import Reason, Refusal, inferred, lowered
from fleet.fragments.planning import Refusals, plan
from fleet.fragments.rules import Rule
from fleet.fragments.workload_file import Entry
from fleet.fragments.workload_reading import WorkloadFile

T = TypeVar("T")

_TIMEOUT_SEC = 60.0


def mutations(
    file: WorkloadFile,
    rules: Sequence[Rule],
    *,
    limit: int,
    refusals: Refusals,
    report: Callable[[int, int], None],
) -> list[Entry]:
    """Return the workloads that rules give, each program once.

    Args:
        limit: of distinct mutations.
        refusals: receives the others.
        report: called with the numbers of finished and all mutations.

    Raises:
        ConfigError: no workload matches a rule, a value is no size, or there are too many mutations.
    """
    matching = [one for one in file.workloads if any(rule.matches(one.operator) for rule in rules)]
    if not matching:
        patterns = ", ".join(repr(rule.match) for rule in rules[:3])
        raise ConfigError(f"no workload matches {patterns}; the first one is {file.workloads[0].operator!r}")
    found: dict[str, Entry] = {}
    pool = BuildPool(target=file.target)
    try:
        shapes = [pool.submit_within(_TIMEOUT_SEC, inferred, one.fragment) for one in matching]
        known = list(zip(matching, map(_result, shapes), strict=True))
        wanted = plan(known, rules, limit=limit, refusals=refusals)
        tasks = [pool.submit_within(_TIMEOUT_SEC, lowered, one, file.target) for one in wanted]
        for done, made in enumerate(map(_result, tasks), start=1):
            if isinstance(made, Refusal):
                refusals.add(made.reason, made.message)
            elif found.setdefault(made.shash, made) is not made:
                refusals.add(Reason.SAME_PROGRAM, made.operator)
            report(done, len(tasks))
    finally:
        pool.shutdown(wait=False)
    return list(found.values())


def _result(task: Future[T | Refusal]) -> T | Refusal:
    try:
        return task.result()
    except BuildError as error:
        return Refusal(reason=Reason.CRASH, message=str(error))
