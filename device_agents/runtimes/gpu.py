"""Runs TVM modules on a GPU with TVM's own runtime for it: libtvm_runtime_cuda.so, libtvm_runtime_rocm.so.

The library is loaded in the worker, never in the process that workers are forked from: it brings the vendor's driver
library, and a context of that does not survive a fork. The driver names the one device by the environment
(CUDA_VISIBLE_DEVICES, ROCR_VISIBLE_DEVICES), so here it is always number 0. Times are those of the device's own events.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from device_agents.runtimes import tvm as tvm_runtime
from device_agents.runtimes.contract import CandidateFailed
from device_agents.runtimes.evaluating import TimeRepeats, push_out
from device_agents.runtimes.gpu_errors import gpu_failure
from device_agents.runtimes.tvm import TvmRuntime
from fleet.domain.measuring import Call, ErrorKind, Evaluator, Measurement, Tensor, Trial

if TYPE_CHECKING:
    import tvm_ffi

    from device_agents.runtimes.tvm import PackedArgument

preload = tvm_runtime.preload

_L2_ATTRIBUTE = 13
"""Number of kL2CacheSizeBytes in TVM's DeviceAttrKind."""


class GpuContext:
    """The GPU context of the vendor's driver in this process, and the consequences of failures in it."""

    def __init__(self) -> None:
        self.missing = ""
        """Why there is none; empty: there is one."""

        self._broken_by: CandidateFailed | None = None

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Run a candidate; classify its failure by the effect on the process and the device."""
        if self.missing:
            raise CandidateFailed(ErrorKind.DEVICE_FAULTED, self.missing, is_fatal=True)
        try:
            yield
        except CandidateFailed as failure:
            explained = gpu_failure(failure)
            if explained.is_fatal:
                # Keep the traceback, and with it the arrays of the failed call: freeing them in a broken context raises
                # in a destructor, which would end the process before it has answered.
                self._broken_by = failure
            raise explained from failure


class GpuRuntime(TvmRuntime):
    """Runs candidates on the one GPU that this process sees."""

    time_source = "event"

    def __init__(self, device_type: str, libraries: Sequence[str] = (), l2_bytes: int = 0) -> None:
        """Args: libraries: paths of libraries to load first, in order. l2_bytes: size of the L2 cache, for devices that
        do not report it.
        """
        self._context = GpuContext()
        self._l2_bytes = l2_bytes
        super().__init__(device_type, 0, libraries)

    def measure(self, trial: Trial, path: str) -> Measurement:
        with self._context.explained():
            return super().measure(trial, path)

    def call(self, call: Call, path: str) -> list[Tensor]:
        with self._context.explained():
            return super().call(call, path)

    def _prepare(self, libraries: Sequence[str]) -> None:
        try:
            super()._prepare(libraries)
        except OSError as error:
            # Reported with each candidate: a worker that ended here would look like a candidate's crash.
            self._context.missing = f"the GPU's runtime cannot be loaded: {error}"

    def _make_time_repeats(
        self, module: tvm_ffi.Module, function: str, arguments: list[PackedArgument], evaluator: Evaluator
    ) -> TimeRepeats:
        if evaluator.flush_bytes or evaluator.flush_cache:
            # Arguments lie in the device's memory: TVM's flush of the CPU's cache would read their addresses as host
            # memory.
            evaluator = push_out(evaluator, self._l2_size())
        return super()._make_time_repeats(module, function, arguments, evaluator)

    def _flushed(self, evaluator: Evaluator) -> str:
        return "l2" if evaluator.flush_bytes or evaluator.flush_cache else ""

    def _l2_size(self) -> int:
        """Return the size that flushes the caches [bytes]: the larger of the device's and the driver's values."""
        ask = self._ffi.get_global_func("runtime.GetDeviceAttr")
        found = ask(self._device.dlpack_device_type(), self._device.index, _L2_ATTRIBUTE)
        return max(int(found or 0), self._l2_bytes)
