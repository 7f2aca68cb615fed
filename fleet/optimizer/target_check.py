"""Check of a user's target against the leased device, before the first build."""

from __future__ import annotations

from cross.targets.target import Target, parse_target
from fleet.artifacts.fit import check_target
from fleet.domain.devices import Inventory
from fleet.errors import InvalidRequest


def check_device(target: Target, inventory: Inventory, *, device_name: str) -> None:
    """Refuse a target that does not fit the device.

    Raises:
        InvalidRequest: another kind of hardware or another processor architecture.
        ArtifactRefused: the code may use features that the device's processor or GPU lacks.
    """
    kind, arch = parse_target(inventory.target_json).kind, inventory.labels.get("arch", "")
    named, own = (target.kind, kind) if target.kind != kind else (target.arch, arch or target.arch)
    if named != own:
        raise InvalidRequest(
            f"the target is for {named}, and {device_name} is {own}; leave --target out to tune for that device, or "
            f"choose another one with --on (fleet devices lists them)"
        )
    check_target(target.json, inventory, device_name=device_name)
