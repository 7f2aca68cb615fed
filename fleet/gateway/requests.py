"""Messages of stock clients to a gateway, answered as TVM's tracker answers them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fleet.client.aio import Fleet
from fleet.domain.devices import DeviceStatus
from fleet.domain.lease_class import LeaseClass
from fleet.domain.leases import LeaseTerms, make_terms
from fleet.errors import FleetError, NotAllowed
from fleet.gateway.access_keys import AccessKey, AccessKeys
from fleet.gateway.client_process import ClientFinder
from fleet.gateway.counts import GatewayCounts
from fleet.gateway.grants import Grants
from fleet.gateway.kept_leases import KeptLeases
from fleet.gateway.keys import is_known, selector_of, summarize, with_version
from fleet.gateway.options import GatewayOptions
from fleet.gateway.peers import PeerSocket
from fleet.gateway.revocations import Revocations
from fleet.wire import tvm_frames as frames
from fleet.wire.tvm_frames import Code

logger = logging.getLogger(__name__)

_MAX_KEYS = 1_000
"""Number of remembered keys of clients."""

_FRESH_SEC = 1.0
_NEWS_SEC = 0.1
"""Shortest time between two looks for a server of an unknown key."""

_PURPOSE = "stock TVM client"


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The client of a connection."""

    own: PeerSocket | None
    """The other end if it belongs to the gateway's user on this machine. All others need an access key."""

    host: str
    reached_at: tuple[str, int]
    """Address and port of this machine to which it connected."""


class Requests:
    """Answers messages."""

    def __init__(
        self,
        client: Fleet,
        options: GatewayOptions,
        leases: KeptLeases,
        grants: Grants,
        counts: GatewayCounts,
        access_keys: AccessKeys,
        revocations: Revocations,
    ) -> None:
        self._client = client
        self._version = options.served_version
        self._lease_class = LeaseClass(options.lease_class)
        self._leases = leases
        self._grants = grants
        self._counts = counts
        self._access_keys = access_keys
        self._revocations = revocations
        self._finder = ClientFinder()
        self._keys: dict[str, None] = {}
        """Keys that clients of this user requested, oldest first."""

        self._found: dict[str, tuple[str, float]] = {}
        """Selectors by key, with the time at which they were found [s]."""

        self._waiting: Counter[str] = Counter()
        """Number of requests that wait, by key."""

        self._takes_servers = options.registrations is not None

    async def answer(self, message: frames.Message, caller: Caller) -> bytes:
        """Return the reply to a message.

        Raises:
            BrokenMessage: its arguments are malformed.
        """
        match message.code:
            case Code.PING | Code.UPDATE_INFO:
                return frames.success()
            case Code.SUMMARY:
                return frames.result(await self._summary(caller))
            case Code.GET_PENDING_MATCHKEYS:
                return frames.format_frame([])
            case Code.REQUEST:
                request = frames.parse_request(message.arguments)
                try:
                    return frames.result(await self._grant(request, caller))
                except FleetError as error:
                    self._counts.refusals[type(error).__name__] += 1
                    return frames.failure(str(error))
            case _:
                return frames.failure()

    async def _grant(self, request: frames.Request, caller: Caller) -> list[object]:
        """Lease a device, and return the address and match key of its session."""
        access_key, key = self._admit(request.key, caller)
        key_id = access_key.key_id if access_key is not None else ""
        with self._noted(key):
            terms = await self._terms(request, key, access_key)
            client = await self._finder.find(caller.own.inode) if caller.own is not None else None
            try:
                async with self._revocations.watching(key_id):
                    device = await self._leases.take(terms)
            except BaseException:  # also if cancelled; raised again
                if client is not None:
                    client.close()
                raise
        self._counts.grants += 1
        return [*caller.reached_at, self._grants.add(terms, device, caller.host, client, key_id=key_id)]

    async def _terms(self, request: frames.Request, key: str, access_key: AccessKey | None) -> LeaseTerms:
        selector = await self._selector_for(key)
        if access_key is None:
            self._remember(key)
        return make_terms(
            selector,
            lease_class=self._lease_class,
            priority=request.priority,
            purpose=f"{_PURPOSE}, key {access_key.key_id}" if access_key is not None else _PURPOSE,
            account=access_key.account if access_key is not None else "",
        )

    async def _selector_for(self, key: str) -> str:
        """Return the selector that a key stands for. Found anew every second: stock runners ask for each candidate."""
        now_sec = asyncio.get_running_loop().time()
        self._found = {key: one for key, one in self._found.items() if now_sec - one[1] < _FRESH_SEC}
        if key not in self._found:
            devices = await self._devices_for(key)
            self._found[key] = with_version(selector_of(key, devices), self._version, devices), now_sec
        return self._found[key][0]

    async def _devices_for(self, key: str) -> Sequence[DeviceStatus]:
        """Return all devices. Where servers register, wait until one has the key, as TVM's tracker does."""
        devices: Sequence[DeviceStatus] = await self._client.devices()
        if self._takes_servers and not is_known(key, devices):
            async with contextlib.aclosing(self._client.watch(_NEWS_SEC)) as snapshots:
                async for snapshot in snapshots:
                    if is_known(key, snapshot.devices):
                        return snapshot.devices
        return devices

    @contextlib.contextmanager
    def _noted(self, key: str) -> Iterator[None]:
        """Count a request as waiting."""
        self._waiting[key] += 1
        try:
            yield
        finally:
            self._waiting[key] -= 1
            self._waiting += Counter()  # forgets keys without requests

    def _admit(self, key: str, caller: Caller) -> tuple[AccessKey | None, str]:
        """Return the access key of a request, and the rest of its tracker key.

        Raises:
            NotAllowed: the caller needs an access key, and has none.
        """
        secret, _, rest = key.partition("/")
        access_key = self._access_keys.find(secret) if rest else None
        if access_key is not None:
            return access_key, rest
        if caller.own is not None:
            return None, key
        logger.warning("refused a request without a valid access key", extra={"host": caller.host})
        raise NotAllowed(
            "this gateway needs an access key, and this one is unknown or revoked; write tracker_key='SECRET/KEY' with "
            "the secret that 'fleet gateway key create' printed"
        )

    def _remember(self, key: str) -> None:
        self._keys[key] = None
        if len(self._keys) > _MAX_KEYS:
            del self._keys[next(iter(self._keys))]

    async def _summary(self, caller: Caller) -> dict[str, object]:
        """Describe the fleet to this user's clients. Others could not prove that they have an access key."""
        if caller.own is None:
            return {"queue_info": {}, "server_info": []}
        kept = self._leases.idle_names  # before the tracker's answer: a lease may end meanwhile
        keys = summarize(await self._client.devices(), self._keys, kept, self._waiting)
        return {
            "queue_info": {key: {"free": one.free, "pending": one.pending} for key, one in keys.items()},
            "server_info": [
                {"key": f"server:{key}", "addr": list(address or caller.reached_at)}
                for key, one in keys.items()
                for address in one.servers
            ],
        }
