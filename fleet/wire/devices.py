"""Devices, their inventories and readings on the wire."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fleet.domain.devices import DeviceState, DeviceStatus, Inventory, RuntimeKind, Telemetry
from fleet.v1 import device_pb2
from fleet.wire.health import mark_from_proto, mark_to_proto
from fleet.wire.times import optional_timestamp, timestamp_sec

_STATES: Mapping[DeviceState, device_pb2.DeviceState] = {
    DeviceState.AVAILABLE: device_pb2.DEVICE_STATE_AVAILABLE,
    DeviceState.LEASED: device_pb2.DEVICE_STATE_LEASED,
    DeviceState.OFFLINE: device_pb2.DEVICE_STATE_OFFLINE,
    DeviceState.FAULTED: device_pb2.DEVICE_STATE_FAULTED,
}
_STATES_BY_NUMBER: Mapping[int, DeviceState] = {number: state for state, number in _STATES.items()}
_RUNTIMES: Mapping[RuntimeKind, device_pb2.RuntimeKind] = {
    RuntimeKind.TVM: device_pb2.RUNTIME_KIND_TVM,
    RuntimeKind.PLAIN: device_pb2.RUNTIME_KIND_PLAIN,
    RuntimeKind.TVM_RPC: device_pb2.RUNTIME_KIND_TVM_RPC,
}
_RUNTIMES_BY_NUMBER = {number: runtime for runtime, number in _RUNTIMES.items()}
_OPTIONAL_READINGS = (
    *("temp_c", "freq_hz", "governor", "load_1min", "cpu_busy", "memory_available_bytes"),
    *("power_w", "battery_percent", "foreign_processes", "reference_sec"),
)


def state_to_proto(state: DeviceState) -> device_pb2.DeviceState:
    return _STATES[state]


def state_from_proto(value: int) -> DeviceState:
    """Read a state. One that is known only to newer peers is offline."""
    return _STATES_BY_NUMBER.get(value, DeviceState.OFFLINE)


def inventory_to_proto(inventory: Inventory) -> device_pb2.Inventory:
    return device_pb2.Inventory(
        kind=inventory.kind,
        labels=inventory.labels,
        target_json=inventory.target_json,
        device_model=inventory.device_model,
        host_fingerprint=inventory.host_fingerprint,
        memory_bytes=inventory.memory_bytes,
        core_count=inventory.core_count,
        tvm_version=inventory.tvm_version,
        facts=inventory.facts,
        is_simulated=inventory.is_simulated,
        runtime=_RUNTIMES[inventory.runtime],
        has_before_lease=inventory.has_before_lease,
    )


def inventory_from_proto(message: device_pb2.Inventory) -> Inventory:
    """Read an inventory. A runtime that is unset, or known only to newer peers, becomes TVM."""
    return Inventory(
        kind=message.kind,
        labels=dict(message.labels),
        target_json=message.target_json,
        device_model=message.device_model,
        host_fingerprint=message.host_fingerprint,
        memory_bytes=message.memory_bytes,
        core_count=message.core_count,
        tvm_version=message.tvm_version,
        facts=dict(message.facts),
        is_simulated=message.is_simulated,
        runtime=_RUNTIMES_BY_NUMBER.get(message.runtime, RuntimeKind.TVM),
        has_before_lease=message.has_before_lease,
    )


def telemetry_to_proto(telemetry: Telemetry) -> device_pb2.Telemetry:
    return device_pb2.Telemetry(
        read_at=optional_timestamp(telemetry.read_at_sec),
        trials=telemetry.trials,
        trials_per_min=telemetry.trials_per_min,
        last_error=telemetry.last_error,
        throttle_reasons=telemetry.throttle_reasons,
        **{name: getattr(telemetry, name) for name in _OPTIONAL_READINGS},
    )


def telemetry_from_proto(message: device_pb2.Telemetry) -> Telemetry:
    read: dict[str, Any] = {name: getattr(message, name) for name in _OPTIONAL_READINGS if message.HasField(name)}
    return Telemetry(
        read_at_sec=timestamp_sec(message.read_at),
        trials=message.trials,
        trials_per_min=message.trials_per_min,
        last_error=message.last_error,
        throttle_reasons=tuple(message.throttle_reasons),
        **read,
    )


def device_to_proto(device: DeviceStatus) -> device_pb2.Device:
    return device_pb2.Device(
        name=device.name,
        inventory=inventory_to_proto(device.inventory),
        state=state_to_proto(device.state),
        address=device.address,
        lease_name=device.lease_name,
        epoch=device.epoch,
        telemetry=telemetry_to_proto(device.telemetry) if device.telemetry != Telemetry() else None,
        reason=device.reason,
        holder=device.holder,
        holder_note=device.holder_note,
        bitstream_digest=device.bitstream_digest,
        agent_key_id=device.agent_key_id,
        health_mark=mark_to_proto(device.mark),
        attached_at=optional_timestamp(device.attached_at_sec),
        granted_at=optional_timestamp(device.granted_at_sec),
        relay_address=device.relay_address,
    )


def device_from_proto(message: device_pb2.Device) -> DeviceStatus:
    """Read a device. A state known only to newer peers becomes OFFLINE, since we cannot tell whether it is usable."""
    return DeviceStatus(
        name=message.name,
        inventory=inventory_from_proto(message.inventory),
        state=state_from_proto(message.state),
        address=message.address,
        lease_name=message.lease_name,
        epoch=message.epoch,
        telemetry=telemetry_from_proto(message.telemetry),
        reason=message.reason,
        attached_at_sec=timestamp_sec(message.attached_at) if message.HasField("attached_at") else None,
        holder=message.holder,
        holder_note=message.holder_note,
        granted_at_sec=timestamp_sec(message.granted_at) if message.HasField("granted_at") else None,
        bitstream_digest=message.bitstream_digest,
        agent_key_id=message.agent_key_id,
        mark=mark_from_proto(message.health_mark),
        relay_address=message.relay_address,
    )
