"""`fleet` and `fleet.aio` are one client: documentation of a method holds in both."""

from __future__ import annotations

import inspect
import re
from typing import assert_type

import pytest

from fleet.artifacts.artifact import Artifact
from fleet.client import aio, device, remote, sync, sync_device
from fleet.domain.devices import DeviceStatus
from fleet.domain.proving import Proof

CLASSES = [
    (aio.Fleet, sync.Fleet),
    (device.Device, sync_device.Device),
    (remote.RemoteModule, sync_device.RemoteModule),
]

FOR_LOOPS = {"watch", "watch_yield", "lacks", "note_put", "make_upload_ticket", "tunnel"}
"""Methods of `aio.Device` for code that shares its event loop, as the optimizer does."""

WAITING = (
    (r"\bAsyncGenerator\[(\w+), None\]", r"Generator[\1, None, None]"),
    (r"\bAbstractAsyncContextManager\b", "AbstractContextManager"),
    (r" \| AsyncIterable\[Trial\]", ""),
)
"""Types of the asynchronous client and their blocking counterparts."""

METHODS = [
    (there, here, name)
    for there, here in CLASSES
    for name, found in inspect.getmembers(there, inspect.isfunction)
    if (name == "__call__" or not name.startswith("_")) and not (there is device.Device and name in FOR_LOOPS)
]


def waiting(text: str) -> str:
    for pattern, replacement in WAITING:
        text = re.sub(pattern, replacement, text)
    return text


@pytest.mark.parametrize(("there", "here", "name"), METHODS, ids=[f"{one.__name__}.{name}" for one, _, name in METHODS])
def test_a_method_is_the_same_with_and_without_asyncio(there: type, here: type, name: str) -> None:
    """Arguments, defaults, types, return values and documentation are equal."""
    twin, found = getattr(there, name), getattr(here, name)

    assert waiting(str(inspect.signature(twin))) == str(inspect.signature(found))
    assert inspect.getdoc(found)
    assert inspect.getdoc(twin) == inspect.getdoc(found)


@pytest.mark.parametrize(("there", "here"), CLASSES)
def test_a_property_is_the_same_with_and_without_asyncio(there: type, here: type) -> None:
    """Types and documentation are equal, and all blocking properties exist with asyncio, too."""
    for name, found in inspect.getmembers(there, lambda member: isinstance(member, property)):
        twin = getattr(here, name)
        assert inspect.getdoc(twin) == inspect.getdoc(found), name
        assert inspect.signature(twin.fget).return_annotation == inspect.signature(found.fget).return_annotation, name
    source = inspect.getsource(there)
    own = [name for name in vars(here) if not name.startswith("_")]
    assert [name for name in own if not re.search(rf"def {name}\(|self\.{name}\b", source)] == []


def check_types(client: sync.Fleet, leased: sync.Device) -> None:
    """Show a type checker calls of blocking methods; never called."""
    assert_type(client.devices("cpu"), list[DeviceStatus])
    assert_type(leased.prove(Artifact.of_file("a.so"), [], 1.0, answers=3), Proof)
    client.devices(3)  # type: ignore[arg-type]
    client.history()  # type: ignore[call-arg]
    leased.release(1)  # type: ignore[call-arg]
