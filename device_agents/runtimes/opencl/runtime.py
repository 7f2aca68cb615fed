"""Runs candidates on one OpenCL device, in a worker. Functions are timed by the device's own events.

A whole model is timed by the host's clock, as its peers are: it does more than run kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from device_agents.runtimes.evaluating import Timing
from device_agents.runtimes.opencl.loader import load_runtime
from device_agents.runtimes.tvm import TvmRuntime
from fleet.domain.measuring import ModuleKind, Trial
from fleet.errors import ConfigError

if TYPE_CHECKING:
    import tvm_ffi

    from device_agents.runtimes.tvm import PackedArgument

_BY_EVENTS = "event"
_BY_HOST = "wall"


class OpenClRuntime(TvmRuntime):
    """One OpenCL device of this process."""

    time_source = _BY_EVENTS

    def __init__(self, library: str, device_index: int = 0, device_name: str = "") -> None:
        """Open the device.

        Args:
            library: the plug-in's path, or that of TVM's own OpenCL runtime.
            device_name: required name of the device; empty: any.

        Raises:
            ConfigError: another device has that index now.
        """
        self._library = Path(library)
        self._device_name = device_name
        super().__init__("opencl", device_index)
        self._use_events = self._ffi.get_global_func("fleet.opencl.use_events", allow_missing=True)

    def _prepare(self, libraries: Sequence[str]) -> None:
        super()._prepare(libraries)
        load_runtime(self._library)

    def _open_device(self, device_type: str, device_index: int) -> tvm_ffi.Device:
        device = super()._open_device(device_type, device_index)
        attribute = self._ffi.get_global_func("runtime.GetDeviceAttr")
        if not attribute(device.dlpack_device_type(), device.index, _EXIST):
            raise ConfigError(f"there is no OpenCL device {device_index} any more; restart the agent")
        found = str(attribute(device.dlpack_device_type(), device.index, _NAME))
        if self._device_name and found != self._device_name:
            raise ConfigError(
                f"OpenCL device {device_index} is {found!r} now, no longer {self._device_name!r}; restart the agent"
            )
        return device

    def _time(self, module: tvm_ffi.Module, arguments: list[PackedArgument], trial: Trial) -> Timing:
        is_function = trial.module_kind is ModuleKind.FUNCTIONS
        if self._use_events is not None:
            self._use_events(is_function)
            self.time_source = _BY_EVENTS if is_function else _BY_HOST
        return super()._time(module, arguments, trial)


_EXIST, _NAME = 0, 5
"""DeviceAttrKind of tvm/runtime/device_api.h."""
