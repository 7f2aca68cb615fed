"""The process that runs candidates: forked by its keeper from the warm process, one per session, disposable.

It answers each WorkerRequest on its socket with one WorkerResponse, and ends when the socket does. Before it touches
anything it gives itself a session and process group of its own, limits, a directory, and a log; and it asks the
kernel to kill it when its parent dies.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Self, TypeVar

from device_agents.jail.confine import confine, filter_calls
from device_agents.jail.spec import JailSpec
from device_agents.machine import linux
from device_agents.machine.frames import HEADER, format_frame, parse_header
from device_agents.runtimes.contract import (
    MAX_MESSAGE_CHARS,
    OUT_OF_MEMORY_EXIT_CODE,
    CandidateFailed,
    Runtime,
    ServesRpc,
    WorkerEnd,
    classify,
)
from device_agents.workers.proof_steps import ProofSteps
from fleet.base.inspection import allow_inspection
from fleet.domain.measuring import ErrorKind, Measurement
from fleet.errors import InvalidRequest
from fleet.v1 import measurement_pb2, session_service_pb2, worker_pb2
from fleet.wire.measurements import (
    call_from_proto,
    error_kind_to_proto,
    measurement_to_proto,
    tensor_to_proto,
    trial_from_proto,
)

M = TypeVar("M")
T = TypeVar("T")

_SOCKET_FD = 3
_ADDRESS_SPACE_HEADROOM_BYTES = 2 * 1024**3
"""Libraries, thread stacks and malloc arenas reserve address space that they never use: RLIMIT_AS is the device's
memory plus this. The agent checks the resident memory."""

_OPEN_FILES = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOrder:
    """Order of the agent to fork a worker, sent as JSON."""

    runtime: str
    settings: Mapping[str, object] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    directory: str
    """The worker's own; exists, and is removed by the agent afterwards."""

    memory_limit_bytes: int
    disk_limit_bytes: int
    cpus: tuple[int, ...] = ()
    """Logical CPUs that it is pinned to; empty: any."""

    limits_address_space: bool = True
    jail_spec: JailSpec
    """Parameters of its jail."""

    @classmethod
    def from_json(cls, text: bytes) -> Self:
        """Parse the agent's message."""
        content = json.loads(text)
        return cls(**{**content, "jail_spec": JailSpec(**content["jail_spec"])})


def become_worker(order: WorkerOrder, socket_fd: int, log_fd: int, parent_pid: int) -> None:
    """Turn a freshly forked process into a worker, serve, and never return. `parent_pid`: the keeper's."""
    code = 0
    try:
        _settle(order, socket_fd, log_fd, parent_pid)
        with socket.socket(fileno=_SOCKET_FD) as connection:
            serve(connection, make_runtime(order.runtime, order.settings))
    except (BrokenPipeError, ConnectionResetError):
        # The agent ended the session between a request and its response.
        code = 0
    except WorkerEnd as end:
        with contextlib.suppress(OSError):
            sys.stderr.write(str(end)[:MAX_MESSAGE_CHARS])
            sys.stderr.flush()
        code = end.exit_code
    except MemoryError:
        code = OUT_OF_MEMORY_EXIT_CODE
    except BaseException as error:  # noqa: BLE001 - whatever it is, it must not run on in the copy of the warm process
        with contextlib.suppress(OSError):
            sys.stderr.write(f"worker failed: {type(error).__name__}: {error}\n")
            sys.stderr.flush()
        code = 1
    os._exit(code)


def make_runtime(name: str, settings: Mapping[str, object]) -> Runtime:
    """Make the runtime named "module:Class"."""
    module_name, _, class_name = name.partition(":")
    runtime: Runtime = getattr(importlib.import_module(module_name), class_name)(**settings)
    return runtime


def serve(connection: socket.socket, runtime: Runtime) -> None:
    """Answer requests until the other end closes."""
    proofs = ProofSteps(runtime)
    while True:
        header = _receive(connection, HEADER.size)
        if header is None:
            return
        content = _receive(connection, parse_header(header))
        if content is None:
            return
        request = worker_pb2.WorkerRequest.FromString(content)
        kind = request.WhichOneof("kind")
        if kind == "rpc_session" and isinstance(runtime, ServesRpc):
            _send(connection, worker_pb2.WorkerResponse(rpc_session=worker_pb2.RpcSessionResponse()))
            runtime.serve_rpc(connection.detach())
            return
        response = proofs.answer(request.proof, request.artifact_path) if kind == "proof" else answer(request, runtime)
        _send(connection, response)
        if response.is_last:
            return


def answer(request: worker_pb2.WorkerRequest, runtime: Runtime) -> worker_pb2.WorkerResponse:
    """Run one request; a candidate's failure is part of the response."""
    match request.WhichOneof("kind"):
        case "reference":
            return worker_pb2.WorkerResponse(reference=worker_pb2.ReferenceResponse(secs=_reference_secs(runtime)))
        case "rpc_session":
            impossible = "this device serves no sessions of TVM's RPC protocol; lease it with a client of the fleet"
            return worker_pb2.WorkerResponse(rpc_session=worker_pb2.RpcSessionResponse(impossible=impossible))
        case "call":
            return _answer_call(request.call, request.artifact_path, runtime)
        case _:
            return _answer_trial(request.measure, request.artifact_path, runtime)


def _answer_trial(message: measurement_pb2.MeasureRequest, path: str, runtime: Runtime) -> worker_pb2.WorkerResponse:
    try:
        measurement = runtime.measure(_converted(trial_from_proto, message), path)
    except Exception as error:  # noqa: BLE001 - outermost edge of a candidate: every failure becomes its result
        failure = classify(error)
    else:
        return worker_pb2.WorkerResponse(measurement=measurement_to_proto(measurement))
    measurement = Measurement(
        candidate_id=message.candidate_id, error=failure.kind, error_message=str(failure)[:MAX_MESSAGE_CHARS]
    )
    return worker_pb2.WorkerResponse(measurement=measurement_to_proto(measurement), is_last=failure.is_fatal)


def _answer_call(message: session_service_pb2.CallRequest, path: str, runtime: Runtime) -> worker_pb2.WorkerResponse:
    try:
        outputs = runtime.call(_converted(call_from_proto, message), path)
    except Exception as error:  # noqa: BLE001 - outermost edge of a candidate: every failure becomes its result
        failure = classify(error)
    else:
        response = session_service_pb2.CallResponse(outputs=map(tensor_to_proto, outputs))
        return worker_pb2.WorkerResponse(call=response)
    response = session_service_pb2.CallResponse(
        error=error_kind_to_proto(failure.kind), error_message=str(failure)[:MAX_MESSAGE_CHARS]
    )
    return worker_pb2.WorkerResponse(call=response, is_last=failure.is_fatal)


def _converted(from_proto: Callable[[M], T], message: M) -> T:
    try:
        return from_proto(message)
    except (ValueError, InvalidRequest) as error:
        raise CandidateFailed(ErrorKind.BAD_ARGUMENTS, str(error)) from error


def _reference_secs(runtime: Runtime) -> list[float]:
    """Run the runtime's reference kernel. A failure answers with an impossible time: that run counts as missed."""
    try:
        return runtime.reference()
    except Exception as error:  # noqa: BLE001 - outermost edge of the reference kernel, which must cost no candidate
        sys.stderr.write(f"the reference kernel failed: {error}\n")
        return [math.nan]


def _send(connection: socket.socket, response: worker_pb2.WorkerResponse) -> None:
    connection.sendall(format_frame(response.SerializeToString()))


def _receive(connection: socket.socket, size: int) -> bytes | None:
    """Receive exactly `size` bytes; None when the other end closed."""
    first = connection.recv(size) if size else b""
    if len(first) == size:
        return first
    if not first:
        return None
    received = bytearray(first)
    while len(received) < size:
        chunk = connection.recv(min(size - len(received), 1 << 20))
        if not chunk:
            return None
        received += chunk
    return bytes(received)


def _settle(order: WorkerOrder, socket_fd: int, log_fd: int, parent_pid: int) -> None:
    os.setsid()
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    _arrange_descriptors(socket_fd, log_fd)
    os.environ.update(order.environment)
    os.environ.update({"TMPDIR": order.directory, "HOME": order.directory})
    _write_oom_score()
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_NOFILE, _OPEN_FILES)
    _limit(resource.RLIMIT_FSIZE, order.disk_limit_bytes)
    if order.limits_address_space:
        _limit(resource.RLIMIT_AS, order.memory_limit_bytes + _ADDRESS_SPACE_HEADROOM_BYTES)
    if order.cpus:
        os.sched_setaffinity(0, order.cpus)
    confine(order.jail_spec)
    # After the change of user, which would reset these settings.
    allow_inspection()  # the agent has to inspect its open files
    linux.die_with_parent(signal.SIGKILL)
    if os.getppid() != parent_pid:
        raise RuntimeError("the keeper ended while its worker started")
    os.chdir(order.directory)
    filter_calls(order.jail_spec)


def _arrange_descriptors(socket_fd: int, log_fd: int) -> None:
    """Leave /dev/null as stdin, the log as stdout and stderr, the socket as 3, and nothing else."""
    # Move them to high numbers first, so that no dup2 below overwrites one that is still needed.
    high_socket, high_log = os.dup(socket_fd), os.dup(log_fd)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(high_log, 1)
    os.dup2(high_log, 2)
    if high_socket != _SOCKET_FD:
        os.dup2(high_socket, _SOCKET_FD, inheritable=False)
    os.closerange(_SOCKET_FD + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def _write_oom_score() -> None:
    """Ask the kernel to take the worker first when the machine runs out of memory."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:  # noqa: PTH123 - one write
        file.write("1000")


def _limit(what: int, value: int) -> None:
    _, hard = resource.getrlimit(what)
    bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(what, (bound, bound))
