"""Results of a refresh."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from fleet.domain.scope import RecordScope
from fleet.errors import FleetError
from fleet.optimizer.comparing.intervals import RatioInterval
from fleet.optimizer.refreshing.verdicts import Verdict, is_proven_beyond


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Result of one workload."""

    shash: str
    """Hash of the program that has the records."""

    operator: str
    models_sec: float
    verdict: Verdict
    old_digest: str
    """Object code of the former best's record; empty: not known."""

    new_digest: str
    """Object code of today's best; empty: it does not build."""

    new_shash: str = ""
    """Hash of the program that its operators have today; empty: the same, or not known."""

    ratio: float | None = None
    """Today's time over that of the old code, side by side, else over the stored time; None: not measured."""

    code: RatioInterval | None = None
    """Time of today's best over that of the old code."""

    problem: str = ""
    """Reason for a missing verdict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshReport:
    """Result of a refresh."""

    scope: RecordScope
    outcomes: tuple[Outcome, ...]
    environment: RatioInterval | None
    """Old code's times, now over then; None: not known."""

    carried: int
    """Records that count for today's TVM now; with a dry run, that would."""

    to_measure: int
    """Number of workloads with changed or unknown code."""

    expected_sec: float
    """Device time that was expected for all of them and the sentinels [s]."""

    refused_fragments: int = 0
    """Number of kept fragments that cannot be read or lowered."""

    refusal: str = ""
    """Sentence of the first of them."""

    device_sec: float = 0.0
    """Device time that was spent [s]."""

    is_dry_run: bool = False
    problem: FleetError | None = None
    """Error that ended the measurements."""

    @property
    def counts(self) -> Mapping[Verdict, int]:
        """Number of workloads by verdict."""
        found = Counter(one.verdict for one in self.outcomes)
        return {verdict: found[verdict] for verdict in Verdict}

    @property
    def new_programs(self) -> int:
        """Number of workloads with operators that are lowered to another program today."""
        return sum(bool(one.new_shash) for one in self.outcomes)

    def slower(self, share: float) -> list[Outcome]:
        """Return the workloads that are proven slower by more than a share."""
        return [one for one in self.outcomes if self._is_slower(one, share)]

    def _is_slower(self, one: Outcome, share: float) -> bool:
        if one.verdict is Verdict.SLOWER_BY_CODE:
            return is_proven_beyond(one.code, share)
        return one.verdict is Verdict.SLOWER_BY_ENVIRONMENT and is_proven_beyond(self.environment, share)
