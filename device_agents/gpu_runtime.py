"""Runs TVM modules on a GPU with TVM's own runtime for it: libtvm_runtime_cuda.so, libtvm_runtime_rocm.so.

The library is loaded in the worker, never in the process that workers are forked from: it brings the vendor's driver
library, whose context does not survive a fork. The driver names the one device by the environment
(CUDA_VISIBLE_DEVICES, ROCR_VISIBLE_DEVICES), so here it is always number 0. Times are those of the device's own events.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from device_agents import tvm_runtime
from device_agents.evaluating import TimeRepeats
from device_agents.gpu_errors import gpu_failure
from device_agents.runtimes import CandidateFailed
from device_agents.tvm_runtime import TvmRuntime
from fleet.v1 import measurement_pb2, session_service_pb2

preload = tvm_runtime.preload

_L2_ATTRIBUTE = 13
"""Number of kL2CacheSizeBytes in TVM's DeviceAttrKind."""


class GpuRuntime(TvmRuntime):
    """Runs candidates on the one GPU that this process sees."""

    time_source = "event"

    def __init__(self, device_type: str, libraries: Sequence[str] = (), l2_bytes: int = 0) -> None:
        """Args:
        libraries: paths of libraries to load before, in order.
        l2_bytes: size of the L2 cache, for devices that do not tell it.
        """
        self._missing = ""
        self._broken_by: CandidateFailed | None = None
        self._l2_bytes = l2_bytes
        super().__init__(device_type, 0, libraries)

    def measure(self, request: measurement_pb2.MeasureRequest, path: str) -> measurement_pb2.Measurement:
        with self._explained():
            return super().measure(request, path)

    def call(self, request: session_service_pb2.CallRequest, path: str) -> session_service_pb2.CallResponse:
        with self._explained():
            return super().call(request, path)

    def _prepare(self, libraries: Sequence[str]) -> None:
        try:
            super()._prepare(libraries)
        except OSError as error:
            # Told with each candidate: a worker that ended here would look like a candidate that crashed.
            self._missing = f"the GPU's runtime cannot be loaded: {error}"

    def _make_time_repeats(
        self, module: Any, function: str, arguments: list[Any], evaluator: measurement_pb2.Evaluator
    ) -> TimeRepeats:
        if evaluator.cache_flush_bytes or evaluator.flush_cpu_cache:
            flushing = measurement_pb2.Evaluator()
            flushing.CopyFrom(evaluator)
            # Arguments lie in the device's memory: TVM's flush of the CPU's cache would read them as its own.
            flushing.flush_cpu_cache = False
            flushing.cache_flush_bytes = max(evaluator.cache_flush_bytes, self._l2_size())
            evaluator = flushing
        return super()._make_time_repeats(module, function, arguments, evaluator)

    def _flushed(self, evaluator: measurement_pb2.Evaluator) -> str:
        return "l2" if evaluator.cache_flush_bytes or evaluator.flush_cpu_cache else ""

    def _l2_size(self) -> int:
        """Return how much pushes everything out of the caches [bytes]: the larger of what device and driver tell."""
        ask = self._ffi.get_global_func("runtime.GetDeviceAttr")
        found = ask(self._device.dlpack_device_type(), self._device.index, _L2_ATTRIBUTE)
        return max(int(found or 0), self._l2_bytes)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        if self._missing:
            raise CandidateFailed(measurement_pb2.ERROR_KIND_DEVICE_FAULTED, self._missing, is_fatal=True)
        try:
            yield
        except CandidateFailed as failure:
            explained = gpu_failure(failure)
            if explained.is_fatal:
                # With its traceback, and so with the arrays of the failed call: to free them in a broken context is
                # an error in a destructor, which ends the process before it has answered.
                self._broken_by = failure
            raise explained from failure
