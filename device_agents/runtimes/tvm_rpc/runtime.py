"""Runs candidates on a device behind a TVM RPC server: an Android phone, or another board without an agent.

The worker process on the agent's machine is the client; tvm_ffi and TVM's runtime libraries have all that it takes.
The artifact is uploaded, loaded and timed there: times are the server's, without the network.

One session serves many candidates. The server ends it after `session_sec`, so that a kernel that hangs blocks the
board no longer than that; the runtime opens another before a candidate could run into that end. When the connection
breaks, the worker ends with it, for nothing behind it can be trusted any more: as a crash of the candidate when the
server takes the next session, as a fault of the device when it does not.
"""

from __future__ import annotations

import ctypes
import math
import os
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from device_agents.runtimes.contract import CandidateFailed, DeviceLost, WorkerEnd
from device_agents.runtimes.filling import make_tile
from device_agents.runtimes.proving import NotProvable, ProofParts
from device_agents.runtimes.tvm import TvmRuntime, run_failure
from device_agents.runtimes.tvm_rpc.handshake import NotServed, connect, knock, name_with_options
from device_agents.runtimes.tvm_rpc.reference import WITNESSED, RpcReferenceKernel
from device_agents.runtimes.tvm_rpc.relaying import relay
from fleet.domain.measuring import Call, ErrorKind, Measurement, ModuleKind, Tensor, Trial
from fleet.domain.proving import ProofOrder

if TYPE_CHECKING:
    import tvm_ffi

_SESSION_MASK = 128
"""TVM numbers the devices of a session from here on: (session + 1) * 128 + type."""

_CONNECT_SEC = 5.0
_REFERENCE_SEC = 1.0
"""Maximum time of the reference kernel, over a slow link; usually a hundredth."""

_SPARE_SEC = 5.0
"""Life of a session beyond its last candidate."""

_BROKEN = (
    *("Channel closes", "SockChannel", "Expected connection to server", "RPCSessionTimeoutError"),
    *("Connection reset", "Broken pipe", "Connection refused", "No route to host", "RPCCode::k"),
)
"""Texts of TVM's errors about the connection, not about the called function."""

_NO_INSTRUMENT = (
    "operators cannot be timed in their place here: the device's Relax VM is behind TVM RPC, which takes no instrument"
)
_TRUNCATED = "file too short"
_SMALLEST_LIBRARY_BYTES = 4096


class RpcRuntime(TvmRuntime):
    """Runs candidates behind one server."""

    def __init__(
        self,
        host: str,
        port: int,
        key: str = "",
        device_type: str = "cpu",
        device_index: int = 0,
        session_sec: int = 600,
    ) -> None:
        """Connect with the first candidate, so that a failed connection is its result.

        Args:
            session_sec: after this time the server ends a session.
        """
        self._host, self._port, self._key = host, port, key
        self._wanted = (device_type, device_index)
        self._session_sec = session_sec
        self._session: tvm_ffi.Module | None = None
        self._ends_at = 0.0
        super().__init__(device_type, device_index)

    def measure(self, trial: Trial, path: str) -> Measurement:
        if trial.operator_runs:
            raise CandidateFailed(ErrorKind.BAD_ARGUMENTS, _NO_INSTRUMENT)
        with self._connected(trial.timeout_sec):
            return super().measure(trial, path)

    def call(self, call: Call, path: str) -> list[Tensor]:
        with self._connected(call.timeout_sec):
            if call.module_kind is ModuleKind.RELAX_VM:
                return self._call_model(call, path)
            return super().call(call, path)

    def serve_rpc(self, connection_fd: int) -> None:
        """Serve one session of a stock client by one of the device's server, which ends it after `session_sec`."""
        name = name_with_options(self._key, self._session_sec)
        with socket.socket(fileno=connection_fd) as client:
            try:
                server = connect(self._host, self._port, name, _CONNECT_SEC)
            except NotServed as error:
                raise DeviceLost(f"no session with the TVM RPC server: {error}") from error
            with server:
                relay(client, server)

    def prepare_proof(self, order: ProofOrder) -> ProofParts:
        raise NotProvable("boards that are reached over TVM's RPC serve one connection at a time")

    def reference(self) -> list[float]:
        """Time the reference kernel on the server; return no times if it has none, or if they would tell nothing."""
        if self._wanted[0] not in WITNESSED:
            return []
        with self._connected(_REFERENCE_SEC):
            if self._reference is None:
                try:
                    self._reference = RpcReferenceKernel(self._ffi, self._server, self._open_device("cpu", 0))
                except AttributeError:
                    return []
            return self._reference()

    @property
    def _server(self) -> tvm_ffi.Module:
        """Session that `_connected` opened."""
        if self._session is None:
            raise RuntimeError("there is no session with the TVM RPC server")
        return self._session

    def _call_model(self, call: Call, path: str) -> list[Tensor]:
        """Run a function of the server's Relax VM. Its result stays there; only tensors are fetched, one by one."""
        machine = self._module(call, path)
        arguments = self._arguments(call.args)
        try:
            machine.get_function("set_input")(call.function, *arguments)
            machine.get_function("invoke_stateful")(call.function)
            tensors = self._results(machine, call.function)
        except Exception as error:  # the server's errors arrive as many classes
            raise run_failure(error) from error
        return self._fetch(tensors)

    def _results(self, machine: tvm_ffi.Module, function: str, *indices: int) -> list[tvm_ffi.Tensor]:
        arity = machine.get_function("get_output_arity")(function, *indices)
        if arity < 0:
            return [machine.get_function("get_output")(function, *indices)]
        return [tensor for index in range(arity) for tensor in self._results(machine, function, *indices, index)]

    def _open_device(self, device_type: str, device_index: int) -> tvm_ffi.Device | None:
        if self._session is None:
            return None
        # Pass numbers: a session's device names are valid in this session only.
        local = self._ffi.device(device_type, device_index)
        index = self._ffi.get_global_func("rpc.SessTableIndex")(self._session)
        return self._ffi.device(local.dlpack_device_type() + (index + 1) * _SESSION_MASK, device_index)

    def _host_device(self) -> tvm_ffi.Device | None:
        device_type, _ = self._wanted
        return None if device_type == "cpu" else self._ffi.device("cpu", 0)

    def _settle(self) -> None:
        """Do nothing: kernels run on the server."""

    def _load(self, path: str, kind: ModuleKind) -> tvm_ffi.Module:
        if kind is ModuleKind.FUNCTIONS:
            return super()._load(path, kind)
        # The Relax VM runs on the server: pass it the device numbers that are valid there.
        theirs = self._ffi.device(*self._wanted)
        ours, self._device = self._device, theirs
        try:
            return super()._load(path, kind)
        finally:
            self._device = ours

    def _load_library(self, path: str) -> tvm_ffi.Module:
        content = Path(path).read_bytes()
        name = f"{os.path.basename(path).removesuffix('.so')[:48]}.so"  # noqa: PTH119 - cut as text
        self._server.get_function("tvm.rpc.server.upload")(name, content)
        try:
            module = self._ffi.get_global_func("rpc.LoadRemoteModule")(self._server, name)
        except Exception as error:  # the server's errors arrive as many classes
            if _TRUNCATED in str(error) and len(content) >= _SMALLEST_LIBRARY_BYTES:
                raise CandidateFailed(
                    ErrorKind.OUT_OF_DISK,
                    f"the artifact arrived cut short, as on a full disk: make room on the device ({error})",
                ) from error
            raise
        # A loaded module stays until the session ends; the device's disk is small.
        self._server.get_function("tvm.rpc.server.remove")(name)
        return module

    @contextmanager
    def _connected(self, timeout_sec: float) -> Iterator[None]:
        """Keep a session open for this long. A connection error ends the worker."""
        try:
            if self._session is None or time.monotonic() + timeout_sec > self._ends_at:
                self._connect(timeout_sec)
            yield
        except Exception as error:  # the server's errors arrive as many classes
            if not _is_broken(error):
                raise
            raise self._end(error) from error

    def _connect(self, timeout_sec: float) -> None:
        for kept in self._modules.values():
            kept.clear()
        # Drop everything that keeps the former session open: the server takes no other before it has ended.
        self._device = self._session = self._reference = None
        session_sec = max(self._session_sec, math.ceil(timeout_sec + _SPARE_SEC))
        name = name_with_options(self._key, session_sec)
        self._ends_at = time.monotonic() + session_sec - _SPARE_SEC / 2
        try:
            with _time_limit(_CONNECT_SEC):
                self._session = self._ffi.get_global_func("rpc.Connect")(self._host, self._port, name, False)
                self._device = self._open_device(*self._wanted)
        except Exception as error:  # the server's errors arrive as many classes
            raise DeviceLost(f"no session with the TVM RPC server at {self._address}: {error}") from error
        self._fill = self._fill_there

    @property
    def _address(self) -> str:
        return f"{self._host}:{self._port}"

    def _end(self, error: Exception) -> WorkerEnd:
        """Distinguish a candidate that ended its session from a device that is gone."""
        first_line = next((line for line in str(error).splitlines() if line.strip()), "")
        try:
            knock(self._host, self._port, self._key, _CONNECT_SEC)
        except NotServed as gone:
            return DeviceLost(f"the connection to the device broke ({first_line}), and {gone}")
        return WorkerEnd(f"the candidate ended the process on the device that ran it ({first_line})")

    def _fill_there(self, tensor: tvm_ffi.Tensor) -> None:
        """Fill tensors that are too large or unusual for `filling`: on the device if its server can, else from here."""
        try:
            self._server.get_function("tvm.contrib.random.random_fill_for_measure")(tensor)
        except AttributeError:
            size = math.prod(tensor.shape) * ((tensor.dtype.bits * tensor.dtype.lanes + 7) // 8)
            tile = make_tile(str(tensor.dtype).partition("x")[0]) or bytes(1)
            content = (tile * (size // len(tile) + 1))[:size]
            self._copy_from(tensor, ctypes.cast(ctypes.c_char_p(content), ctypes.c_void_p), size)

    def _prepare(self, libraries: Sequence[str]) -> None:
        """Do nothing: the server has the device's libraries."""


def _is_broken(error: Exception) -> bool:
    return any(text in str(error) for text in _BROKEN)


@contextmanager
def _time_limit(limit_sec: float) -> Iterator[None]:
    """Interrupt TVM while it waits in C++: it checks for signals after each interrupted system call."""

    def interrupt(*_: object) -> None:
        raise TimeoutError(f"no answer within {limit_sec:g} s; it serves another session, or hangs")

    former = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, limit_sec)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)
