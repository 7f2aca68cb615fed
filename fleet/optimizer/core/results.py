"""Results of measurements and builds: stored first, then applied to the job."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from fleet.domain.measuring import NO_VERDICT, ErrorKind, Measurement
from fleet.optimizer.core.candidates import Candidate, CandidateStage
from fleet.optimizer.core.events import Purpose, Store, Stored
from fleet.optimizer.core.job import BASELINE, Job
from fleet.optimizer.core.news import News, Topic
from fleet.optimizer.core.progress import UNTUNED_BOUND

if TYPE_CHECKING:
    from fleet.optimizer.core.progress import WorkloadProgress


class Results:
    """Results of one job. Every result is stored before anything else happens to it."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self.unstored: set[tuple[str, str]] = set()
        """Results without a record in the library yet, by workload and digest."""

        self.counted: set[tuple[str, str]] = set()
        """Candidates that count as trials of this job, by workload and digest."""

    def keep(
        self, workload: str, digest: str, measurement: Measurement, *, purpose: Purpose = Purpose.SEARCH, on: str = ""
    ) -> None:
        """Have a result stored.

        Args:
            on: name of the device that it was measured on; "": the job's last one.
        """
        self.unstored.add((workload, digest))
        if digest == BASELINE:
            candidate = Candidate(workload=workload, trace_json="", digest=BASELINE)
        else:
            candidate = self._job.candidates[workload, digest]
        device_name = on or self._job.progress.device_name
        self._job.emit(Store(candidate, device_name, measurement, purpose))

    def apply(self, stored: Stored) -> None:
        """Apply a result with a stored record."""
        result, candidate, measurement = stored.result, stored.result.candidate, stored.result.measurement
        self.unstored.remove((candidate.workload, candidate.digest))
        self._job.progress.last_record_sec = stored.at_sec
        item = self._job.workload(candidate.workload)
        if candidate.is_baseline:
            _book_baseline(item, measurement, may_close=result.purpose is Purpose.BASELINES)
        elif result.purpose is Purpose.SEARCH:
            self._book(item, candidate, measurement, stored)
        elif measurement.error is None:
            candidate.measurement = counting(candidate.measurement, measurement)
            item.right[candidate.trace_json] = candidate.median_sec

    def measured(self, workload: str) -> set[str]:
        """Return the digests of a workload's candidates that count as trials."""
        return {digest for shash, digest in self.counted if shash == workload}

    def _book(self, item: WorkloadProgress, candidate: Candidate, measurement: Measurement, stored: Stored) -> None:
        """Count one result. A repeated candidate keeps the result that counts."""
        is_again = candidate.record_id is not None
        if is_again and measurement.error in NO_VERDICT:
            return
        had_failed = candidate.measurement is not None and candidate.measurement.error is not None
        measurement = counting(candidate.measurement, measurement)
        candidate.measurement, candidate.record_id = measurement, stored.record_id
        candidate.stage = CandidateStage.RECORDED if measurement.error is None else CandidateStage.OUT
        if measurement.error is not None and not had_failed:
            item.errors[measurement.error] += 1
        if is_again:
            item.retime(candidate.trace_json, measurement.median_sec, is_disturbed=bool(measurement.disturbances))
            return
        if candidate.is_static:
            item.static_sec = measurement.median_sec
            item.static_trace = candidate.trace_json
        else:
            item.trials += 1
            self._job.progress.results_at_sec.append(stored.at_sec)
            self.counted.add((candidate.workload, candidate.digest))
            item.under_way.discard(candidate.digest)
        if measurement.error is None and self._job.progress.first_trial_sec is None:
            self._job.progress.first_trial_sec = stored.at_sec
        # A static schedule may equal an earlier trial's.
        item.records = [record for record in item.records if record.trace_json != candidate.trace_json]
        item.records.append(candidate.observation())
        if candidate.build is None:
            del self._job.candidates[candidate.workload, candidate.digest]


def counting(known: Measurement | None, newer: Measurement) -> Measurement:
    """Return the result that counts, by the rule of `Library.best`: the newer, unless it alone was disturbed."""
    if known is None or known.error is not None or known.disturbances:
        return newer
    return known if newer.error is None and newer.disturbances else newer


def _book_baseline(item: WorkloadProgress, measurement: Measurement, *, may_close: bool) -> None:
    if measurement.error is ErrorKind.TIMEOUT and may_close and math.isfinite(item.best_sec):
        item.untuned_sec, item.is_untuned_above = UNTUNED_BOUND * item.best_sec, True
        return
    if measurement.error is not None:
        if may_close and measurement.error not in NO_VERDICT:
            detail = measurement.error_message
            item.closing = News(topic=Topic.BASELINE_FAILED, error=measurement.error, detail=detail)
            item.untuned_sec = math.inf
        return
    is_disturbed = bool(measurement.disturbances)
    if not is_disturbed or item.is_untuned_disturbed or math.isinf(item.untuned_sec):
        item.untuned_sec, item.is_untuned_disturbed = measurement.median_sec, is_disturbed
        item.is_untuned_above = False
