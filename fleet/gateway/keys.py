"""Tracker keys of stock TVM clients as selectors of the fleet. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from fleet.base.network import host_and_port, is_address
from fleet.domain.devices import DeviceState, DeviceStatus
from fleet.domain.selectors import labels_of, parse_selector
from fleet.errors import InvalidRequest, NoMatchingDevice

Address: TypeAlias = tuple[str, int]

ALIAS = "tvm_key"
"""Label by which an agent's owner gives a device a tracker key."""

_REGISTERED = "tvm_registered"
"""Kind of devices behind servers that registered with an agent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySummary:
    """One tracker key."""

    servers: tuple[Address | None, ...]
    """One for each device: the address of a server that registered and is there, or None."""

    free: int
    pending: int
    """Requests that wait."""


def selector_of(key: str, devices: Iterable[DeviceStatus]) -> str:
    """Return the selector that a key stands for: devices with this alias, if there are any, else the key itself.

    Raises:
        InvalidRequest: the key is neither an alias nor a selector.
    """
    if any(labels_of(device).get(ALIAS) == key for device in devices):
        return f"{ALIAS}={key}"
    return str(parse_selector(key))


def is_known(key: str, devices: Iterable[DeviceStatus]) -> bool:
    """Tell whether a key is the alias of a device, or a selector that one matches."""
    return any(labels.get(ALIAS) == key or _matches(key, labels) for labels in map(labels_of, devices))


def with_version(selector: str, version: str, devices: Sequence[DeviceStatus]) -> str:
    """Return the selector, limited to devices with this version of TVM.

    The encoding of arguments differs between versions, and the protocol does not say which it is.

    Args:
        version: of the client's environment: "0.27".

    Raises:
        NoMatchingDevice: all matching devices have other versions, or no TVM.
    """
    wanted = parse_selector(selector)
    matching = [device for device in devices if wanted.matches(labels_of(device))]
    versions = {device.inventory.tvm_version for device in matching}
    if matching and not any(is_version(found, version) for found in versions):
        found = ", ".join(f"TVM {one}" if one else "no TVM" for one in sorted(versions))
        raise NoMatchingDevice(
            f"no device for {selector!r} has TVM {version}, as this gateway's environment; they have {found}; "
            "name another version with --tvm-version"
        )
    return str(parse_selector(f"{selector},tvm={version}|{version}.*"))


def is_version(found: str, version: str) -> bool:
    """Tell whether a full version is of a version that may lack its last parts."""
    return found == version or found.startswith(f"{version}.")


def summarize(
    devices: Iterable[DeviceStatus], keys: Collection[str], kept: Collection[str], waiting: Mapping[str, int]
) -> dict[str, KeySummary]:
    """Return the keys that stock clients can use, with their devices: aliases, kinds, and the given keys.

    Args:
        keys: selectors that clients asked for before.
        kept: names of leased devices that this gateway would hand out at once.
        waiting: number of waiting requests by key.
    """
    servers, free = defaultdict[str, list[Address | None]](list), Counter[str]()
    for device in devices:
        labels, address = labels_of(device), registered_address(device)
        own = {labels[name] for name in (ALIAS, "kind") if labels.get(name)}
        own = {key for key in own if address is not None or ":" not in key}
        own |= {key for key in keys if _matches(key, labels)}
        is_free = device.state is DeviceState.AVAILABLE or device.name in kept
        free.update(own if is_free else dict.fromkeys(own, 0))
        if address is None or is_free or device.state is DeviceState.LEASED:
            for key in own:
                servers[key].append(address)
    return {
        key: KeySummary(servers=tuple(servers[key]), free=free[key], pending=waiting.get(key, 0))
        for key in sorted({*free, *waiting})
    }


def registered_address(device: DeviceStatus) -> Address | None:
    """Return the address of a TVM RPC server that registered; None for another device."""
    address = device.inventory.facts.get("address", "")
    if device.inventory.kind != _REGISTERED or not is_address(address):
        return None
    return host_and_port(address)


def _matches(key: str, labels: dict[str, str]) -> bool:
    try:
        return parse_selector(key).matches(labels)
    except InvalidRequest:
        return False
