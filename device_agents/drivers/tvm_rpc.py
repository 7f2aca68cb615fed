"""Driver for a board with only a TVM RPC server: the agent runs on another machine as its client.

    devices:
      - driver: tvm_rpc
        address: "10.0.0.9:9090"  # address of `python -m tvm.exec.rpc_server` or `tvm_rpc server` there
        key: rpi                  # the server's own key; default: none
        target: rpi4-64           # a board of `fleet targets`, or a TVM target: {kind: llvm, mtriple: ..., mcpu: ...}
        device_type: cpu          # or opencl, cuda, vulkan, ...; a device of the server's runtime
        device_index: 0
        name: kitchen-pi          # default: <address> with dashes
        memory_mb: 2048           # default: the board's, else 1024
        session_sec: 120          # after this time the server ends a session: the longest that a hung kernel blocks it
        emulated: false           # true: its times are never stored as a board's

Such a server serves one session at a time and reports nothing about the board. So readings hold only the time, every
connection makes a full handshake, and the device counts as healthy as long as its last session went well. After one
that did not, the driver knocks until the server takes a session again. Both ends need the same version of TVM; the
protocol does not check that. A server that is registered with a TVM tracker takes only that tracker's clients.
Server: https://tvm.apache.org/docs/how_to/tutorials/cross_compilation_and_rpc.html
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Self

from device_agents.driver import Health, StraySweeper, WorkerSpec
from device_agents.drivers.rpc_board import BoardFacts, RpcBoardConfig, RpcBoardDriver, describe
from device_agents.machine.host import slug
from device_agents.runtimes.tvm_rpc.handshake import NotServed, knock_patiently
from fleet.base.config import parse
from fleet.base.network import check_address, host_and_port
from fleet.base.source_locations import at
from fleet.domain.measuring import ErrorKind
from fleet.errors import ConfigError, DeviceUnreachable

logger = logging.getLogger(__name__)

_FIRST_LOOK_SEC = 3.0
_RETRY_SEC = 5.0
_PATIENCE_SEC = 10.0
"""Limit of a worker's wait at its start for a server that is still busy with the previous one."""

_IN_DOUBT = (ErrorKind.TIMEOUT, ErrorKind.CRASHED, ErrorKind.OUT_OF_MEMORY, ErrorKind.DEVICE_FAULTED)
"""Results that leave it unclear whether the server still serves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TvmRpcConfig(RpcBoardConfig):
    """Settings of one board; see the module's docstring."""

    address: Annotated[str, "Where `python -m tvm.exec.rpc_server` or `tvm_rpc server` listens: host:port."]
    key: Annotated[str, "What the server was started with; default: none."] = ""
    name: Annotated[str | None, "Id of the device; default: the address with dashes."] = None


class TvmRpcDriver(RpcBoardDriver):
    """Device behind a TVM RPC server at a known address."""

    kind = "tvm_rpc"
    settings = TvmRpcConfig

    def __init__(
        self, device_id: str, config: TvmRpcConfig, host_name: str, what: BoardFacts, *, retry_sec: float = _RETRY_SEC
    ) -> None:
        super().__init__(device_id, config, host_name, what, address=config.address)
        self._retry_sec = retry_sec
        self._config = config
        self._host, self._port = host_and_port(config.address)
        self._trouble = "the TVM RPC server was not asked yet"
        self._look: asyncio.Task[None] | None = None
        self._was_answered = asyncio.Event()

    @classmethod
    def from_config(cls, values: Mapping[str, object], *, where: str, host_name: str) -> list[Self]:
        config = parse(TvmRpcConfig, values, where=where)
        check_address(config.address, f"{at(where, 'address')}:")
        if re.search(r"\s", config.key):
            raise ConfigError(f"{at(where, 'key')}: TVM's keys hold no white space, found {config.key!r}")
        what = describe(config, where=where)
        return [cls(config.name or slug(config.address), config, host_name, what)]

    async def prepare(self) -> None:
        """Wait until the server is free of the last worker's session."""
        self._check_open()
        if self._look is not None and not self._look.done():
            await asyncio.wait((self._look,), timeout=_PATIENCE_SEC)
        if self._trouble:
            raise DeviceUnreachable(f"{self.name}: {self._trouble}")

    def learn(self, error: ErrorKind | None, message: str) -> None:
        if error not in _IN_DOUBT:
            return
        if error is ErrorKind.DEVICE_FAULTED:
            self._trouble = message.partition("; it wrote: ")[2] or message
        self._begin_to_look()

    async def close(self) -> None:
        await super().close()
        if self._look is not None:
            self._look.cancel()
            await asyncio.gather(self._look, return_exceptions=True)

    async def open(self, sweeper: StraySweeper) -> None:
        """Start checking the server. An unreachable server is no error: the device is unhealthy until it answers."""
        await super().open(sweeper)
        self._begin_to_look()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._was_answered.wait(), _FIRST_LOOK_SEC)

    def _begin_to_look(self) -> None:
        if self._look is None or self._look.done():
            self._look = asyncio.create_task(self._knock_until_served(), name=f"knock-{self.device_id}")

    async def _knock_until_served(self) -> None:
        while True:
            knocking = asyncio.create_task(self._knock(), name=f"knock-once-{self.device_id}")
            try:
                await asyncio.wait((knocking,), timeout=_FIRST_LOOK_SEC)
                if not knocking.done():
                    self._trouble = (
                        f"the TVM RPC server at {self._config.address} takes no session now: it serves another client, "
                        f"or a kernel hangs there; it ends sessions of this fleet after {self._config.session_sec} s"
                    )
                await knocking
                self._trouble = ""
            except NotServed as error:
                self._trouble = str(error)
            except Exception as error:  # outermost loop: if it ended, the device's health would never change again
                logger.exception("knocking failed", extra={"device": self.name})
                self._trouble = f"knocking at {self._config.address} failed: {error or type(error).__name__}"
            finally:
                knocking.cancel()
            self._was_answered.set()
            if not self._trouble:
                return
            await asyncio.sleep(self._retry_sec)

    async def _knock(self) -> None:
        """Open and close one session. Raises NotServed."""
        await knock_patiently(self._host, self._port, self._config.key)

    def _probe(self) -> Health:
        return Health(is_healthy=not self._trouble, reason=self._trouble)

    def _worker_spec(self) -> WorkerSpec:
        return self._spec_for(self._host, self._port, self._config.key)
