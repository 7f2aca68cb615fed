"""The word after `fleet devices`."""

from __future__ import annotations

import pytest

from fleet.cli.device_words import matching, named_selector, one_kind, own_labels
from fleet.domain.devices import DeviceStatus, Inventory
from fleet.errors import InvalidRequest, NotFound

_DEVICES = [
    DeviceStatus(
        name="devices/pi",
        inventory=Inventory(kind="simulated", labels={"board": "rpi4-64", "arch": "aarch64", "asimd": "true"}),
    ),
    DeviceStatus(name="devices/bench", inventory=Inventory(kind="cpu", labels={"room": "cellar", "host": "vm"})),
    DeviceStatus(name="devices/Pi4.lab", inventory=Inventory(kind="raspberry_pi")),
    DeviceStatus(name="devices/cpu", inventory=Inventory(kind="raspberry_pi")),
]
_COMMANDS, _KINDS = ("show", "reset-epochs"), ("cpu", "cuda", "simulated")


def _names(text: str) -> list[str]:
    return [device.name for device in matching(text, _DEVICES, commands=_COMMANDS, kinds=_KINDS)]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("cpu", ["devices/bench"]),
        ("cuda", []),
        ("room=cellar", ["devices/bench"]),
        ("room=attic", []),
        ("kind=drain", ["never"]),
        ("pi", ["devices/pi"]),
        ("Pi4.lab", ["devices/Pi4.lab"]),
        ("*", ["devices/pi", "devices/bench", "devices/Pi4.lab", "devices/cpu"]),
    ],
)
def test_a_word_is_a_selector_or_a_devices_name(text: str, names: list[str]) -> None:
    """A kind without devices matches none, without an error, and so does a condition."""
    assert [name for name in names if name != "never"] == _names(text)


@pytest.mark.parametrize(
    ("text", "selector"),
    [("Pi4.lab", "name=Pi4.lab"), ("devices/cpu", "name=cpu"), ("cpu", "cpu"), ("room=attic", "room=attic")],
)
def test_a_devices_name_becomes_a_selector(text: str, selector: str) -> None:
    """Also a name that no selector begins with; a kind stays one."""
    assert named_selector(text, _DEVICES) == selector


@pytest.mark.parametrize(
    ("word", "advice"),
    [
        ("drain", "show"),
        ("shwo", "did you mean 'show'"),
        ("bnch", "did you mean 'bench'"),
        ("cpus", "did you mean 'cpu'"),
        ("room", "write it like room=VALUE"),
    ],
)
def test_a_word_without_a_meaning_is_an_error(word: str, advice: str) -> None:
    """Before, it counted as a kind: "none of 17 devices matches", on stdout, with exit code 0."""
    with pytest.raises(InvalidRequest, match=advice) as refused:
        _names(word)

    assert "reset-epochs, show" in str(refused.value)


def test_labels_of_owners_are_shown_as_a_selector_has_them() -> None:
    """Labels with their own columns, and features of processors, are left out."""
    assert ["board=rpi4-64", "room=cellar", "", ""] == [own_labels(device) for device in _DEVICES]


def test_a_device_stands_for_others_of_its_model_only() -> None:
    """By selector or name; several models, or none, are refused."""
    pis = [DeviceStatus(name=f"devices/pi-{n}", inventory=Inventory(kind="cpu", device_model="pi4")) for n in (1, 2)]
    other = DeviceStatus(name="devices/vm", inventory=Inventory(kind="cpu", device_model="vm"))

    assert one_kind("cpu", pis).device_model == "pi4"
    assert one_kind("vm", [*pis, other]).device_model == "vm"
    with pytest.raises(InvalidRequest, match="'cpu' matches several kinds of devices: pi4, vm"):
        one_kind("cpu", [*pis, other])
    with pytest.raises(NotFound, match="no device matches 'kind=cuda'"):
        one_kind("kind=cuda", pis)
