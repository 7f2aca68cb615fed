"""Calls a server's rpcs with raw bytes, without a network."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import grpc

from fleet.identity.credentials import Credentials
from fleet.wire.rpc import ERROR_KEY

BETWEEN = b"\xf5\xf5\xf5"
"""Separator of the messages of one call."""

MOST_ANSWERS = 20


class Aborted(Exception):
    """The server ended a call."""

    def __init__(self, code: grpc.StatusCode, details: str, *, is_documented: bool) -> None:
        super().__init__(f"{code.name}: {details}")
        self.is_documented = is_documented
        """True if one of our errors did."""


@dataclass(slots=True, kw_only=True)
class Caller:
    """The caller's credentials and metadata: the part of gRPC's context that servers use."""

    proof: Credentials
    header: tuple[tuple[str, bytes], ...] = ()
    done: list[Callable[[object], None]] = field(default_factory=list)

    def peer(self) -> str:
        return "ipv4:127.0.0.1:4000"

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        return {"x509_pem_cert": [self.proof.certificate_pem]}

    def invocation_metadata(self) -> Iterable[tuple[str, str | bytes]]:
        return self.header

    def add_done_callback(self, callback: Callable[[object], None], /) -> None:
        self.done.append(callback)

    async def abort(self, code: grpc.StatusCode, details: str, trailing: Sequence[tuple[str, str]] = ()) -> NoReturn:
        raise Aborted(code, details, is_documented=any(key == ERROR_KEY for key, _ in trailing))


@dataclass(frozen=True, slots=True)
class _Details:
    method: str
    invocation_metadata: tuple[()] = ()


class Server:
    """Stands in for gRPC's server at the registration of services."""

    def __init__(self) -> None:
        self._handlers: list[Any] = []

    def add_generic_rpc_handlers(self, handlers: Iterable[Any]) -> None:
        self._handlers += handlers

    async def call(
        self, rpc: str, messages: Sequence[bytes], caller: Caller, *, most_answers: int = MOST_ANSWERS
    ) -> None:
        """Make one call, "fleet.v1.Service/Method", and read the first answers.

        Raises:
            Aborted: it ended with an error from outside our hierarchy.
        """
        found = (handlers.service(_Details(f"/{rpc}")) for handlers in self._handlers)
        handler = next(one for one in found if one is not None)
        try:
            if handler.response_streaming:
                async with contextlib.aclosing(handler.stream_stream(_each(messages), caller)) as answers:
                    count = 0
                    async for answer in answers:
                        handler.response_serializer(answer)
                        count += 1
                        if count == most_answers:
                            break
            else:
                handler.response_serializer(await handler.stream_unary(_each(messages), caller))
        except Aborted as aborted:
            if not aborted.is_documented:
                raise
        finally:
            for callback in caller.done:
                callback(None)


async def _each(messages: Sequence[bytes]) -> AsyncIterator[bytes]:
    for message in messages:
        await asyncio.sleep(0)  # each in a separate turn of the loop, as from a network
        yield message
