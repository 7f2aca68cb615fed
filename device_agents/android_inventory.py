"""What a phone is in the fleet: its inventory, the target of its kernels, its telemetry. Pure."""

from __future__ import annotations

import json
import time

from cross.boards import Found, find_board, match, refine
from device_agents.android_config import AndroidConfig
from device_agents.android_facts import PhoneFacts, PhoneReadings, default_target
from device_agents.host import slug
from fleet.tvm_versions import tvm_version
from fleet.v1 import device_pb2
from fleet.wire import timestamp

_UNKNOWN_TARGET = '{"kind": "llvm"}'


def inventory_of(config: AndroidConfig, facts: PhoneFacts | None, *, kind: str, host_name: str) -> device_pb2.Inventory:
    """Return the inventory of a phone; without facts, as it was not seen yet, of one that only has a name."""
    serial = config.serial or ""
    labels = {"host": host_name, "serial": slug(serial), "runs-on": config.device_type}
    if config.emulated:
        labels["emulated"] = "true"
    if facts is None:
        # Enough for a line in the list, and no selector for an architecture matches it.
        unknown = {"arch": "unknown", "model": "unknown", "cores": "1"}
        return device_pb2.Inventory(
            kind=kind,
            labels={**labels, **unknown},
            target_json=_UNKNOWN_TARGET,
            device_model="Android, not seen yet",
            host_fingerprint=f"android-{serial}",
            core_count=1,
            is_simulated=config.emulated,
        )
    cores = _cores(config, facts)
    chosen = "" if config.cores == "all" else f" {config.cores}"
    on = f"{chosen} x{len(cores)}" if config.device_type == "cpu" else f" {config.device_type}"
    mcpu = facts.mcpu(cores)
    return device_pb2.Inventory(
        kind=kind,
        labels={**labels, **facts.labels(), "cores": str(len(cores)), **({"mcpu": mcpu} if mcpu else {})},
        target_json=_listed_target(config, facts),
        device_model=f"{facts.model}{on}",
        host_fingerprint=f"android-{serial}-{facts.boot_id}",
        memory_bytes=facts.memory_bytes,
        core_count=len(cores),
        tvm_version=tvm_version() or "",
        facts={"serial": serial, "SoC": facts.soc, "Android SDK": facts.sdk, "GPU": facts.gpu},
        is_simulated=config.emulated,
    )


def target_of(config: AndroidConfig, facts: PhoneFacts) -> str:
    """Return the TVM target: as configured, else of the board that the phone is, else by what it tells.

    Raises:
        ValueError: there is none to guess.
    """
    cores = _cores(config, facts)
    if isinstance(config.target, str):
        return refine(find_board(config.target), Found(core_count=len(cores)))
    if config.target is not None:
        return json.dumps(config.target)
    if config.device_type != "cpu":
        found = Found(kind="android", arch=facts.arch, model=facts.model, gpu=facts.gpu, features=facts.features)
        board = match(found)
        if board is not None and board.gpu.get("kind") == config.device_type:
            return refine(board, found)
    return json.dumps(default_target(facts, cores, config.device_type))


def telemetry_of(readings: PhoneReadings) -> device_pb2.Telemetry:
    """Return what was read last."""
    telemetry = device_pb2.Telemetry(read_at=timestamp(time.time()), throttle_reasons=readings.throttle_reasons)
    for name in ("temp_c", "battery_percent", "freq_hz", "governor", "load_1min", "memory_available_bytes"):
        value = getattr(readings, name)
        if value is not None:
            setattr(telemetry, name, value)
    return telemetry


def _listed_target(config: AndroidConfig, facts: PhoneFacts) -> str:
    try:
        return target_of(config, facts)
    except ValueError:
        return _UNKNOWN_TARGET  # as for the cores


def _cores(config: AndroidConfig, facts: PhoneFacts) -> tuple[int, ...]:
    try:
        return facts.cores(config.cores)
    except ValueError:
        return facts.cores("all")  # the device is unhealthy and says why; it is listed all the same
