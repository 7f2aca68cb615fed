"""Writes results to the library before anything else happens to them."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from functools import partial

from fleet.base.version import package_version
from fleet.cost_model.feature_codec import pack_program
from fleet.domain.charges import DEVICE_SEC, sharing
from fleet.domain.environment import ENVIRONMENT
from fleet.domain.making import Making, evaluator_facts
from fleet.domain.measuring import Measurement
from fleet.errors import InvalidRequest
from fleet.jobs.patience import patiently
from fleet.library import Library, Record, RecordKind, RecordProgram
from fleet.optimizer.conditions import Conditions
from fleet.optimizer.core.candidates import Candidate
from fleet.optimizer.core.events import Claim, KeepProof, MarkChecked, MarkWrong, Proposed, Purpose, Store, Stored

logger = logging.getLogger(__name__)

_NOTHING: tuple[Proposed, ...] = ()


class Recorder:
    """Writes the records of one job. Waits for an unavailable library, because measurements are expensive.

    Raises LibraryError or DiskFull if a result cannot be stored; the job must stop.
    """

    def __init__(self, library: Library, conditions: Conditions) -> None:
        self._library = library
        self._conditions = conditions

    async def claim(self, effect: Claim) -> AsyncGenerator[Proposed, None]:
        """Keep candidates that no other job measures or has measured."""
        conditions, traces = self._conditions, {one.digest: one.trace_json for one in effect.proposals}
        claims, name, scope = self._library.claims, conditions.job_name, conditions.scope
        ours = await patiently(partial(claims.take, name, effect.workload, scope, traces, since=conditions.since))
        sharers = await patiently(partial(claims.sharers, name, effect.workload, scope))
        kept = tuple(one for one in effect.proposals if one.digest in ours)
        yield Proposed(effect.workload, kept, taken=frozenset(traces) - ours, shared_with=sharers)

    async def store(self, effects: Sequence[Store]) -> AsyncGenerator[Stored, None]:
        """Commit results, in one transaction."""
        records = await asyncio.to_thread(lambda: [self._record(each) for each in effects])
        stored = await patiently(partial(self._library.add_records, records))
        at_sec = time.monotonic() - self._conditions.started_at
        for effect, record in zip(effects, stored, strict=True):
            yield Stored(effect, record.id, at_sec)

    async def mark(self, effect: MarkChecked | MarkWrong | KeepProof) -> AsyncGenerator[Proposed, None]:
        """Mark a candidate in the library as checked, proven or wrong."""
        if isinstance(effect, MarkChecked):
            await patiently(partial(self._library.mark_checked, effect.record_id))
        elif isinstance(effect, MarkWrong):
            await patiently(partial(self._library.mark_wrong, effect.record_id, effect.message))
        elif isinstance(effect, KeepProof):
            add, scope = self._library.add_proof, self._conditions.scope
            await patiently(partial(add, effect.workload, scope, effect.trace_json, effect.proof))
        for event in _NOTHING:
            yield event

    def _record(self, effect: Store) -> Record:
        conditions, measurement, candidate = self._conditions, effect.measurement, effect.candidate
        return Record(
            workload=candidate.workload,
            scope=conditions.scope,
            trace_json=candidate.trace_json,
            run_secs=measurement.run_secs,
            error=measurement.error,
            error_message=measurement.error_message,
            job_name=conditions.job_name,
            device_name=effect.device_name,
            device_fingerprint=conditions.device_fingerprint,
            artifact_digest=candidate.build.artifact.digest if candidate.build is not None else "",
            kind=_kind(candidate),
            provenance=_provenance(effect),
            checked=effect.is_checked,
            uid=uuid.uuid4().hex,  # chosen here: a store repeated after a lost answer is stored once
            program=_program(candidate),
            environment=_environment(measurement),
            making=Making(
                object_digest=candidate.build.artifact.object_digest if candidate.build is not None else "",
                version=package_version(),
                evaluator=evaluator_facts(conditions.evaluator),
            ),
        )


def _program(candidate: Candidate) -> RecordProgram | None:
    """Return the features for later training, or None on failure: the record is worth storing without them."""
    if candidate.features is None:
        return None
    try:
        return pack_program(candidate.program, candidate.features)
    except InvalidRequest as error:
        logger.warning("features not stored", extra={"workload": candidate.workload, "error": str(error)})
        return None


def _provenance(effect: Store) -> dict[str, object]:
    """Return the device's state, the candidate's device time, its payers and origin, and why its timing stopped
    early.
    """
    measurement, candidate = effect.measurement, effect.candidate
    device_sec = measurement.clocks.load_sec + measurement.clocks.run_sec
    return {
        **{key: value for key, value in measurement.provenance.items() if key != ENVIRONMENT},
        DEVICE_SEC: round(device_sec, 6),
        **(sharing(candidate.shared_with) if effect.purpose is Purpose.SEARCH else {}),
        **({"stopped": measurement.stopped.value} if measurement.stopped else {}),
        **(candidate.origin.provenance if candidate.origin is not None else {}),
    }


def _environment(measurement: Measurement) -> Mapping[str, object] | None:
    found = measurement.provenance.get(ENVIRONMENT)
    return found if isinstance(found, Mapping) else None


def _kind(candidate: Candidate) -> RecordKind:
    if candidate.is_baseline:
        return RecordKind.BASELINE
    return RecordKind.STATIC if candidate.is_static else RecordKind.CANDIDATE
