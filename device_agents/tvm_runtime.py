"""Runs TVM modules with tvm_ffi and TVM's runtime libraries alone: `tvm` itself, with its compiler, is never imported.

That is what keeps the agent small (34 MB instead of 300) and its start short (0.1 s). Everything goes through global
functions of the runtime, the same that TVM's RPC server uses.

For other hardware than the CPU: more libraries of TVM's runtime by `libraries`, or a subclass that overrides what
differs, of `_prepare`, `_open_device`, `_load_library`, `_host_device`, `_make_time_repeats` and `time_source`.
"""

from __future__ import annotations

import ctypes
import importlib.util
import struct
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from device_agents.evaluating import TimeRepeats, for_single_calls, run_schedule
from device_agents.filling import make_tile, random_content
from device_agents.reference_work import CpuReference
from device_agents.runtimes import CandidateFailed, classify
from fleet.v1 import measurement_pb2, session_service_pb2, tensor_pb2
from fleet.wire import duration

_LIBRARIES = ("libtvm_runtime.so", "libtvm_runtime_extra.so")
_KEPT_MODULES: dict[int, int] = {measurement_pb2.MODULE_KIND_FUNCTIONS: 8, measurement_pb2.MODULE_KIND_RELAX_VM: 1}
"""Loaded modules kept per worker: repeats of a candidate come close together. An executable holds a whole model's
weights."""

_POOLED_ALLOCATOR = 2
"""Of the Relax VM; what relax.VirtualMachine uses unless told otherwise."""

_TIMED_NAME = "fleet_timed"

_MOST_FLUSHED_BYTES = 2**31 - 1
"""What the evaluator's int takes."""

_PUSHED_OUT_BYTES = 64 * 1024 * 1024
"""Larger than the caches of most processors."""

_REFERENCE_BYTES = 8 * 1024 * 1024
_REFERENCE_PIECES = 5
_REFERENCE_PIECE_SEC = 0.001
_REFERENCE_MOST_COPIES = 512
"""On devices that are no processor, the reference kernel copies 8 MiB as often as takes a millisecond, five times over:
shorter, it would time how the host waits for the device."""

_BAD_ARGUMENTS = ("when calling:", "Invoking function", "match_cast error", "loc=param[")
"""Texts of the runtime's complaints about arguments: of compiled functions, and of the Relax VM."""


def preload() -> None:
    """Load tvm_ffi, the runtime libraries, and what every worker would have to make. Starts no thread.

    Raises:
        RuntimeError: TVM is not installed here.
    """
    # tvm_ffi imports these where it finds them, for conversions that nobody here asks for; they cost 13 MB and a
    # thread, which a process that forks must not have.
    for optional in ("numpy", "torch", "ml_dtypes"):
        sys.modules.setdefault(optional, None)  # type: ignore[arg-type]
    import tvm_ffi  # noqa: F401 - its library has to be there before TVM's

    spec = importlib.util.find_spec("tvm")
    if spec is None or not spec.submodule_search_locations:
        raise RuntimeError("apache-tvm is not installed")
    folder = Path(next(iter(spec.submodule_search_locations))) / "lib"
    for name in _LIBRARIES:
        ctypes.CDLL(str(folder / name), ctypes.RTLD_GLOBAL)
    make_tile("float32")


class TvmRuntime:
    """Runs candidates on one device of this process."""

    time_source = ""
    """Of Measurement: how `_make_time_repeats` takes the times; empty: by the host's clock."""

    def __init__(self, device_type: str = "cpu", device_index: int = 0, libraries: Sequence[str] = ()) -> None:
        """Open the device.

        Args:
            libraries: paths of runtime libraries to load before, as libtvm_runtime_cuda.so.
        """
        preload()
        import tvm_ffi

        self._ffi = tvm_ffi
        self._reference: Callable[[], list[float]] | None = None
        self._prepare(libraries)
        self._device = self._open_device(device_type, device_index)
        self._alloc = tvm_ffi.get_global_func("runtime.TVMTensorAllocWithScope")
        self._copy_from = tvm_ffi.get_global_func("runtime.TVMTensorCopyFromBytes")
        self._copy_to = tvm_ffi.get_global_func("runtime.TVMTensorCopyToBytes")
        self._fill = tvm_ffi.get_global_func("tvm.contrib.random.random_fill_for_measure")
        self._make_evaluator = tvm_ffi.get_global_func("runtime.RPCTimeEvaluator")
        self._modules: dict[int, OrderedDict[str, Any]] = {kind: OrderedDict() for kind in _KEPT_MODULES}

    def measure(self, request: measurement_pb2.MeasureRequest, path: str) -> measurement_pb2.Measurement:
        """Time a function of the artifact."""
        started = time.perf_counter()
        function = request.function or "main"
        module = self._module(request.artifact_digest, path, request.module_kind, function)
        arguments = [self._argument(argument, index) for index, argument in enumerate(request.args)]
        loaded = time.perf_counter()
        try:
            run_secs = self._time(module, function, arguments, request)
        except Exception as error:
            raise run_failure(error) from error
        ended = time.perf_counter()
        return measurement_pb2.Measurement(
            candidate_id=request.candidate_id,
            run_secs=run_secs,
            time_source=self.time_source,
            provenance=measurement_pb2.Provenance(flushed=self._flushed(request.evaluator)),
            clocks=measurement_pb2.Clocks(load=duration(loaded - started), run=duration(ended - loaded)),
        )

    def reference(self) -> list[float]:
        """Time the reference kernel: hashing on processors, copies within its own memory on other devices."""
        if self._reference is None:
            self._reference = CpuReference() if self._host_device() is None else self._make_copies()
        return self._reference()

    def call(self, request: session_service_pb2.CallRequest, path: str) -> session_service_pb2.CallResponse:
        """Run a function of the artifact once and return what it computed."""
        function = request.function or "main"
        module = self._module(request.artifact_digest, path, request.module_kind, function)
        arguments = [self._argument(argument, index) for index, argument in enumerate(request.args)]
        try:
            returned = module.get_function(function)(*arguments)
        except Exception as error:
            raise run_failure(error) from error
        if request.module_kind == measurement_pb2.MODULE_KIND_RELAX_VM:
            tensors = self._flatten(returned)
        else:
            tensors = _written(request.args, arguments)
        return session_service_pb2.CallResponse(outputs=[self._tensor_to_proto(tensor) for tensor in tensors])

    def _prepare(self, libraries: Sequence[str]) -> None:
        """Load what the device needs besides TVM's runtime."""
        for library in libraries:
            ctypes.CDLL(library, ctypes.RTLD_GLOBAL)

    def _open_device(self, device_type: str, device_index: int) -> Any:
        """Return the device that arguments are allocated on."""
        return self._ffi.device(device_type, device_index)

    def _host_device(self) -> Any | None:
        """Return the device for shapes and host parts that the Relax VM needs beside the other, if that is no CPU."""
        cpu = self._ffi.device("cpu", 0)
        return None if self._device.dlpack_device_type() == cpu.dlpack_device_type() else cpu

    def _load_library(self, path: str) -> Any:
        """Load an artifact. `path` is a link by the name of a library: the loader goes by the suffix."""
        return self._ffi.load_module(path, keep_module_alive=False)

    def _make_copies(self) -> Callable[[], list[float]]:
        """Return what copies a buffer within the device some times over."""
        shape, dtype = self._ffi.Shape((_REFERENCE_BYTES,)), self._ffi.dtype("int8")
        source, goal = (self._alloc(shape, dtype, self._device, None) for _ in range(2))
        copy = self._ffi.get_global_func("runtime.TVMTensorCopyFromTo")
        synchronize = self._ffi.get_global_func("runtime.Device_StreamSync")

        def copy_sec(count: int) -> float:
            started = time.perf_counter()
            for _ in range(count):
                copy(source, goal)
            synchronize(self._device, 0)
            return (time.perf_counter() - started) / count

        copy_sec(1)
        count = max(1, min(_REFERENCE_MOST_COPIES, round(_REFERENCE_PIECE_SEC / copy_sec(4))))

        def run() -> list[float]:
            copy_sec(count)  # clocks rise
            return [copy_sec(count) for _ in range(_REFERENCE_PIECES)]

        return run

    def _time(
        self, module: Any, function: str, arguments: list[Any], request: measurement_pb2.MeasureRequest
    ) -> list[float]:
        evaluator = self._checked(request)
        if request.module_kind == measurement_pb2.MODULE_KIND_RELAX_VM:
            # A closure without arguments and result: calling it costs no lookup and no copy of what is returned.
            module.get_function("save_function")(function, _TIMED_NAME, 0, *arguments)
            function, arguments = _TIMED_NAME, []
        return run_schedule(
            evaluator, self._make_time_repeats(module, function, arguments, for_single_calls(evaluator))
        )

    def _checked(self, request: measurement_pb2.MeasureRequest) -> measurement_pb2.Evaluator:
        """Return the knobs as they are turned here.

        Raises:
            CandidateFailed: they contradict each other, or ask for what this runtime has not.
        """
        evaluator = request.evaluator
        if evaluator.f_preproc and evaluator.flush_cpu_cache:
            problem = "flush_cpu_cache is an f_preproc; ask for one of them"
        elif evaluator.f_preproc and self._ffi.get_global_func(evaluator.f_preproc, allow_missing=True) is None:
            problem = f"this runtime has no global function {evaluator.f_preproc!r} for f_preproc"
        elif evaluator.cache_flush_bytes > _MOST_FLUSHED_BYTES:
            problem = f"cache_flush_bytes: at most {_MOST_FLUSHED_BYTES}, found {evaluator.cache_flush_bytes}"
        elif evaluator.flush_cpu_cache and (
            request.module_kind == measurement_pb2.MODULE_KIND_RELAX_VM or self._host_device() is not None
        ):
            # Arguments are bound in a closure, or lie where no processor can flush them: push them out instead.
            pushed = measurement_pb2.Evaluator()
            pushed.CopyFrom(evaluator)
            pushed.flush_cpu_cache = False
            pushed.cache_flush_bytes = max(evaluator.cache_flush_bytes, _PUSHED_OUT_BYTES)
            return pushed
        else:
            return evaluator
        raise CandidateFailed(measurement_pb2.ERROR_KIND_BAD_ARGUMENTS, problem)

    def _flushed(self, evaluator: measurement_pb2.Evaluator) -> str:
        """Say which caches are cold before each run."""
        is_host = self._host_device() is None
        names = {"cpu": evaluator.flush_cpu_cache or (evaluator.cache_flush_bytes and is_host)}
        names["l2"] = bool(evaluator.cache_flush_bytes) and not is_host
        return ", ".join(name for name, is_cold in names.items() if is_cold)

    def _make_time_repeats(
        self, module: Any, function: str, arguments: list[Any], evaluator: measurement_pb2.Evaluator
    ) -> TimeRepeats:
        """Return what times repeats of one function of a loaded module."""
        preparation = "cache_flush_cpu_non_first_arg" if evaluator.flush_cpu_cache else evaluator.f_preproc

        def time_repeats(*, number: int, repeat: int, min_repeat_ms: int) -> list[float]:
            timed = self._make_evaluator(
                module,
                function,
                self._device.dlpack_device_type(),
                self._device.index,
                number,
                repeat,
                min_repeat_ms,
                evaluator.limit_zero_time_iterations or 100,
                evaluator.cooldown_interval_ms,
                evaluator.repeats_to_cooldown or 1,
                evaluator.cache_flush_bytes,
                preparation,
            )
            return list(struct.unpack(f"@{repeat}d", timed(*arguments)))

        return time_repeats

    def _module(self, digest: str, path: str, kind: int, function: str) -> Any:
        kind = kind or measurement_pb2.MODULE_KIND_FUNCTIONS
        kept = self._modules[kind]
        module = kept.get(digest)
        if module is None:
            while len(kept) >= _KEPT_MODULES[kind]:
                kept.popitem(last=False)
            module = kept[digest] = self._load(path, kind)
        kept.move_to_end(digest)
        try:
            module.get_function(function)
        except AttributeError:
            raise CandidateFailed(
                measurement_pb2.ERROR_KIND_LOAD_FAILED, f"the artifact has no function {function!r}"
            ) from None
        return module

    def _load(self, path: str, kind: int) -> Any:
        try:
            module = self._load_library(path)
            if kind != measurement_pb2.MODULE_KIND_RELAX_VM:
                return module
            machine = module.get_function("vm_load_executable")()
            devices = [device for device in (self._device, self._host_device()) if device is not None]
            machine.get_function("vm_initialization")(
                *(part for d in devices for part in (d.dlpack_device_type(), d.index, _POOLED_ALLOCATOR))
            )
        except Exception as error:
            raise CandidateFailed(measurement_pb2.ERROR_KIND_LOAD_FAILED, f"cannot load: {error}") from error
        return machine

    def _argument(self, argument: tensor_pb2.Argument, index: int) -> Any:
        kind = argument.WhichOneof("kind")
        if kind in ("int_value", "float_value"):
            return getattr(argument, kind)
        if kind is None:
            raise CandidateFailed(measurement_pb2.ERROR_KIND_BAD_ARGUMENTS, f"argument {index} is empty")
        spec = argument.tensor.spec if kind == "tensor" else getattr(argument, kind)
        tensor, size = self._allocate(spec, index)
        content: bytes | None
        if kind == "fill":
            content = random_content(str(tensor.dtype), size, index)
            if content is None:
                self._fill(tensor)
                return tensor
        else:
            content = argument.tensor.content if kind == "tensor" else bytes(size)
        if len(content) != size:
            raise CandidateFailed(
                measurement_pb2.ERROR_KIND_BAD_ARGUMENTS,
                f"argument {index} is {spec.dtype}{list(spec.shape)}, which takes {size} bytes, not {len(content)}",
            )
        if size:
            self._copy_from(tensor, ctypes.cast(ctypes.c_char_p(content), ctypes.c_void_p), size)
        return tensor

    def _allocate(self, spec: tensor_pb2.TensorSpec, index: int) -> tuple[Any, int]:
        try:
            dtype = self._ffi.dtype(spec.dtype)
            if any(extent < 0 for extent in spec.shape):
                raise ValueError("negative extent")
        except (ValueError, TypeError, RuntimeError) as error:
            raise CandidateFailed(
                measurement_pb2.ERROR_KIND_BAD_ARGUMENTS,
                f"argument {index}: {spec.dtype}{list(spec.shape)} is no tensor type: {error}",
            ) from error
        try:
            tensor = self._alloc(self._ffi.Shape(tuple(spec.shape)), dtype, self._device, None)
        except Exception as error:
            raise classify(error) from error
        return tensor, _size_bytes(tensor)

    def _flatten(self, value: Any) -> list[Any]:
        if isinstance(value, self._ffi.Tensor):
            return [value]
        if isinstance(value, Sequence) and not isinstance(value, str | bytes | self._ffi.Shape):
            return [tensor for item in value for tensor in self._flatten(item)]
        return []

    def _tensor_to_proto(self, tensor: Any) -> tensor_pb2.Tensor:
        size = _size_bytes(tensor)
        content = ctypes.create_string_buffer(size) if size else None
        if content is not None:
            self._copy_to(tensor, ctypes.cast(content, ctypes.c_void_p), size)
        return tensor_pb2.Tensor(
            spec=tensor_pb2.TensorSpec(shape=tuple(tensor.shape), dtype=str(tensor.dtype)),
            content=content.raw if content is not None else b"",
        )


def _size_bytes(tensor: Any) -> int:
    dtype = tensor.dtype
    count = 1
    for extent in tensor.shape:
        count *= extent
    return int((count * dtype.bits * dtype.lanes + 7) // 8)


def _written(arguments: Sequence[tensor_pb2.Argument], values: list[Any]) -> list[Any]:
    """Return the tensors that a caller wants back: the outputs, or all of them when none is marked."""
    kinds = [argument.WhichOneof("kind") for argument in arguments]
    wanted = ("output",) if "output" in kinds else ("fill", "tensor")
    return [value for value, kind in zip(values, kinds, strict=True) if kind in wanted]


def run_failure(error: Exception) -> CandidateFailed:
    """Return the failure that an error of a running function stands for."""
    failure = classify(error)
    is_plain = failure.kind == measurement_pb2.ERROR_KIND_RUN_FAILED
    if is_plain and any(text in str(error) for text in _BAD_ARGUMENTS):
        return CandidateFailed(measurement_pb2.ERROR_KIND_BAD_ARGUMENTS, str(error))
    return failure
