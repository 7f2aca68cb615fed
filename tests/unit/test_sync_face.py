"""`fleet` and `fleet.aio` are one client: what the one says of a method holds for the other."""

from __future__ import annotations

import inspect
import re

import pytest

from fleet.client import aio, device, remote, sync, sync_device

CLASSES = [
    (aio.Fleet, sync.Fleet),
    (device.Device, sync_device.Device),
    (remote.RemoteModule, sync_device.RemoteModule),
]

FOR_LOOPS = {"watch", "lacks", "note_put", "make_upload_ticket"}
"""Of `aio.Device`: for those who share its event loop, as the optimizer does."""

WAITING = (
    (r"\basync with\b", "with"),
    (r"\bawait ", ""),
    (r"\bAsyncGenerator\[(\w+), None\]", r"Generator[\1, None, None]"),
    (r"\bAbstractAsyncContextManager\b", "AbstractContextManager"),
    (r" \| AsyncIterable\[Trial\]", ""),
)
"""What an asynchronous name or sentence is called for those who wait."""

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
    """Its arguments, their defaults and types, what it returns, and every word of its documentation."""
    twin, found = getattr(there, name), getattr(here, name)

    assert waiting(str(inspect.signature(twin))) == str(inspect.signature(found))
    assert waiting(inspect.getdoc(twin) or "") == inspect.getdoc(found)
    assert inspect.getdoc(found)


@pytest.mark.parametrize(("there", "here"), CLASSES)
def test_a_property_is_the_same_with_and_without_asyncio(there: type, here: type) -> None:
    """Its type and its documentation; and there is nothing without asyncio that is not there with it."""
    for name, found in inspect.getmembers(there, lambda member: isinstance(member, property)):
        twin = getattr(here, name)
        assert inspect.getdoc(twin) == inspect.getdoc(found), name
        assert inspect.signature(twin.fget).return_annotation == inspect.signature(found.fget).return_annotation, name
    source = inspect.getsource(there)
    own = [name for name in vars(here) if not name.startswith("_")]
    assert [name for name in own if not re.search(rf"def {name}\(|self\.{name}\b", source)] == []


def test_editors_see_the_methods_as_they_are() -> None:
    """Each is a function in the source, not made when the module is loaded."""
    for _, here, name in METHODS:
        assert f"def {name}(" in inspect.getsource(here)
