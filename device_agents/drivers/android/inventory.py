"""Inventory of a phone, and the target of its kernels. Pure."""

from __future__ import annotations

import json

from cross.targets.boards import Found, find_board, match, refine
from device_agents.drivers.android.config import AndroidConfig
from device_agents.drivers.android.facts import PhoneFacts, default_target
from device_agents.machine.host import slug
from fleet.domain.devices import Inventory, RuntimeKind
from fleet.domain.tvm_versions import tvm_version

_UNKNOWN_TARGET = '{"kind": "llvm"}'


def inventory_of(config: AndroidConfig, facts: PhoneFacts | None, *, kind: str, host_name: str) -> Inventory:
    """Return the inventory of a phone. Without facts (not seen yet), the phone only has a name."""
    serial = config.serial or ""
    labels = {"host": host_name, "serial": slug(serial), "runs-on": config.device_type}
    if facts is None:
        # Enough to list the phone. No selector for an architecture matches it.
        unknown = {"arch": "unknown", "model": "unknown", "cores": "1"}
        return Inventory(
            kind=kind,
            labels={**labels, **unknown},
            target_json=_UNKNOWN_TARGET,
            device_model="Android, not seen yet",
            host_fingerprint=f"android-{serial}",
            core_count=1,
            is_simulated=config.emulated,
            runtime=RuntimeKind.TVM_RPC,
        )
    cores = _cores(config, facts)
    chosen = "" if config.cores == "all" else f" {config.cores}"
    on = f"{chosen} x{len(cores)}" if config.device_type == "cpu" else f" {config.device_type}"
    mcpu = facts.mcpu(cores)
    return Inventory(
        kind=kind,
        labels={**labels, **facts.labels(), "cores": str(len(cores)), **({"mcpu": mcpu} if mcpu else {})},
        target_json=_listed_target(config, facts),
        device_model=f"{facts.model}{on}",
        host_fingerprint=f"android-{serial}-{facts.boot_id}",
        memory_bytes=facts.memory_bytes,
        core_count=len(cores),
        tvm_version=tvm_version() or "",
        facts={"serial": serial, "SoC": facts.soc, "Android SDK": facts.sdk, "GPU": facts.gpu, "system": facts.system},
        is_simulated=config.emulated,
        runtime=RuntimeKind.TVM_RPC,
    )


def target_of(config: AndroidConfig, facts: PhoneFacts) -> str:
    """Return the TVM target: as configured, else that of a known board, else a guess from the phone's facts.

    Raises:
        ValueError: no target can be guessed.
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


def _listed_target(config: AndroidConfig, facts: PhoneFacts) -> str:
    try:
        return target_of(config, facts)
    except ValueError:
        return _UNKNOWN_TARGET  # see `cores`


def _cores(config: AndroidConfig, facts: PhoneFacts) -> tuple[int, ...]:
    try:
        return facts.cores(config.cores)
    except ValueError:
        return facts.cores("all")  # the device is unhealthy and reports the reason; it is listed all the same
