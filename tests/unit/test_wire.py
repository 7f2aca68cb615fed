"""Domain values survive the trip through messages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.base.text import sanitize
from fleet.domain.measuring import (
    MOST_RUNS,
    Call,
    Clocks,
    Disturbance,
    DisturbanceKind,
    ErrorKind,
    Evaluator,
    Measurement,
    ModuleKind,
    OperatorCall,
    OperatorProfile,
    Stop,
    Tensor,
    TensorSpec,
    Trial,
)
from fleet.domain.proving import Proof, ProofAnswer, ProofArgument, ProofOrder, ProofVerdict
from fleet.domain.shares import Reload
from fleet.v1 import measurement_pb2, session_service_pb2, tensor_pb2
from fleet.wire.leases import reload_from_proto, reload_to_proto
from fleet.wire.measurements import (
    call_from_proto,
    call_to_proto,
    disturbance_from_proto,
    disturbance_to_proto,
    error_kind_from_proto,
    error_kind_to_proto,
    evaluator_from_proto,
    evaluator_to_proto,
    measurement_from_proto,
    measurement_to_proto,
    trial_from_proto,
    trial_to_proto,
)
from fleet.wire.proofs import proof_from_proto, proof_order_from_proto, proof_order_to_proto, proof_to_proto
from fleet.wire.times import duration, duration_sec, timestamp, timestamp_sec

disturbances = st.builds(Disturbance, st.sampled_from(DisturbanceKind), st.text())
counts = st.integers(1, 2**31 - 1)
seconds = st.integers(0, 10**12).map(lambda nanos: nanos / 1e9)
specs = st.builds(
    TensorSpec,
    st.lists(st.integers(0, 2**40), max_size=5).map(tuple),
    st.sampled_from(["float32", "int8", "bool"]),
    st.booleans(),
)
tensors = st.builds(
    Tensor, st.builds(TensorSpec, st.lists(st.integers(0, 9)).map(tuple), st.sampled_from(["float32"])), st.binary()
)
arguments = st.lists(specs | tensors | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False), max_size=4).map(
    tuple
)
runs = st.integers(1, MOST_RUNS)
evaluators = st.builds(
    Evaluator,
    number=counts,
    repeat=runs,
    min_repeat_ms=counts,
    limit_zero_time_iterations=counts,
    cooldown_interval_ms=counts,
    repeats_to_cooldown=counts,
    flush_bytes=st.integers(0, 2**60),
    flush_cache=st.booleans(),
    max_repeat=runs,
    spread_target=st.floats(0.001, 1),
    give_up_above_sec=st.floats(0, 100),
    look_runs=runs,
    hopeless_above_sec=st.floats(0, 100),
    behind_above_sec=st.floats(0, 100),
    cool_below_c=st.floats(0, 100),
    cool_timeout_ms=counts,
    f_preproc=st.text(),
)

times = st.floats(0, 1e6)
operator_profiles = st.builds(
    OperatorProfile,
    calls=st.lists(st.builds(OperatorCall, function=st.text(), min_sec=times, median_sec=times), max_size=3).map(tuple),
    run_secs=st.lists(times, max_size=3).map(tuple),
)


@given(evaluators)
def test_evaluators_survive(evaluator: Evaluator) -> None:
    """Every knob arrives."""
    assert evaluator == evaluator_from_proto(evaluator_to_proto(evaluator))


def test_flushing_has_another_name_on_the_wire_and_the_same_number() -> None:
    """Peers of every version read each other: a field of v1 keeps its first name on the wire."""
    message = measurement_pb2.Evaluator(cache_flush_bytes=4096, flush_cpu_cache=True)

    assert Evaluator(flush_bytes=4096, flush_cache=True) == evaluator_from_proto(message)
    assert bytes([7 << 3, 0x80, 0x20, 8 << 3, 1]) == message.SerializeToString()


def test_an_empty_evaluator_is_the_default() -> None:
    """Unset means the default, as the proto says."""
    assert Evaluator() == evaluator_from_proto(measurement_pb2.Evaluator())


@given(
    st.builds(
        Trial,
        candidate_id=st.text(),
        artifact_digest=st.text(),
        function=st.text(min_size=1),
        args=arguments,
        evaluator=evaluators,
        timeout_sec=seconds,
        module_kind=st.sampled_from(ModuleKind),
        ends_batch=st.booleans(),
        operator_runs=st.integers(0, 1000),
        allow_poison=st.booleans(),
    )
)
def test_trials_survive(trial: Trial) -> None:
    """A trial arrives unchanged."""
    assert trial == trial_from_proto(trial_to_proto(trial))


def test_an_empty_trial_is_the_default() -> None:
    """Older clients leave out fields that they do not know."""
    message = measurement_pb2.MeasureRequest(candidate_id="a", artifact_digest="d")

    assert Trial(candidate_id="a", artifact_digest="d") == trial_from_proto(message)


@given(
    st.builds(
        Call,
        artifact_digest=st.text(),
        function=st.text(min_size=1),
        args=arguments,
        timeout_sec=seconds,
        module_kind=st.sampled_from(ModuleKind),
        is_apart=st.booleans(),
        allow_poison=st.booleans(),
    )
)
def test_calls_survive(call: Call) -> None:
    """Arrays arrive with their content, and numbers with their types."""
    assert call == call_from_proto(call_to_proto(call))


def test_an_empty_call_is_the_default() -> None:
    """Fields missing from a message have the defaults of a call."""
    message = session_service_pb2.CallRequest(artifact_digest="d")

    assert Call(artifact_digest="d") == call_from_proto(message)


def test_an_empty_argument_is_refused_by_its_position() -> None:
    """An empty argument is neither a number nor an empty array."""
    full, empty = tensor_pb2.Argument(int_value=1), tensor_pb2.Argument()

    with pytest.raises(ValueError, match="argument 1 is empty"):
        trial_from_proto(measurement_pb2.MeasureRequest(args=[full, empty]))


@given(
    st.builds(
        Measurement,
        candidate_id=st.text(),
        run_secs=st.lists(st.floats(0, 100), max_size=9).map(tuple),
        error=st.none() | st.sampled_from(ErrorKind),
        error_message=st.text().map(sanitize),
        signal=st.integers(0, 64),
        clocks=st.builds(Clocks, wait_sec=seconds, load_sec=seconds, run_sec=seconds),
        provenance=st.lists(disturbances, min_size=1).map(
            lambda found: {
                "before": {"temp_c": 41.5},
                "worker_pid": 77,
                "disturbances": [{"kind": one.kind.value, "text": one.text} for one in found],
            }
        ),
        stopped=st.none() | st.sampled_from(Stop),
        operators=st.none() | operator_profiles,
    )
)
def test_measurements_survive(measurement: Measurement) -> None:
    """Times, errors, clocks, provenance and the times of operators all arrive."""
    assert measurement == measurement_from_proto(measurement_to_proto(measurement))


@given(disturbances)
def test_disturbances_survive(disturbance: Disturbance) -> None:
    """Decisions depend on kinds: none may turn into another."""
    assert disturbance == disturbance_from_proto(disturbance_to_proto(disturbance))


def test_a_kind_of_disturbance_from_a_newer_peer_is_a_disturbance_all_the_same() -> None:
    """A peer that does not know the kind still repeats the measurement."""
    message = measurement_pb2.Disturbance(text="an earthquake")
    message.MergeFromString(b"\x08\x63")

    assert disturbance_from_proto(message) == Disturbance(DisturbanceKind.OTHER, "an earthquake")


@pytest.mark.parametrize("kind", [None, *ErrorKind])
def test_every_error_kind_survives(kind: ErrorKind | None) -> None:
    """The proto and the enum name the same kinds."""
    assert kind == error_kind_from_proto(error_kind_to_proto(kind))


def test_the_proto_has_no_other_kinds() -> None:
    """A kind added on one side only would be lost in translation."""
    assert {f"ERROR_KIND_{kind}" for kind in ErrorKind} == set(measurement_pb2.ErrorKind.keys()) - {
        "ERROR_KIND_UNSPECIFIED"
    }
    assert {f"DISTURBANCE_KIND_{kind}" for kind in DisturbanceKind} - {"DISTURBANCE_KIND_OTHER"} == set(
        measurement_pb2.DisturbanceKind.keys()
    ) - {"DISTURBANCE_KIND_UNSPECIFIED"}
    assert {f"MODULE_KIND_{kind}" for kind in ModuleKind} == set(measurement_pb2.ModuleKind.keys()) - {
        "MODULE_KIND_UNSPECIFIED"
    }


def test_a_kind_that_a_newer_peer_invented_reads_as_failed() -> None:
    """An old client does not take an unknown failure for a success."""
    assert ErrorKind.RUN_FAILED is error_kind_from_proto(9999)


@given(st.integers(0, 4 * 10**18))
def test_times_survive(nanos: int) -> None:
    """Timestamps and durations keep the precision of a float."""
    sec = nanos / 1e9
    assert timestamp_sec(timestamp(sec)) == pytest.approx(sec, abs=1e-6)
    assert duration_sec(duration(sec)) == pytest.approx(sec, abs=1e-6)


proof_arguments = st.builds(
    lambda spec, bank, is_fixed: ProofArgument(spec=spec, bank=b"" if spec.is_output else bank, is_fixed=is_fixed),
    specs,
    st.binary(min_size=1),
    st.booleans(),
)
proofs = st.builds(
    Proof,
    verdict=st.sampled_from(ProofVerdict),
    claimed_sec=times,
    measured_sec=times,
    least_sec=times,
    spread_sec=times,
    calls=counts,
    message=st.text(),
    answers=st.lists(
        st.builds(ProofAnswer, seed=st.binary(), call=counts, outputs=st.lists(tensors, max_size=2).map(tuple)),
        max_size=2,
    ).map(tuple),
)


@given(st.lists(proof_arguments, max_size=3).map(tuple), times, seconds, st.integers(1, 16))
def test_orders_of_proofs_survive(
    args: tuple[ProofArgument, ...], claimed_sec: float, timeout_sec: float, answers: int
) -> None:
    """Banks of inputs arrive with their types."""
    order = ProofOrder(
        artifact_digest="sha256:1", args=args, claimed_sec=claimed_sec, timeout_sec=timeout_sec, answers=answers
    )
    assert order == proof_order_from_proto(proof_order_to_proto(order))


@given(proofs)
def test_proofs_survive(proof: Proof) -> None:
    """A client knows its own claim, which is not sent back."""
    assert proof == proof_from_proto(proof_to_proto(proof), proof.claimed_sec)


@given(st.tuples(*[st.integers(0, 10_000)] * 3), seconds, seconds, st.booleans())
def test_rules_in_force_survive(
    counts: tuple[int, int, int], half_life_sec: float, starvation_sec: float, is_changed: bool
) -> None:
    reload = Reload(
        path="/var/lib/tracker.yaml",
        account_count=counts[0],
        changed_account_count=counts[1],
        class_count=counts[2],
        half_life_sec=half_life_sec,
        starvation_sec=starvation_sec,
        is_changed=is_changed,
    )
    assert reload == reload_from_proto(reload_to_proto(reload))
