"""An agent: messages of every rpc, from a holder with a good token, and tokens of others."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import grpc.aio
from google.protobuf.message import DecodeError, Message

from device_agents.config import make_drivers, parse_config
from device_agents.serving.admission import Admission
from device_agents.serving.attach import Hello, TrackerLink
from device_agents.serving.device import ServedDevice
from device_agents.serving.lease_logs import LeaseLogs
from device_agents.serving.log_service import LeaseLogService
from device_agents.serving.membership import Membership
from device_agents.serving.poison import PoisonList
from device_agents.serving.revoked_callers import RevokedCallers
from device_agents.serving.service import SessionService
from device_agents.serving.sessions import SessionTable
from device_agents.serving.store import ArtifactStore
from device_agents.serving.tracker_clock import TrackerClock
from device_agents.workers.limits import WorkerLimits
from device_agents.workers.pool import WorkerPool
from fleet.domain.tokens import Claims
from fleet.identity.roles import Role
from fleet.testing.identity import credentials, key_id
from fleet.v1 import agent_service_pb2, measurement_pb2, tensor_pb2
from fleet.v1 import lease_log_service_pb2 as logs_pb
from fleet.v1 import session_service_pb2 as pb
from fleet.wire import stubs
from fleet.wire.peers import Guard
from fleet.wire.times import duration, timestamp
from fleet.wire.tokens import TOKEN_HEADER, sign_claims
from tests.fuzz.calls import BETWEEN, Caller, Server
from tests.fuzz.loops import ServerLoop
from tests.fuzz.target import Target, no_loop
from tests.fuzz.targets.places import scratch
from tests.fuzz.targets.proofs import SIGNER

_DEVICE = "devices/sim"
_MIB = 1024 * 1024
_ARTIFACT = b"latency_us:1 pretends to be an artifact"
_DIGEST = f"sha256:{hashlib.sha256(_ARTIFACT).hexdigest()}"
_SESSION_RPCS = (
    *("FindMissing", "PutArtifact", "Measure", "Call", "Program", "MakeUploadTicket", "OpenSession"),
    *("CloseSession", "WatchLogs", "Prove", "CallInPieces", "ProveInPieces", "Tunnel"),
)
AGENT_RPCS = (*(f"SessionService/{name}" for name in _SESSION_RPCS), "LeaseLogService/WatchLeaseLog")
"""Rpcs by the first byte of an input: new ones come last, or the corpus changes its meaning."""
_ENDLESS, _WAIT_SEC = ("SessionService/WatchLogs", "LeaseLogService/WatchLeaseLog"), 0.02


async def open_agent(stack: AsyncExitStack, server: grpc.aio.Server, guard: Guard | None = None) -> None:
    """Serve an agent with a simulated device and a worker."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fleet-fuzz-")))
    entry = {"driver": "simulated", "name": "sim", "time_scale": 0.0}
    drivers = make_drivers(parse_config({"devices": [entry]}))
    preloads = [driver.preload for driver in drivers if driver.preload]
    pool = WorkerPool(folder / "workers", preloads, WorkerLimits(memory_bytes=256 * _MIB, disk_bytes=16 * _MIB))
    for driver in drivers:
        await driver.open(pool)
    await pool.open()
    stack.push_async_callback(pool.close)
    store = ArtifactStore(folder / "artifacts", 64 * _MIB)
    store.open()
    clock = TrackerClock()
    clock.learn(1_000.0)
    devices = [ServedDevice(driver, asyncio.Lock()) for driver in drivers]
    logs = LeaseLogs(folder / "logs", clock.now_sec)
    logs.open()
    sessions = SessionTable(devices, Admission([_DEVICE], clock), pool, store, logs)
    sessions.trust(SIGNER.public_key)
    stack.push_async_callback(sessions.close)
    stubs.add_session_service(server, SessionService(sessions, store), guard)
    stubs.add_lease_log_service(server, LeaseLogService(logs, RevokedCallers(_no_keys)), guard)


async def _no_keys() -> frozenset[str]:
    return frozenset()


def token(epoch: int = 7, holder_key_id: str | None = None) -> bytes:
    """Return the token of a lease of that device; of a user's, unless a key is named."""
    claims = Claims(
        lease_name=f"leases/{epoch}",
        device_name=_DEVICE,
        epoch=epoch,
        issued_at_sec=1_000.0,
        expires_at_sec=1_000_000.0,
        holder_key_id=key_id(Role.USER) if holder_key_id is None else holder_key_id,
    )
    return sign_claims(claims, SIGNER).SerializeToString()


class _Agent:
    """An agent's service in this process, with a simulated device and a worker, and without a port."""

    def __init__(self) -> None:
        self._loop: ServerLoop | None = None
        self._stack = AsyncExitStack()
        self._server = Server()

    def call(self, content: bytes) -> float:
        """Call the rpc that the first byte selects, with the messages that follow."""
        rpc = AGENT_RPCS[(content[0] if content else 0) % len(AGENT_RPCS)]
        return self._say(rpc, content[1:].split(BETWEEN), token())

    def enter(self, shown: bytes) -> float:
        """Call with a token."""
        return self._say("SessionService/FindMissing", [b""], shown)

    def close(self) -> None:
        if self._loop is not None:
            self._loop.run(self._stack.aclose())
            self._loop.close()
        self._loop = None

    def _say(self, rpc: str, messages: Sequence[bytes], shown: bytes) -> float:
        if self._loop is None:
            self._loop = ServerLoop()
            self._loop.run(open_agent(self._stack, self._server))  # type: ignore[arg-type]
        return self._loop.run(self._call(rpc, messages, shown))

    async def _call(self, rpc: str, messages: Sequence[bytes], shown: bytes) -> None:
        caller = Caller(proof=credentials(Role.USER), header=((TOKEN_HEADER, shown),))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_WAIT_SEC if rpc in _ENDLESS else None):
                await self._server.call(f"fleet.v1.{rpc}", messages, caller)


def _of(rpc: str, *messages: bytes) -> bytes:
    named = rpc if "/" in rpc else f"SessionService/{rpc}"
    return bytes([AGENT_RPCS.index(named)]) + BETWEEN.join(messages)


def _chunks(make: Callable[..., Message], content: bytes) -> list[bytes]:
    middle = len(content) // 2
    first = make(size_bytes=len(content), piece=content[:middle])
    return [first.SerializeToString(), make(piece=content[middle:]).SerializeToString()]


def _calls() -> list[bytes]:
    put = pb.PutArtifactRequest(digest=_DIGEST, size_bytes=len(_ARTIFACT), chunk=_ARTIFACT)
    spec = tensor_pb2.TensorSpec(shape=[2, 2], dtype="float32")
    trial = measurement_pb2.MeasureRequest(
        candidate_id="c",
        artifact_digest=_DIGEST,
        args=[tensor_pb2.Argument(fill=spec)],
        evaluator=measurement_pb2.Evaluator(repeat=2, max_repeat=3),
        timeout=duration(2.0),
    )
    tensor = tensor_pb2.Tensor(spec=spec, content=bytes(16))
    call = pb.CallRequest(
        artifact_digest=_DIGEST,
        args=[tensor_pb2.Argument(tensor=tensor), tensor_pb2.Argument(output=spec)],
        timeout=duration(2.0),
    )
    proof = pb.ProveRequest(
        artifact_digest=_DIGEST, args=[pb.ProofArgument(spec=spec, bank=bytes(16))], claimed_sec=1e-3
    )
    return [
        _of("PutArtifact", put.SerializeToString()),
        _of("PutArtifact", put.SerializeToString(), put.SerializeToString()),
        _of("FindMissing", pb.FindMissingRequest(digests=[_DIGEST, _DIGEST]).SerializeToString()),
        _of("Measure", trial.SerializeToString(), trial.SerializeToString()),
        _of("Call", call.SerializeToString()),
        _of("Program", pb.ProgramRequest(bitstream_digest=_DIGEST, registers_yaml="a: b").SerializeToString()),
        _of("MakeUploadTicket", b""),
        _of("OpenSession", b""),
        _of("CloseSession", b""),
        _of("WatchLogs", b""),
        _of("LeaseLogService/WatchLeaseLog", logs_pb.WatchLeaseLogRequest(lease_name="leases/7").SerializeToString()),
        _of("Prove", proof.SerializeToString()),
        _of("CallInPieces", *_chunks(pb.CallInPiecesRequest, call.SerializeToString())),
        _of("ProveInPieces", *_chunks(pb.ProveInPiecesRequest, proof.SerializeToString())),
        _of("Tunnel", pb.TunnelRequest(content=b"bytes").SerializeToString()),
        _of("Measure", *_chunks(measurement_pb2.MeasureRequest, trial.SerializeToString())),
    ]


def _answer(content: bytes) -> None:
    """Have an agent take a message of its tracker, and ask it about a program."""
    clock, poison = TrackerClock(), PoisonList()
    link = TrackerLink(
        Membership(scratch(), "127.0.0.1:1"),
        lambda: Hello(agent_id="a", address=":1", inventories={}),
        [],
        clock,
        SessionTable([], Admission([_DEVICE], clock), None, None),  # type: ignore[arg-type] # neither is used
        poison=poison,
    )
    with contextlib.suppress(DecodeError):
        response = agent_service_pb2.AttachResponse.FromString(content)
        response.ClearField("public_key")  # an agent ends its stream over a bad key
        link._take(response)  # noqa: SLF001 - the rest of it needs a tracker
    poison.has(_DIGEST)
    assert not poison.unsent()


def _answers() -> list[bytes]:
    poison = agent_service_pb2.Poison(digest=_DIGEST, expires=timestamp(2_000.0))
    fence = agent_service_pb2.Fence(device_name=_DEVICE, epoch=3, nonce="n", live_lease_name="leases/3")
    notice = agent_service_pb2.AttachNotice(kind=1, device_name=_DEVICE, other_address="there:1")
    first = agent_service_pb2.AttachResponse(
        tracker_time=timestamp(1_000.0),
        public_key=SIGNER.public_key,
        fences=[fence],
        notices=[notice],
        poison=[poison],
    )
    return [first.SerializeToString()]


_called, _entered = _Agent(), _Agent()
AGENT = [
    Target(
        name="agent_calls",
        run=_called.call,
        close=_called.close,
        seeds=_calls,
        words=(BETWEEN, _DIGEST.encode(), b"sha256:", b"float32", b"int8"),
        quick_inputs=200,
    ),
    Target(
        name="agent_tokens",
        run=_entered.enter,
        close=_entered.close,
        seeds=lambda: [token(), token(8), token(2**62)],
        words=(b"leases/7", b"devices/sim"),
    ),
    Target(
        name="tracker_answers",
        run=no_loop(_answer),
        seeds=_answers,
        words=(_DIGEST.encode(), b"sha256:", b"devices/sim"),
    ),
]
