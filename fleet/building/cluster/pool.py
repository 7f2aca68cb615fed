"""The optimizer's side of a cluster: the pool's interface, with tasks that run on builders through Dask.

A builder that dies costs time: Dask begins its tasks anew elsewhere, three times at most. So does a scheduler that
comes back within a minute: unfinished tasks are submitted again.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
import uuid
from collections.abc import Callable, Collection, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from fleet.building.cluster.address import ClusterAddress, settle, versions
from fleet.building.cluster.builder import DELIVERY, SLOT, Errand, TaskOutcome, errand_of, resource_name, run_errand
from fleet.building.cluster.delivery import Delivered, Delivery, run_delivery
from fleet.errors import BuildError, BuildersUnavailable, ConfigError

if TYPE_CHECKING:
    from distributed import Client

logger = logging.getLogger(__name__)

T = TypeVar("T")
P = ParamSpec("P")

_AWAY_SEC = 60.0
"""Limit of a scheduler's absence."""

_LOOK_SEC = 0.2
_CLOSE_SEC = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """Function for Dask to call."""

    name: str
    fn: Callable[..., object]
    payload: Errand | Delivery
    resource: str
    home: str
    """Builder that should preferably run it; "": any."""


class DaskPool:
    """Runs tasks on the builders of a cluster, each within a time limit that counts from its start there."""

    def __init__(
        self, cluster: ClusterAddress, *, timeout_sec: float = 30.0, connect_timeout_sec: float = 30.0
    ) -> None:
        """Store the arguments. `open` connects.

        Args:
            timeout_sec: limit for a task of `submit`.
            connect_timeout_sec: for finding the scheduler and a first builder.
        """
        self._cluster = cluster
        self.timeout_sec = timeout_sec
        self._connect_timeout_sec = connect_timeout_sec
        self._homes: dict[str, str] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="dask client", daemon=True)
        self._client: Client | None = None
        self._under_way: set[Future[Any]] = set()
        self._is_closed = False
        self.hosts: set[str] = set()
        """Fingerprints of the builders' machines, as far as known."""

    def open(self) -> None:
        """Connect, and wait for a first builder. Blocks.

        Raises:
            ConfigError: there is no Dask, the address or its certificates will not do, or all builders have other
                versions.
            BuildersUnavailable: no scheduler answers, or it has no builder.
        """
        self._cluster.check()
        settle()
        self._thread.start()
        try:
            self._wait_for(self._connect())
        except BaseException:  # also if cancelled or interrupted; raised again
            self.shutdown(wait=False)
            raise

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run `fn` on a builder within the pool's time limit."""
        return self._submit(self.timeout_sec, "", fn, args, kwargs)

    def submit_within(self, timeout_sec: float, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run `fn` on a builder within a time limit of its own."""
        return self._submit(timeout_sec, "", fn, args, kwargs)

    def submit_near(
        self, key: str, timeout_sec: float, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Future[T]:
        """Run `fn` on the builder, and in the process, that ran earlier tasks of this key, while that builder lives."""
        return self._submit(timeout_sec, key, fn, args, kwargs)

    def submit_delivery(self, builder: str, delivery: Delivery) -> Future[Delivered]:
        """Fetch an artifact from its builder; if that one is gone, another rebuilds it."""
        return self._begin(partial(self._run_delivery, builder, delivery))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more tasks. Without `wait`, drop those in progress: their futures are cancelled."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._thread.is_alive():
            if cancel_futures or not wait:
                for future in list(self._under_way):
                    future.cancel()
            concurrent.futures.wait(list(self._under_way))
            self._wait_for(self._close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        self._loop.close()

    def _wait_for(self, work: Coroutine[object, object, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _submit(
        self, timeout_sec: float, near: str, fn: Callable[..., T], args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Future[T]:
        errand = Errand(call=errand_of(fn, args, kwargs), timeout_sec=timeout_sec, near=near)
        return self._begin(partial(self._run_errand, fn.__name__, errand))

    def _begin(self, work: Callable[[Client], Coroutine[Any, Any, T]]) -> Future[T]:
        if self._is_closed or self._client is None:
            raise RuntimeError("the pool of builders is not open")
        future = asyncio.run_coroutine_threadsafe(work(self._client), self._loop)
        self._under_way.add(future)
        future.add_done_callback(self._under_way.discard)
        return future

    async def _run_errand(self, name: str, errand: Errand, client: Client) -> T:
        home = self._homes.get(errand.near, "")
        outcome = await self._outcome(client, _Call(name=name, fn=run_errand, payload=errand, resource=SLOT, home=home))
        if errand.near:
            self._homes[errand.near] = outcome.builder
        return cast("T", _value(outcome))

    async def _run_delivery(self, builder: str, delivery: Delivery, client: Client) -> Delivered:
        call = _Call(name="deliver", fn=run_delivery, payload=delivery, resource=DELIVERY, home=builder)
        return cast("Delivered", _value(await self._outcome(client, call)))

    async def _outcome(self, client: Client, call: _Call) -> TaskOutcome:
        from distributed import KilledWorker
        from distributed.client import FutureCancelledError

        while True:
            future = client.submit(
                call.fn,
                call.payload,
                key=f"{call.name}-{uuid.uuid4().hex}",
                pure=False,
                resources={resource_name(call.resource): 1},
                **({"workers": [call.home], "allow_other_workers": True} if call.home else {}),
            )
            try:
                outcome = cast("TaskOutcome", await future)
            except KilledWorker as error:
                raise BuildError(f"{call.name} was given up: each builder that took it went away; {error}") from error
            except FutureCancelledError as error:
                await self._scheduler_back(client, error)
            except asyncio.CancelledError:
                await future.cancel()
                raise
            else:
                self.hosts.add(outcome.host_fingerprint)
                return outcome

    async def _scheduler_back(self, client: Client, error: BaseException) -> None:
        """Wait until the client has reconnected.

        Raises:
            BuildersUnavailable: the scheduler stayed away.
        """
        while client.status == "connecting":  # noqa: ASYNC110 - Dask has no event for it
            await asyncio.sleep(_LOOK_SEC)
        if client.status != "running":
            raise BuildersUnavailable(
                f"the Dask scheduler {self._cluster.address} went away and did not come back within {_AWAY_SEC:g} s"
            ) from error

    async def _connect(self) -> None:
        from distributed import Client

        address = self._cluster.address
        await self._cluster.reach(self._connect_timeout_sec)
        client = Client(
            address,
            security=self._cluster.security(),
            asynchronous=True,
            set_as_default=False,
            timeout=_AWAY_SEC,
        )
        reason = "no Dask scheduler answers"
        try:
            async with asyncio.timeout(self._connect_timeout_sec):
                await client
                reason = "no builder has joined it; start one: fleet builder serve"
                await self._first_builder(client)
        except BaseException as error:  # also if cancelled or interrupted; raised again
            await client.close(timeout=_CLOSE_SEC)
            if isinstance(error, OSError | TimeoutError):
                raise BuildersUnavailable(f"{address}: {str(error) or reason}") from error
            raise
        self._client = client

    async def _first_builder(self, client: Client) -> None:
        while True:
            known = (await client.scheduler.identity(n_workers=-1))["workers"]
            offered = [(str(one["name"]), frozenset(one["resources"])) for one in known.values()]
            if found := matching(offered, self._cluster.address):
                self.hosts |= {name.rpartition(" ")[2] for name in found}
                break
            await asyncio.sleep(_LOOK_SEC)
        if await client.run_on_scheduler(_steals):
            logger.warning(
                "the Dask scheduler steals work, which costs warm searches; start it with 'fleet builder scheduler'",
                extra={"scheduler": self._cluster.address},
            )

    async def _close(self) -> None:
        if self._client is not None:
            await self._client.close(timeout=_CLOSE_SEC)


def matching(offered: Collection[tuple[str, Collection[str]]], address: str) -> list[str]:
    """Return the names of the builders with our versions; empty before the first one connects.

    Args:
        offered: name and resources of each Dask worker.

    Raises:
        ConfigError: there are builders, and all have others.
    """
    slots = {name: one for name, resources in offered for one in resources if one.startswith(SLOT)}
    found = sorted(name for name, one in slots.items() if one == resource_name(SLOT))
    if slots and not found:
        theirs = ", ".join(f"{name.split()[0]} has {one.removeprefix(SLOT)}" for name, one in sorted(slots.items()))
        raise ConfigError(f"no builder of {address} has {versions()}: {theirs}; install the same everywhere")
    return found


def _value(outcome: TaskOutcome) -> object:
    if outcome.answer.error is not None:
        raise outcome.answer.error
    return outcome.answer.value


def _steals(dask_scheduler: object) -> bool:
    return "stealing" in getattr(dask_scheduler, "extensions", {})
