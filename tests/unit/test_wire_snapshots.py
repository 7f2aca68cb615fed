"""The fleet as a value survives the trip through messages, and keeps its shape as JSON."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.domain.bookings import Booking
from fleet.domain.devices import DeviceState, DeviceStatus, Inventory, RuntimeKind, Telemetry
from fleet.domain.jobs import JobState, JobStatus, OptimizerStatus, Remaining
from fleet.domain.leases import Lease, LeaseClass, LeaseTerms, PendingRequest
from fleet.domain.narrowing import ClauseCount
from fleet.domain.snapshot import Snapshot
from fleet.domain.waits import BookingBefore, LeaseBefore, QuotaUse, Wait, WaitReason, wait_text
from fleet.v1 import device_pb2, fleet_service_pb2, job_pb2, lease_pb2
from fleet.wire.bookings import booking_from_proto, booking_to_proto
from fleet.wire.json_shape import device_json, snapshot_json, telemetry_json
from fleet.wire.leases import request_from_proto, request_to_proto
from fleet.wire.snapshots import snapshot_from_proto, snapshot_to_proto

moments = st.integers(1, 2**31).map(float)
"""Times in whole seconds, which a message and a float both hold exactly [s since 1970]."""

counts = st.integers(0, 2**31 - 1)
inventories = st.builds(
    Inventory,
    kind=st.text(),
    labels=st.dictionaries(st.text(), st.text(), max_size=3),
    memory_bytes=counts,
    core_count=counts,
    facts=st.dictionaries(st.text(), st.text(), max_size=3),
    is_simulated=st.booleans(),
    runtime=st.sampled_from(RuntimeKind),
    has_before_lease=st.booleans(),
)
readings = st.builds(
    Telemetry,
    read_at_sec=moments,
    temp_c=st.none() | st.floats(-50, 150),
    governor=st.none() | st.text(),
    foreign_processes=st.none() | counts,
    throttle_reasons=st.lists(st.text(), max_size=2).map(tuple),
)
devices = st.builds(
    DeviceStatus,
    name=st.text(),
    inventory=inventories,
    state=st.sampled_from(DeviceState),
    epoch=st.integers(0, 2**63),
    telemetry=readings,
    attached_at_sec=st.none() | moments,
    granted_at_sec=st.none() | moments,
)
leases = st.builds(
    Lease,
    name=st.text(),
    device_name=st.text(),
    epoch=counts,
    granted_at_sec=moments,
    expires_at_sec=moments,
    lease_class=st.none() | st.sampled_from(LeaseClass),
)
terms = st.builds(LeaseTerms, selector=st.text(), priority=st.integers(-100, 100))
requests = st.builds(PendingRequest, request_id=st.text(), terms=terms, asked_at_sec=moments)
quotas = st.builds(
    QuotaUse,
    account=st.text(),
    lease_class=st.sampled_from(LeaseClass),
    leases=counts,
    most_leases=st.just(math.inf) | counts,
    day_sec=moments,
    most_day_sec=st.just(math.inf) | moments,
)
leases_before = st.builds(
    LeaseBefore,
    device_name=st.text(),
    holder=st.text(),
    account=st.text(),
    lease_class=st.sampled_from(LeaseClass),
    held_sec=moments,
)
waits = st.builds(
    Wait,
    reason=st.sampled_from(WaitReason),
    match_count=counts,
    device_name=st.text(),
    detail=st.text(),
    quota=st.none() | quotas,
    leases=st.lists(leases_before, max_size=3).map(tuple),
    clauses=st.lists(st.builds(ClauseCount, st.text(), counts), max_size=3).map(tuple),
    booking=st.none()
    | st.builds(BookingBefore, name=st.text(), holder=st.text(), starts_in_sec=moments, ends_in_sec=moments),
)
bookings = st.builds(
    Booking,
    name=st.text(),
    selector=st.text(),
    device_count=counts,
    starts_at_sec=moments,
    ends_at_sec=moments,
    holder=st.text(),
    account=st.text(),
    booked_at_sec=moments,
    device_names=st.lists(st.text(), max_size=3).map(tuple),
    leased_count=counts,
    missing_device_names=st.lists(st.text(), max_size=3).map(tuple),
)
whole_secs = st.integers(0, 10**6).map(float)
jobs = st.builds(
    JobStatus,
    name=st.text(),
    decision=st.text(),
    state=st.sampled_from(JobState),
    started_at_sec=moments,
    share_done=st.floats(0, 1),
    left=st.none()
    | st.tuples(whole_secs, whole_secs, whole_secs)
    .map(sorted)
    .map(lambda secs: Remaining(from_sec=secs[0], expected_sec=secs[1], by_sec=secs[2])),
    optimizer=st.text(),
    builder_count=counts,
    rest_share=st.none() | st.floats(0, 10),
)
optimizers = st.builds(OptimizerStatus, name=st.text(), holder=st.text(), builder_count=counts)


@given(
    st.builds(
        Snapshot,
        version=counts,
        taken_at_sec=moments,
        devices=st.lists(devices, max_size=2).map(tuple),
        leases=st.lists(leases, max_size=2).map(tuple),
        requests=st.lists(requests, max_size=2).map(tuple),
        jobs=st.lists(jobs, max_size=2).map(tuple),
        bookings=st.lists(bookings, max_size=2).map(tuple),
        optimizers=st.lists(optimizers, max_size=2).map(tuple),
    )
)
def test_snapshots_survive(snapshot: Snapshot) -> None:
    """Devices, leases, requests, jobs, bookings and optimizers all arrive, with every state."""
    assert snapshot == snapshot_from_proto(snapshot_to_proto(snapshot))


def test_no_state_is_on_one_side_only() -> None:
    """A state added to the proto or to the enum alone would be lost in translation."""
    for prefix, states, values in (
        ("DEVICE_STATE", DeviceState, device_pb2.DeviceState.keys()),
        ("RUNTIME_KIND", RuntimeKind, device_pb2.RuntimeKind.keys()),
        ("JOB_STATE", JobState, job_pb2.JobState.keys()),
    ):
        assert {f"{prefix}_{state}" for state in states} == set(values) - {f"{prefix}_UNSPECIFIED"}


def test_unknown_states_and_runtimes_get_safe_defaults() -> None:
    """A device in an unknown state is unavailable; an unknown runtime counts as TVM, the only one of older versions."""
    message = fleet_service_pb2.Snapshot()
    message.devices.add(name="devices/x", state=99, inventory=device_pb2.Inventory(runtime=99))  # type: ignore[arg-type]

    (device,) = snapshot_from_proto(message).devices

    assert (DeviceState.OFFLINE, RuntimeKind.TVM) == (device.state, device.inventory.runtime)


@pytest.mark.parametrize(("sent", "read"), [(math.nan, 0.0), (-1.0, 0.0), (math.inf, 1.0)])
def test_a_job_is_between_its_beginning_and_its_end(sent: float, read: float) -> None:
    """Shares outside of 0 to 1 are limited, since bars are drawn of them."""
    message = fleet_service_pb2.Snapshot()
    message.jobs.add(name="jobs/x", share_done=sent)

    assert snapshot_from_proto(message).jobs[0].share_done == read


def test_json_has_the_names_and_the_defaults_of_the_protos() -> None:
    """Scripts find every field; missing readings and times are null. Numbers of 64 bits are numbers."""
    device = device_json(DeviceStatus(name="devices/x", state=DeviceState.AVAILABLE))

    assert {"name": "devices/x", "state": "available", "epoch": 0}.items() <= device.items()
    assert [device[name] for name in ("telemetry", "attached_at", "granted_at")] == [None] * 3
    assert telemetry_json(Telemetry(read_at_sec=1.5))["read_at"] == "1970-01-01T00:00:01.500Z"
    names = {field.name.removesuffix("_sec") for field in dataclasses.fields(Snapshot)}
    assert names == snapshot_json(Snapshot(started_at_sec=1)).keys()


@given(bookings)
def test_a_booking_survives_the_wire(booking: Booking) -> None:
    assert booking_from_proto(booking_to_proto(booking)) == booking


@given(waits)
def test_the_reason_of_a_wait_survives_the_wire(wait: Wait) -> None:
    """Its sentence is made from the data, and older clients find it in the field that they read."""
    request = PendingRequest(request_id="r", reason=wait_text(wait), wait=wait)
    message = request_to_proto(request)

    assert request_from_proto(message) == request
    assert message.reason == wait_text(wait)


def test_a_reason_of_a_newer_tracker_is_shown_as_its_text() -> None:
    """Older trackers send the text alone."""
    message = lease_pb2.PendingRequest(request_id="r", reason="the moon is full")
    assert request_from_proto(message).reason == "the moon is full"
    message.wait.reason = 99  # type: ignore[assignment]
    assert request_from_proto(message) == PendingRequest(request_id="r", reason="the moon is full")
