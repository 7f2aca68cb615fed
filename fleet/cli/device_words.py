"""Interprets words that name devices: a selector, a device's name, or a mistyped command. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fleet.base.config import nearest
from fleet.dashboard import formatting
from fleet.domain.devices import DeviceStatus, Inventory
from fleet.domain.selectors import FOUND_LABELS, Selector, check_comparable, labels_of, parse_selector
from fleet.errors import InvalidRequest, NotFound

_SHOWN_LABELS = frozenset({"board"})
"""Labels of `FOUND_LABELS` that are useful and in no other column of the table."""


def matching(
    text: str, devices: Sequence[DeviceStatus], *, commands: Iterable[str], kinds: Iterable[str]
) -> list[DeviceStatus]:
    """Return the devices that match a word as a selector, else the device of that name.

    Args:
        commands: commands to suggest for a mistyped word.
        kinds: device kinds that a fleet may have, in addition to those of `devices`.

    Raises:
        InvalidRequest: the word is neither a valid selector, nor a kind, nor a name.
    """
    if named := _named(text, devices):
        return named
    selector = parse_selector(text)
    check_comparable(selector, [labels_of(device) for device in devices])
    found = [device for device in devices if selector.matches(labels_of(device))]
    if found or text in kinds or not _is_bare(text, selector):
        return found
    names = {formatting.short_name(device.name) for device in devices}
    here = {device.inventory.kind for device in devices}
    close = nearest(text, {*commands, *names, *here, *kinds})
    labels = {key for device in devices for key in labels_of(device)}
    meant = f"write it like {text}=VALUE" if text in labels else f"did you mean {close!r}?" if close else ""
    raise InvalidRequest(
        f"{text!r} is no kind of device, no device's name, and no command of 'fleet devices' "
        f"({', '.join(sorted(commands))})" + (f"; {meant}" if meant else "")
    )


def named_selector(text: str, devices: Sequence[DeviceStatus]) -> str:
    """Return a selector; for a bare word that is a device's name and no kind, the selector of that device."""
    word = text.strip()
    is_name = word.startswith("devices/") or _named(word, devices)
    return f"name={word.removeprefix('devices/')}" if is_name else text


def one_kind(text: str, devices: Sequence[DeviceStatus]) -> Inventory:
    """Return the facts of the devices that a selector or a name matches, which must be of one model.

    Raises:
        InvalidRequest: the selector is malformed, or they are of several models, targets or TVM versions.
        NotFound: none matches.
    """
    selector = parse_selector(named_selector(text, devices))
    matched = [one.inventory for one in devices if selector.matches(labels_of(one))]
    found = {(one.device_model, one.target_json, one.tvm_version): one for one in matched}
    if not found:
        raise NotFound(f"no device matches {text!r}; 'fleet devices' lists all")
    if len(found) > 1:
        models = ", ".join(sorted({one.device_model for one in matched}))
        raise InvalidRequest(f"{text!r} matches several kinds of devices: {models}; name one: name=DEVICE")
    return next(iter(found.values()))


def own_labels(device: DeviceStatus) -> str:
    """Return the labels that have no column in the table, in selector syntax.

    Processor features ("avx2=true") are left out: there are dozens.
    """
    hidden = FOUND_LABELS - _SHOWN_LABELS
    labels = sorted(device.inventory.labels.items())
    return ",".join(f"{key}={value}" for key, value in labels if key not in hidden and value != "true")


def _named(word: str, devices: Sequence[DeviceStatus]) -> list[DeviceStatus]:
    """Return the device of this name, unless the word is a kind of device."""
    if any(device.inventory.kind == word for device in devices):
        return []
    return [device for device in devices if formatting.short_name(device.name) == word]


def _is_bare(text: str, selector: Selector) -> bool:
    """Tell whether a selector is only a kind, as any single word can be."""
    return selector.kind == text.strip()
