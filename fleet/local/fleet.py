"""A local fleet: a tracker and an agent as child processes.

    async with LocalFleet() as local, fleet.aio.connect(local.address) as client: ...

Without a state directory everything is forgotten at the end. The children die with this process, even by kill -9.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

from fleet.base.command_line import to_argv
from fleet.base.scratch import scratch_dir
from fleet.base.tasks import together
from fleet.client.tracker_calls import TrackerCalls
from fleet.domain.selectors import parse_selector
from fleet.errors import ConfigError, FleetError, TrackerUnavailable
from fleet.identity.store import CredentialStore
from fleet.local.children import Child, ChildSpec, keep_running
from fleet.tracker.options import TrackerOptions

logger = logging.getLogger(__name__)

_BY_STDIN = "-"
"""To an agent: its tracker's address comes through stdin."""

_POLL_SEC = 0.05


class LocalFleet:
    """Runs a tracker and an agent on this machine.

    Args:
        state_dir: persistent state of both; a temporary directory when None.
        port: the tracker's port, a free one when 0.
        agent_config: configuration of the agent; this machine's CPU when None.
        agent_drivers: without `agent_config`, serve the devices that these drivers find.
        restarts: start a child again when it dies.
        on_change: called with a sentence when a child dies or comes back.
    """

    def __init__(
        self,
        *,
        state_dir: Path | None = None,
        port: int = 0,
        agent_config: Path | None = None,
        agent_drivers: Sequence[str] = (),
        restarts: bool = False,
        ready_timeout_sec: float = 30.0,
        on_change: Callable[[str], object] | None = None,
    ) -> None:
        self.address = ""
        """Address of the tracker, once started."""

        self.agent_address = ""
        self.tracker: Child | None = None
        self.agent: Child | None = None
        self._wanted_state_dir = state_dir
        self._port = port
        self._agent_config = agent_config
        self._agent_drivers = tuple(agent_drivers)
        self._restarts = restarts
        self._ready_timeout_sec = ready_timeout_sec
        self._on_change = on_change or (lambda text: logger.warning("local fleet", extra={"change": text}))
        self._has_devices = True
        self._supervisors: list[asyncio.Task[None]] = []
        self.state_dir = Path()
        self._scratch = contextlib.ExitStack()

    async def __aenter__(self) -> LocalFleet:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start both and wait until the agent's devices can be leased.

        Raises:
            FleetError: one of them did not start; the message carries its last lines.
        """
        self.state_dir = self._state_dir()
        address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        try:
            # Concurrently: the agent is loaded by the time that it needs the tracker's address.
            await together({"start tracker": self._start_tracker(address), "start agent": self._start_agent(address)})
            if self._has_devices:
                await self._await_devices()
        except BaseException:  # also if cancelled or interrupted; raised again
            await self.stop()
            raise
        if self._restarts:
            for child in (self.tracker, self.agent):
                if child is not None:
                    keeper = keep_running(child, self._on_change)
                    self._supervisors.append(asyncio.create_task(keeper, name=f"fleet keep {child.spec.name}"))

    async def stop(self) -> None:
        """Stop both, the agent first. Idempotent."""
        for supervisor in self._supervisors:
            supervisor.cancel()
        await asyncio.gather(*self._supervisors, return_exceptions=True)
        self._supervisors.clear()
        for child in (self.agent, self.tracker):
            if child is not None:
                await child.stop()
        if self._wanted_state_dir is None and self.address:
            CredentialStore().forget(self.address)
        await asyncio.to_thread(self._scratch.close)

    def _state_dir(self) -> Path:
        folder = self._wanted_state_dir or self._scratch.enter_context(scratch_dir("local"))
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"cannot keep state in {folder}: {error.strerror}; name another --state-dir") from error
        return folder

    async def _start_tracker(self, found: asyncio.Future[str]) -> None:
        self.tracker = Child(self._tracker_spec(self._port))
        self.address = (await self.tracker.start()).address
        # After a restart it has to listen at the address that agents and clients know.
        self.tracker.spec = self._tracker_spec(int(self.address.rpartition(":")[2]))
        found.set_result(self.address)

    async def _start_agent(self, tracker: asyncio.Future[str]) -> None:
        self.agent = Child(self._agent_spec(_BY_STDIN))
        ready = await self.agent.start(tracker)
        self.agent.spec = self._agent_spec(self.address)
        self.agent_address = ready.address
        self._has_devices = bool(ready.devices)
        if not self._has_devices and self._agent_drivers:
            kinds = " or ".join(self._agent_drivers)
            raise FleetError(
                f"no device of kind {kinds} is connected to this machine; connect one (phones: adb devices)"
            )

    def _agent_spec(self, tracker: str) -> ChildSpec:
        config = ("--config", str(self._agent_config)) if self._agent_config is not None else ()
        return ChildSpec(
            name="agent",
            command=(
                *(sys.executable, "-m", "device_agents", "--tracker", tracker, "--port", "0", "--json"),
                *("--state-dir", str(self.state_dir / "agent")),
                *config,
                *(word for name in self._agent_drivers for word in ("--driver", name)),
            ),
            log_path=self.state_dir / "log" / "agent.log",
            ready_timeout_sec=self._ready_timeout_sec,
        )

    def _tracker_spec(self, port: int) -> ChildSpec:
        options = TrackerOptions(port=port, state_dir=self.state_dir / "tracker", is_json=True)
        return ChildSpec(
            name="tracker",
            command=(sys.executable, "-m", "fleet.tracker", *to_argv(options)),
            log_path=self.state_dir / "log" / "tracker.log",
            ready_timeout_sec=self._ready_timeout_sec,
        )

    async def _await_devices(self) -> None:
        """Wait until the tracker lists the agent's devices: an earlier request would be refused."""
        calls = TrackerCalls(self.address)
        try:
            async with asyncio.timeout(self._ready_timeout_sec):
                while not await _has_devices(calls, self.agent_address):  # noqa: ASYNC110 - no event crosses processes
                    await asyncio.sleep(_POLL_SEC)
        except TimeoutError:
            raise FleetError(
                f"the agent at {self.agent_address} did not attach to the tracker at {self.address} within "
                f"{self._ready_timeout_sec:g} s{self.agent.tail() if self.agent else ''}"
            ) from None
        finally:
            await calls.close()


def drivers_for(selector: str) -> tuple[str, ...]:
    """Return the drivers with which a local agent can serve a selector; empty: all that find a device.

    Raises:
        InvalidRequest: the selector is malformed.
    """
    kind = parse_selector(selector).kind
    return (kind,) if kind else ()


async def _has_devices(calls: TrackerCalls, agent_address: str) -> bool:
    with contextlib.suppress(TrackerUnavailable):
        return any(device.address == agent_address for device in (await calls.snapshot()).devices)
    return False
