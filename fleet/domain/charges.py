"""Device time that jobs are charged for trials.

Jobs that search the same workload in the same scope share its trials: of n jobs, each is charged 1/n, whichever job
measured. All jobs together are thus charged each second once. The charge follows from the stored record alone, so that
neither a killed process nor a resumed job changes it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

DEVICE_SEC = "device_sec"
"""Key of a record's device time in its provenance [s]."""

SHARED_WITH = "shared_with"
"""Key of the names of the other jobs that are charged for a record; missing: there are none."""


def sharing(jobs: Iterable[str]) -> dict[str, object]:
    """Return the provenance of a trial that other jobs share; empty if there are none."""
    names = sorted(set(jobs))
    return {SHARED_WITH: names} if names else {}


def charged_sec(provenance: Mapping[str, object], *, owner: str, job: str) -> float:
    """Return the device time of a record that a job is charged [s].

    Args:
        owner: name of the job that measured.
    """
    spent_sec, others = device_sec(provenance), provenance.get(SHARED_WITH, ())
    if spent_sec is None:
        return 0.0
    payers = {owner, *(others if isinstance(others, list | tuple) else ())}
    return spent_sec / len(payers) if job in payers else 0.0


def device_sec(provenance: Mapping[str, object]) -> float | None:
    """Return the device time of a record [s]; None: not known."""
    found = provenance.get(DEVICE_SEC)
    return max(0.0, float(found)) if isinstance(found, int | float) and math.isfinite(found) else None
