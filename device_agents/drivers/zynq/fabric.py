"""Programs the fabric of one board, and rolls back to the last good bitstream if that fails.

Its memory outlives the agent: images and `state.json` in a directory of the board's own. After a restart, the fabric
counts as programmed only if the machine has not rebooted since and the kernel says that it operates. The outcome of a
load under way when the agent died is unknown, so `state.json` says "not loaded" before a load begins.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from dataclasses import asdict, dataclass
from pathlib import Path

from device_agents.driver import ProgramOrder
from device_agents.drivers.zynq.bitstream import check_chip, fabric_addresses, read_bitstream
from device_agents.drivers.zynq.fpga import NAME_DIGITS, OPERATING, FpgaManager
from device_agents.fabric.reader import check_registers
from fleet.errors import FleetError, InvalidRequest, NotProgrammable, ProgrammingFailed

logger = logging.getLogger(__name__)

_TIMEOUT_SEC = 30.0
_LONGEST_SEC = 600.0
"""Limited because the next lease and the agent's end wait for a load that is under way."""

_SHOWN_DIGITS = len("sha256:") + 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One bitstream in the fabric: a full one, or a partial one on top of it."""

    digest: str
    """ "sha256:<hex>" of the file as it was put."""

    design: str = ""
    is_partial: bool = False
    registers_yaml: str = ""
    """Describes the functions for artifacts; empty: none."""

    @property
    def label(self) -> str:
        """Name for messages."""
        return f"{self.design or 'unnamed'} ({self.digest[:_SHOWN_DIGITS]})"


class ZynqFabric:
    """The fabric of one board."""

    def __init__(
        self, manager: FpgaManager, directory: Path, *, boot_id: str, device_name: str, part: str, chip: str
    ) -> None:
        """Args:
        part: the chip that bitstreams must be made for, as a user writes it; empty if not known.
        chip: the same chip as bitstreams name it, or the prefix of its family; empty if not known.
        """
        self._manager = manager
        self._directory = directory
        self._boot_id = boot_id
        self._device_name = device_name
        self._part = part
        self._chip = chip
        self._layers: list[Layer] = []
        """The last good layers, the full one first."""

        self._is_loaded = False
        self._fault = ""
        self._lock = asyncio.Lock()
        self._under_way: asyncio.Task[bool] | None = None

    def open(self) -> None:
        """Recall the bitstream that an earlier agent loaded, and clean up its unfinished work."""
        self._manager.clear()
        try:
            state = json.loads((self._directory / "state.json").read_text())
            self._layers = [Layer(**layer) for layer in state["layers"]]
            is_same_boot = bool(self._boot_id) and state["boot_id"] == self._boot_id
            was_loaded = bool(state["is_loaded"])
        except (OSError, ValueError, KeyError, TypeError):
            return
        self._is_loaded = was_loaded and is_same_boot and self._manager.state == OPERATING

    @property
    def digest(self) -> str:
        """Digest of the bitstream loaded last; empty: unknown."""
        return self._layers[-1].digest if self._is_loaded and self._layers else ""

    @property
    def registers_yaml(self) -> str:
        """Description of the functions for artifacts."""
        return self._layers[-1].registers_yaml if self._is_loaded and self._layers else ""

    @property
    def fault(self) -> str:
        """Why the board cannot take a lease; empty if it can."""
        if self._manager.is_hanging:
            return "a write to the FPGA manager hangs in the kernel; reboot the board"
        if self._fault and self._manager.state != OPERATING:
            return self._fault
        return ""

    async def program(self, order: ProgramOrder) -> bool:
        """Program the fabric; return False if it already holds this bitstream. Not interrupted if the caller is
        cancelled.

        Raises:
            NotProgrammable: the kernel has no FPGA manager.
            InvalidRequest: it is not a bitstream, not one for this board, or the timeout is endless.
            ProgrammingFailed: the fabric did not come up; the message names its current content.
        """
        if not self._manager.exists:
            raise NotProgrammable(f"{self._device_name} has no fabric to program: {self._manager.obstacle()}")
        if order.registers_yaml.strip():
            # Parsing 48 KiB of YAML takes seconds on a board.
            await asyncio.to_thread(check_registers, order.registers_yaml, fabric_addresses(self._chip))
        timeout_sec = _TIMEOUT_SEC if order.timeout_sec is None else order.timeout_sec
        if not 0 < timeout_sec <= _LONGEST_SEC:
            raise InvalidRequest(f"a timeout of {timeout_sec:g} s; expected seconds above zero, up to {_LONGEST_SEC:g}")
        # If programming were interrupted, the fabric's content would be unknown. `settle` waits for the end.
        task = asyncio.create_task(self._program(order, timeout_sec), name="program the fabric")
        task.add_done_callback(_retrieve)
        self._under_way = task
        return await asyncio.shield(task)

    async def settle(self) -> None:
        """Wait until no programming is in progress."""
        if self._under_way is not None:
            await asyncio.gather(self._under_way, return_exceptions=True)

    async def _program(self, order: ProgramOrder, timeout_sec: float) -> bool:
        async with self._lock:
            bitstream = await asyncio.to_thread(read_bitstream, order.path)
            check_chip(bitstream, self._part, device_name=self._device_name)
            layer = Layer(
                digest=order.digest,
                design=bitstream.design,
                is_partial=order.is_partial,
                registers_yaml=order.registers_yaml,
            )
            if self._holds(layer) and not order.force:
                self._layers[-1] = layer  # a new description of the same registers needs no programming
                self._save()
                return False
            if layer.is_partial and not self._is_loaded:
                raise ProgrammingFailed(
                    "a partial bitstream goes into a running design, and this agent has loaded none since the board's "
                    "start; program the full bitstream that it belongs to first"
                )
            await self._load_new(layer, bitstream.image, timeout_sec)
            return True

    async def _load_new(self, layer: Layer, image: bytes, timeout_sec: float) -> None:
        # A failure here leaves the fabric as it is: there is nothing to undo.
        await self._manager.stage(image, name=_file_name(layer))
        self._is_loaded = False
        self._save()
        try:
            await self._manager.start(name=_file_name(layer), is_partial=layer.is_partial, timeout_sec=timeout_sec)
        except FleetError as error:
            logger.warning("programming failed", extra={"bitstream": layer.label, "error": str(error)})
            raise ProgrammingFailed(f"{layer.label} was not loaded: {error}. {await self._go_back()}") from error
        layers = [*self._layers, layer] if layer.is_partial else [layer]
        self._layers = [*[kept for kept in layers[:-1] if kept.digest != layer.digest], layer]
        self._is_loaded = True
        self._fault = ""
        await asyncio.to_thread(self._keep, layer, image)
        self._save()
        logger.info("fabric programmed", extra={"bitstream": layer.label, "partial": layer.is_partial})

    async def _go_back(self) -> str:
        """Roll back to the last good layers; return the result."""
        if not self._layers:
            return "There is no earlier bitstream to go back to"
        try:
            for layer in self._layers:
                image = await asyncio.to_thread(self._image_path(layer).read_bytes)
                await self._manager.load(
                    image, name=_file_name(layer), is_partial=layer.is_partial, timeout_sec=_TIMEOUT_SEC
                )
        except (FleetError, OSError) as error:
            self._fault = (
                f"programming failed, and so did going back to {self._layers[-1].label}: {error}; "
                "repair the board, then restart its agent"
            )
            return f"Going back to {self._layers[-1].label} failed, too: {error}"
        self._is_loaded = True
        self._fault = ""
        self._save()
        return f"The last good one, {self._layers[-1].label}, was loaded again"

    def _holds(self, layer: Layer) -> bool:
        return (
            self._is_loaded
            and (self._layers[-1].digest, self._layers[-1].is_partial) == (layer.digest, layer.is_partial)
            and self._manager.state == OPERATING
        )

    def _image_path(self, layer: Layer) -> Path:
        return self._directory / f"{layer.digest.removeprefix('sha256:')}.image"

    def _keep(self, layer: Layer, image: bytes) -> None:
        """Keep the image for a rollback, and remove those of former layers. On a full disk no rollback is possible."""
        kept = {self._image_path(each) for each in self._layers}
        with contextlib.suppress(OSError):
            self._directory.mkdir(parents=True, exist_ok=True)
            for path in (*self._directory.glob("*.image"), *self._directory.glob("*.new")):
                if path not in kept:
                    path.unlink()
            _replace(self._image_path(layer), image)

    def _save(self) -> None:
        state = {
            "boot_id": self._boot_id,
            "is_loaded": self._is_loaded,
            "layers": [asdict(layer) for layer in self._layers],
        }
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            _replace(self._directory / "state.json", json.dumps(state).encode())
        except OSError as error:
            logger.warning("cannot remember what the fabric holds", extra={"error": str(error)})
            with contextlib.suppress(OSError):
                # Its content is stale.
                (self._directory / "state.json").unlink()


def _file_name(layer: Layer) -> str:
    return layer.digest.removeprefix("sha256:")[:NAME_DIGITS]


def _replace(path: Path, content: bytes) -> None:
    """Replace a file atomically: a full disk leaves no partial file behind."""
    fresh = path.with_suffix(".new")
    try:
        fresh.write_bytes(content)
        fresh.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            fresh.unlink()
        raise


def _retrieve(task: asyncio.Task[bool]) -> None:
    """Mark the result of a task as retrieved, since its caller may be gone."""
    if not task.cancelled() and task.exception() is not None:
        logger.debug("programming ended with an error", extra={"error": str(task.exception())})
