"""Domain values survive the trip through messages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet import wire
from fleet.measuring import Clocks, ErrorKind, Evaluator, Measurement, ModuleKind, TensorSpec, Trial
from fleet.v1 import measurement_pb2

counts = st.integers(1, 2**31 - 1)
seconds = st.integers(0, 10**12).map(lambda nanos: nanos / 1e9)
specs = st.builds(
    TensorSpec,
    st.lists(st.integers(0, 2**40), max_size=5).map(tuple),
    st.sampled_from(["float32", "int8", "bool"]),
    st.booleans(),
)
evaluators = st.builds(
    Evaluator,
    number=counts,
    repeat=counts,
    min_repeat_ms=counts,
    limit_zero_time_iterations=counts,
    cooldown_interval_ms=counts,
    repeats_to_cooldown=counts,
    cache_flush_bytes=st.integers(0, 2**60),
    flush_cpu_cache=st.booleans(),
    max_repeat=counts,
    spread_target=st.floats(0.001, 1),
    give_up_above_sec=st.floats(0, 100),
    cool_below_c=st.floats(0, 100),
    cool_timeout_ms=counts,
    f_preproc=st.text(),
)


@given(evaluators)
def test_evaluators_survive(evaluator: Evaluator) -> None:
    """Every knob arrives."""
    assert evaluator == wire.evaluator_from_proto(wire.evaluator_to_proto(evaluator))


def test_an_empty_evaluator_is_the_default() -> None:
    """Unset means the default, as the proto says."""
    assert Evaluator() == wire.evaluator_from_proto(measurement_pb2.Evaluator())


@given(
    st.builds(
        Trial,
        candidate_id=st.text(),
        artifact_digest=st.text(),
        function=st.text(min_size=1),
        args=st.lists(specs, max_size=4).map(tuple),
        evaluator=evaluators,
        timeout_sec=seconds,
        module_kind=st.sampled_from(ModuleKind),
        ends_batch=st.booleans(),
    )
)
def test_trials_survive(trial: Trial) -> None:
    """What is asked for is what is measured."""
    assert trial == wire.trial_from_proto(wire.trial_to_proto(trial))


@given(
    st.builds(
        Measurement,
        candidate_id=st.text(),
        run_secs=st.lists(st.floats(0, 100), max_size=9).map(tuple),
        error=st.none() | st.sampled_from(ErrorKind),
        error_message=st.text(),
        signal=st.integers(0, 64),
        clocks=st.builds(Clocks, wait_sec=seconds, load_sec=seconds, run_sec=seconds),
        provenance=st.just({"before": {"temp_c": 41.5}, "worker_pid": 77}),
    )
)
def test_measurements_survive(measurement: Measurement) -> None:
    """Times, errors, clocks and provenance all arrive."""
    assert measurement == wire.measurement_from_proto(wire.measurement_to_proto(measurement))


@pytest.mark.parametrize("kind", [None, *ErrorKind])
def test_every_error_kind_survives(kind: ErrorKind | None) -> None:
    """The proto and the enum name the same kinds."""
    assert kind == wire.error_kind_from_proto(wire.error_kind_to_proto(kind))


def test_the_proto_has_no_other_kinds() -> None:
    """A kind added on one side only would be lost in translation."""
    assert {f"ERROR_KIND_{kind}" for kind in ErrorKind} == set(measurement_pb2.ErrorKind.keys()) - {
        "ERROR_KIND_UNSPECIFIED"
    }
    assert {f"MODULE_KIND_{kind}" for kind in ModuleKind} == set(measurement_pb2.ModuleKind.keys()) - {
        "MODULE_KIND_UNSPECIFIED"
    }


def test_a_kind_that_a_newer_peer_invented_reads_as_failed() -> None:
    """An old client does not take an unknown failure for a success."""
    assert ErrorKind.RUN_FAILED is wire.error_kind_from_proto(9999)


@given(st.integers(0, 4 * 10**18))
def test_times_survive(nanos: int) -> None:
    """Timestamps and durations keep what a float can hold."""
    sec = nanos / 1e9
    assert wire.timestamp_sec(wire.timestamp(sec)) == pytest.approx(sec, abs=1e-6)
    assert wire.duration_sec(wire.duration(sec)) == pytest.approx(sec, abs=1e-6)
