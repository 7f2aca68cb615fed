"""Applies results to the job, once they are in the library."""

from __future__ import annotations

import math
from dataclasses import replace

from fleet.base.quantities import time_text
from fleet.cost_model.observation import NO_FEATURES, Observation
from fleet.domain.measuring import NO_VERDICT, ErrorKind, Measurement
from fleet.domain.proving import Proof
from fleet.optimizer.core import events as ev
from fleet.optimizer.core.entries import Candidate, CandidateStage, Purpose
from fleet.optimizer.core.ledger import BASELINE, Ledger
from fleet.optimizer.core.progress import UNTUNED_BOUND, WorkloadProgress


class Recording(Ledger):
    """Records results. Nothing else happens to a result before it is stored."""

    def _ask_to_store(self, batch: int, workload: str, digest: str, measurement: Measurement, *, on: str = "") -> None:
        """Ask for a record. `on`: the device that was measured on; "": the job's last one."""
        candidate = self.candidates.get((workload, digest))
        is_run_off = batch in self.batches and self.batches[batch].purpose is Purpose.RUN_OFF
        self.unstored[workload, digest] = (batch, measurement)
        self._effects.append(
            ev.Store(
                workload=workload,
                digest=digest,
                trace_json=candidate.trace_json if candidate else "",
                artifact_digest=candidate.artifact.digest if candidate and candidate.artifact else "",
                device_name=on or self.progress.device_name,
                measurement=measurement,
                is_checked=True if is_run_off and candidate else None,
                is_static=candidate is not None and candidate.is_static,
                features=candidate.features if candidate else None,
                program=candidate.program if candidate else None,
            )
        )

    def _store(self, event: ev.Stored) -> None:
        number, measurement = self.unstored.pop((event.workload, event.digest))
        purpose = self.batches[number].purpose if number in self.batches else Purpose.SEARCH
        self.progress.last_record_sec = event.at_sec
        item = self.workload(event.workload)
        if event.digest == BASELINE:
            self._book_baseline(item, measurement, may_close=purpose is Purpose.BASELINES)
        elif purpose is Purpose.SEARCH:
            self._book(item, self.candidates[event.workload, event.digest], measurement, event)
        elif purpose is Purpose.RUN_OFF and measurement.error is None:
            candidate = self.candidates[event.workload, event.digest]
            candidate.measurement = counting(candidate.measurement, measurement)
            item.right[candidate.trace_json] = candidate.median_sec

    def _book(self, item: WorkloadProgress, candidate: Candidate, measurement: Measurement, stored: ev.Stored) -> None:
        """Count one result. A candidate that was measured again has the result that counts."""
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
            retime(item, candidate, measurement.median_sec, is_disturbed=bool(measurement.disturbances))
            return
        if candidate.is_static:
            item.static_sec = measurement.median_sec
            item.static_trace = candidate.trace_json
        else:
            item.trials += 1
            self.counted.add((candidate.workload, candidate.digest))
            item.under_way.discard(candidate.digest)
        if measurement.error is None and self.progress.first_trial_sec is None:
            self.progress.first_trial_sec = stored.at_sec
        # A static schedule may be an earlier trial's.
        item.records = [record for record in item.records if record.trace_json != candidate.trace_json]
        item.records.append(
            Observation(
                workload=candidate.workload,
                trace_json=candidate.trace_json,
                run_sec=measurement.median_sec,
                features=NO_FEATURES if candidate.features is None else candidate.features,
                program=candidate.program,
                is_disturbed=bool(measurement.disturbances),
            )
        )
        if candidate.artifact is None:
            del self.candidates[candidate.workload, candidate.digest]

    def _book_baseline(self, item: WorkloadProgress, measurement: Measurement, *, may_close: bool) -> None:
        if measurement.error is ErrorKind.TIMEOUT and may_close and math.isfinite(item.best_sec):
            item.untuned_sec, item.is_untuned_above = UNTUNED_BOUND * item.best_sec, True
            return
        if measurement.error is not None:
            if may_close and measurement.error not in NO_VERDICT:
                item.closed_because = f"its unscheduled program failed: {measurement.error} {measurement.error_message}"
                item.untuned_sec = math.inf
            return
        is_disturbed = bool(measurement.disturbances)
        if not is_disturbed or item.is_untuned_disturbed or math.isinf(item.untuned_sec):
            item.untuned_sec, item.is_untuned_disturbed = measurement.median_sec, is_disturbed
            item.is_untuned_above = False

    def _reject(self, item: WorkloadProgress, candidate: Candidate, fault: str) -> None:
        """Record a candidate as wrong, and forget its time, so that the search does not build on it."""
        if candidate.record_id is not None:
            self._effects.append(ev.MarkWrong(candidate.record_id, fault))
        item.errors[ErrorKind.WRONG_OUTPUT] += 1
        item.right.pop(candidate.trace_json, None)
        retime(item, candidate, math.inf)
        self._notify(f"{item.workload.operator}: a candidate gives wrong results and is discarded: {fault}")

    def _refuse(self, item: WorkloadProgress, candidate: Candidate, proof: Proof) -> None:
        """Record that a candidate's claimed time is refuted, and forget that time."""
        item.errors[ErrorKind.TIME_NOT_PROVEN] += 1
        retime(item, candidate, math.inf)
        self._withdraw(item, candidate.trace_json, proof)

    def _withdraw(self, item: WorkloadProgress, trace_json: str, proof: Proof) -> None:
        item.right.pop(trace_json, None)
        item.proven.pop(trace_json, None)
        self._effects.append(ev.KeepProof(item.workload.shash, trace_json, proof))
        claimed, measured = time_text(proof.claimed_sec), time_text(proof.measured_sec)
        seen = f", and took {measured} by the agent's clock" if proof.measured_sec else ""
        self._notify(
            f"{item.workload.operator}: a candidate is discarded because its time is not proven: "
            f"it claimed {claimed}{seen}; {proof.message}"
        )


def counting(known: Measurement | None, newer: Measurement) -> Measurement:
    """Return which of two results of one candidate counts, as `Library.best` chooses: the newer, unless it alone was
    disturbed.
    """
    if known is None or known.error is not None or known.disturbances:
        return newer
    return known if newer.error is None and newer.disturbances else newer


def retime(item: WorkloadProgress, candidate: Candidate, run_sec: float, *, is_disturbed: bool = False) -> None:
    """Let the search see a candidate's new time [s]; infinite if it failed."""
    item.records = [
        replace(record, run_sec=run_sec, is_disturbed=is_disturbed)
        if record.trace_json == candidate.trace_json
        else record
        for record in item.records
    ]
