"""Wrappers that run an asynchronous method of the same name on the client's thread and wait for its result.

Names, arguments, types and docstrings are those of the asynchronous method: `inspect` and `help()` read them through
`functools.wraps`, type checkers through `ParamSpec`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Concatenate, Generic, ParamSpec, TypeVar

from fleet.client.event_thread import EventThread

P = ParamSpec("P")
T = TypeVar("T")
AsyncT = TypeVar("AsyncT")


class Blocking(Generic[AsyncT]):
    """Base of synchronous wrappers of asynchronous objects."""

    def __init__(self, inner: AsyncT, thread: EventThread) -> None:
        self._inner = inner
        self._thread = thread

    def __repr__(self) -> str:
        return repr(self._inner)


def blocking(
    method: Callable[Concatenate[AsyncT, P], Coroutine[object, object, T]],
) -> Callable[Concatenate[Blocking[AsyncT], P], T]:
    """Return a method that runs this one on the client's thread and waits for its result."""

    @functools.wraps(method)
    def waiting(self: Blocking[AsyncT], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._thread.run(method(self._inner, *args, **kwargs))

    return waiting


def documented_as(twin: Callable[..., object]) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Give a method the docstring of its asynchronous twin."""

    def document(method: Callable[P, T]) -> Callable[P, T]:
        method.__doc__ = twin.__doc__
        return method

    return document
