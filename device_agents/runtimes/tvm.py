"""Runs TVM modules with tvm_ffi and TVM's runtime libraries alone: `tvm` itself, with its compiler, is never imported.

That keeps the agent small (34 MB instead of 300) and its start short (0.1 s). Everything goes through global
functions of the runtime, the same that TVM's RPC server uses.

For other hardware than the CPU: more libraries of TVM's runtime by `libraries`, or a subclass that overrides some of
`_prepare`, `_open_device`, `_load_library`, `_host_device`, `_settle`, `_make_time_repeats` and
`time_source`.
"""

from __future__ import annotations

import ctypes
import importlib.util
import math
import struct
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from device_agents.runtimes import rpc_session
from device_agents.runtimes.arguments import bad_argument, check_content, wanted_back
from device_agents.runtimes.contract import CandidateFailed, classify
from device_agents.runtimes.evaluating import TimeRepeats, Timing, for_single_calls, push_out, run_schedule
from device_agents.runtimes.filling import make_tile, random_content
from device_agents.runtimes.instrument import MOST_RUNS, profile_calls
from device_agents.runtimes.kept_modules import KeptModules
from device_agents.runtimes.pool_cores import cores_apart, move_to
from device_agents.runtimes.proving import NotProvable, ProofParts, check_banks, view
from device_agents.runtimes.reference_kernels import CopyReferenceKernel, CpuReferenceKernel
from fleet.domain.measuring import (
    Argument,
    Call,
    Clocks,
    ErrorKind,
    Evaluator,
    Measurement,
    ModuleKind,
    OperatorProfile,
    Tensor,
    TensorSpec,
    Trial,
)
from fleet.domain.proving import ProofOrder

if TYPE_CHECKING:
    import tvm_ffi

    PackedArgument: TypeAlias = tvm_ffi.Tensor | int | float

_LIBRARIES = ("libtvm_runtime.so", "libtvm_runtime_extra.so")
_KEPT_MODULES = {ModuleKind.FUNCTIONS: 8, ModuleKind.RELAX_VM: 1}
"""Per worker; an executable holds a whole model's weights."""

_POOLED_ALLOCATOR = 2
"""The Relax VM's allocator that relax.VirtualMachine uses by default."""

_ON_FASTEST_CORES, _AS_MANY_AS_USUAL = 1, 0
"""Default size of TVM's pool."""

_TIMED_NAME = "fleet_timed"

_NOTHING = "testing.nop"
"""Global function of TVM that takes any arguments and does nothing."""

_MOST_FLUSHED_BYTES = 2**31 - 1
"""The largest number that the evaluator's int holds."""

_PUSHED_OUT_BYTES = 64 * 1024 * 1024
"""Larger than the caches of most processors."""

_KINDS_BY_TEXT = {
    ErrorKind.OUT_OF_MEMORY: ("std::bad_alloc", "out of memory"),
    ErrorKind.BAD_ARGUMENTS: ("when calling:", "Invoking function", "match_cast error", "loc=param["),
}
"""Texts by which TVM's runtime reports failed allocations and wrong arguments, its Relax VM included. It turns C++
exceptions into RuntimeError and InternalError, and their classes are lost."""


def preload() -> None:
    """Load tvm_ffi, the runtime libraries, and objects that every worker needs. Starts no thread.

    Raises:
        RuntimeError: TVM is not installed here.
    """
    # tvm_ffi would import these packages if installed, for conversions that are unused here. They cost 13 MB and a
    # thread, and a process that forks must have none.
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

    time_source = "wall"
    """Time source of measurements with `_make_time_repeats`."""

    def __init__(self, device_type: str = "cpu", device_index: int = 0, libraries: Sequence[str] = ()) -> None:
        """Open the device.

        Args:
            libraries: paths of runtime libraries to load before, as libtvm_runtime_cuda.so.
        """
        preload()
        import tvm_ffi

        self._ffi = tvm_ffi
        self._reference: Callable[[], list[float]] | None = None
        self._own_cores: frozenset[int] | None = None
        self._prepare(libraries)
        self._device = self._open_device(device_type, device_index)
        self._alloc = tvm_ffi.get_global_func("runtime.TVMTensorAllocWithScope")
        self._copy_from = tvm_ffi.get_global_func("runtime.TVMTensorCopyFromBytes")
        self._copy_to = tvm_ffi.get_global_func("runtime.TVMTensorCopyToBytes")
        self._fill = tvm_ffi.get_global_func("tvm.contrib.random.random_fill_for_measure")
        self._make_evaluator = tvm_ffi.get_global_func("runtime.RPCTimeEvaluator")
        self._modules: dict[ModuleKind, KeptModules[tvm_ffi.Module]] = {
            kind: KeptModules(most) for kind, most in _KEPT_MODULES.items()
        }

    def measure(self, trial: Trial, path: str) -> Measurement:
        started = time.perf_counter()
        module = self._module(trial, path)
        arguments = self._arguments(trial.args)
        loaded = time.perf_counter()
        try:
            timing = self._time(module, arguments, trial)
            operators = self._profile(module, trial) if trial.operator_runs else None
        except Exception as error:  # compiled code raises any class
            raise run_failure(error) from error
        ended = time.perf_counter()
        return Measurement(
            candidate_id=trial.candidate_id,
            run_secs=tuple(timing.secs),
            stopped=timing.stopped,
            time_source=self.time_source,
            provenance={"flushed": self._flushed(trial.evaluator)},
            clocks=Clocks(load_sec=loaded - started, run_sec=ended - loaded),
            operators=operators,
        )

    def call(self, call: Call, path: str) -> list[Tensor]:
        module = self._module(call, path)
        arguments = self._arguments(call.args)
        try:
            returned = module.get_function(call.function)(*arguments)
        except Exception as error:  # compiled code raises any class
            raise run_failure(error) from error
        is_vm = call.module_kind is ModuleKind.RELAX_VM
        return self._fetch(self._flatten(returned) if is_vm else wanted_back(call.args, arguments))

    def reference(self) -> list[float]:
        """Hash on processors; copy within device memory on other devices."""
        if self._reference is None:
            self._reference = CpuReferenceKernel() if self._host_device() is None else self._copies()
        return self._reference()

    def prepare_proof(self, order: ProofOrder) -> ProofParts:
        if self._host_device() is not None:
            raise NotProvable(
                "its times are of the device's own events, which leave out the launch that other clocks see"
            )
        made = [self._allocate(arg.spec, index) for index, arg in enumerate(order.args)]
        check_banks(order, [size for _, size in made])
        tensors = [tensor for tensor, _ in made]
        nothing = self._ffi.get_global_func(_NOTHING, allow_missing=True)

        def load(path: str) -> Callable[[], object]:
            call = Call(artifact_digest=order.artifact_digest, function=order.function)
            function = self._module(call, path).get_function(order.function)
            return partial(function, *tensors)

        self._settle()
        return ProofParts(
            contents=[view(tensor.data_ptr(), size) for tensor, size in made],
            load=load,
            call_nothing=(lambda: None) if nothing is None else partial(nothing, *tensors),
        )

    def serve_rpc(self, connection_fd: int) -> None:
        rpc_session.serve(connection_fd)

    def _prepare(self, libraries: Sequence[str]) -> None:
        """Load the device's libraries in addition to TVM's runtime."""
        for library in libraries:
            ctypes.CDLL(library, ctypes.RTLD_GLOBAL)

    def _open_device(self, device_type: str, device_index: int) -> tvm_ffi.Device:
        """Return the device on which arguments are allocated."""
        return self._ffi.device(device_type, device_index)

    def _host_device(self) -> tvm_ffi.Device | None:
        """Return the host device that the Relax VM needs for shapes and host code, if the kernels' device is no CPU."""
        cpu = self._ffi.device("cpu", 0)
        return None if self._device.dlpack_device_type() == cpu.dlpack_device_type() else cpu

    def _load_library(self, path: str) -> tvm_ffi.Module:
        """Load an artifact. `path` is a link named like a library: the loader goes by the suffix."""
        return self._ffi.load_module(path, keep_module_alive=False)

    def _copies(self) -> CopyReferenceKernel:
        copy = self._ffi.get_global_func("runtime.TVMTensorCopyFromTo")
        synchronize = self._ffi.get_global_func("runtime.Device_StreamSync")

        def copier(size_bytes: int) -> Callable[[], object]:
            shape, dtype = self._ffi.Shape((size_bytes,)), self._ffi.dtype("int8")
            source, goal = (self._alloc(shape, dtype, self._device, None) for _ in range(2))
            return lambda: copy(source, goal)

        return CopyReferenceKernel(copier, lambda: synchronize(self._device, 0))

    def _time(self, module: tvm_ffi.Module, arguments: list[PackedArgument], trial: Trial) -> Timing:
        evaluator = self._checked(trial)
        function = trial.function
        if trial.module_kind is ModuleKind.RELAX_VM:
            # A closure without arguments and result: calling it costs no lookup and no copy of the result.
            module.get_function("save_function")(function, _TIMED_NAME, 0, *arguments)
            function, arguments = _TIMED_NAME, []
        self._settle()
        return run_schedule(
            evaluator, self._make_time_repeats(module, function, arguments, for_single_calls(evaluator))
        )

    def _settle(self) -> None:
        """Start TVM's thread pool, which it creates at the first parallel loop, and leave its cores."""
        if self._host_device() is not None:
            return
        if self._own_cores is None:
            self._ffi.get_global_func("runtime.config_threadpool")(_ON_FASTEST_CORES, _AS_MANY_AS_USUAL)
            self._own_cores = cores_apart()
        move_to(self._own_cores)

    def _profile(self, machine: tvm_ffi.Module, trial: Trial) -> OperatorProfile:
        """Time the calls within the closure that `_time` saved."""
        # A Relax VM never removes an instrument, which would slow down later runs.
        self._modules[trial.module_kind].forget(trial.artifact_digest)
        synchronize = self._ffi.get_global_func("runtime.Device_StreamSync")
        return profile_calls(
            machine.get_function(_TIMED_NAME),
            machine.get_function("set_instrument"),
            trial.operator_runs,
            synchronize=None if self._host_device() is None else lambda: synchronize(self._device, 0),
        )

    def _checked(self, trial: Trial) -> Evaluator:
        """Return the evaluator with the settings that this runtime supports.

        Raises:
            CandidateFailed: they contradict each other, or need features that this runtime lacks.
        """
        evaluator = trial.evaluator
        if evaluator.f_preproc and evaluator.flush_cache:
            problem = "flush_cache is an f_preproc; ask for one of them"
        elif evaluator.f_preproc and self._ffi.get_global_func(evaluator.f_preproc, allow_missing=True) is None:
            problem = f"this runtime has no global function {evaluator.f_preproc!r} for f_preproc"
        elif trial.operator_runs and trial.module_kind is not ModuleKind.RELAX_VM:
            problem = "operator_runs: only a Relax VM executable has operators to look into"
        elif trial.operator_runs > MOST_RUNS:
            problem = f"operator_runs: at most {MOST_RUNS}, found {trial.operator_runs}"
        elif evaluator.flush_bytes > _MOST_FLUSHED_BYTES:
            problem = f"flush_bytes: at most {_MOST_FLUSHED_BYTES}, found {evaluator.flush_bytes}"
        elif evaluator.flush_cache and (trial.module_kind is ModuleKind.RELAX_VM or self._host_device() is not None):
            # Arguments are bound in a closure, or lie in memory that no processor can flush.
            return push_out(evaluator, _PUSHED_OUT_BYTES)
        else:
            return evaluator
        raise CandidateFailed(ErrorKind.BAD_ARGUMENTS, problem)

    def _flushed(self, evaluator: Evaluator) -> str:
        """Return which caches are cold before each run."""
        is_host = self._host_device() is None
        names = {"cpu": evaluator.flush_cache or (evaluator.flush_bytes and is_host)}
        names["l2"] = bool(evaluator.flush_bytes) and not is_host
        return ", ".join(name for name, is_cold in names.items() if is_cold)

    def _make_time_repeats(
        self, module: tvm_ffi.Module, function: str, arguments: list[PackedArgument], evaluator: Evaluator
    ) -> TimeRepeats:
        """Return a timer of repeats of one function of a loaded module."""
        preparation = "cache_flush_cpu_non_first_arg" if evaluator.flush_cache else evaluator.f_preproc

        def time_repeats(*, number: int, repeat: int, min_repeat_ms: int) -> list[float]:
            timed = self._make_evaluator(
                module,
                function,
                self._device.dlpack_device_type(),
                self._device.index,
                number,
                repeat,
                min_repeat_ms,
                evaluator.limit_zero_time_iterations,
                evaluator.cooldown_interval_ms,
                evaluator.repeats_to_cooldown,
                evaluator.flush_bytes,
                preparation,
            )
            return list(struct.unpack(f"@{repeat}d", timed(*arguments)))

        return time_repeats

    def _module(self, wanted: Trial | Call, path: str) -> tvm_ffi.Module:
        kind = wanted.module_kind
        module = self._modules[kind].get(wanted.artifact_digest, lambda: self._load(path, kind))
        try:
            module.get_function(wanted.function)
        except AttributeError:
            problem = f"the artifact has no function {wanted.function!r}"
            raise CandidateFailed(ErrorKind.LOAD_FAILED, problem) from None
        return module

    def _load(self, path: str, kind: ModuleKind) -> tvm_ffi.Module:
        try:
            module = self._load_library(path)
            if kind is ModuleKind.FUNCTIONS:
                return module
            machine = module.get_function("vm_load_executable")()
            devices = [device for device in (self._device, self._host_device()) if device is not None]
            machine.get_function("vm_initialization")(
                *(part for d in devices for part in (d.dlpack_device_type(), d.index, _POOLED_ALLOCATOR))
            )
        except Exception as error:  # TVM's loaders raise many classes
            raise CandidateFailed(ErrorKind.LOAD_FAILED, f"cannot load: {error}") from error
        return machine

    def _arguments(self, arguments: Iterable[Argument]) -> list[PackedArgument]:
        return [self._argument(argument, index) for index, argument in enumerate(arguments)]

    def _argument(self, argument: Argument, index: int) -> PackedArgument:
        if isinstance(argument, int | float):
            return argument
        if isinstance(argument, Tensor):
            tensor, size = self._allocate(argument.spec, index)
            check_content(index, argument, size)
            content = argument.content
        else:
            tensor, size = self._allocate(argument, index)
            filling = bytes(size) if argument.is_output else random_content(argument.dtype, size, index)
            if filling is None:
                self._fill(tensor)
                return tensor
            content = filling
        if size:
            self._copy_from(tensor, ctypes.cast(ctypes.c_char_p(content), ctypes.c_void_p), size)
        return tensor

    def _allocate(self, spec: TensorSpec, index: int) -> tuple[tvm_ffi.Tensor, int]:
        try:
            dtype = self._ffi.dtype(spec.dtype)
            if any(extent < 0 for extent in spec.shape):
                raise ValueError("negative extent")
        except (ValueError, TypeError, RuntimeError) as error:
            problem = f"is {spec.dtype}{list(spec.shape)}, which is not a tensor type: {error}"
            raise bad_argument(index, problem) from error
        try:
            tensor = self._alloc(self._ffi.Shape(spec.shape), dtype, self._device, None)
        except Exception as error:  # TVM's allocators raise many classes
            raise run_failure(error) from error
        return tensor, _size_bytes(spec.shape, dtype)

    def _flatten(self, value: object) -> list[tvm_ffi.Tensor]:
        if isinstance(value, self._ffi.Tensor):
            return [value]
        if isinstance(value, Sequence) and not isinstance(value, str | bytes | self._ffi.Shape):
            return [tensor for item in value for tensor in self._flatten(item)]
        return []

    def _fetch(self, tensors: Iterable[tvm_ffi.Tensor]) -> list[Tensor]:
        """Return the device's tensors with their content."""
        fetched = []
        for tensor in tensors:
            size = _size_bytes(tensor.shape, tensor.dtype)
            content = ctypes.create_string_buffer(size) if size else None
            if content is not None:
                self._copy_to(tensor, ctypes.cast(content, ctypes.c_void_p), size)
            spec = TensorSpec(tuple(tensor.shape), str(tensor.dtype))
            fetched.append(Tensor(spec, content.raw if content is not None else b""))
        return fetched


def run_failure(error: Exception) -> CandidateFailed:
    """Return the failure for an error that TVM's runtime raised."""
    failure = classify(error)
    if failure.kind is not ErrorKind.RUN_FAILED:
        return failure
    kinds = (kind for kind, texts in _KINDS_BY_TEXT.items() if any(text in str(failure) for text in texts))
    return CandidateFailed(next(kinds, failure.kind), str(failure))


def _size_bytes(shape: Iterable[int], dtype: tvm_ffi.dtype) -> int:
    return int((math.prod(shape) * dtype.bits * dtype.lanes + 7) // 8)
