"""Runs plain TVM modules without TVM's runtime libraries: ctypes, and one small C library of ours.

For boards that no libtvm_runtime exists for, 32-bit ARM above all. Functions only: a Relax VM executable, or a module
with constants or other modules inside, needs the real runtime and is refused with that reason. The library lies beside
the C source in a bundle; elsewhere it is built at first use (see cross.plain_runtime).
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import platform
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from device_agents.evaluating import TimeRepeats, for_single_calls, run_schedule
from device_agents.filling import make_tile, random_content
from device_agents.reference_work import CpuReference
from device_agents.runtimes import CandidateFailed, classify
from fleet.tvm_versions import tvm_version
from fleet.v1 import measurement_pb2, session_service_pb2, tensor_pb2
from fleet.wire import duration

PackedFunction = Callable[..., None]
"""Called with integers, floats, and addresses of data as integers."""

_BUNDLED = Path(__file__).with_name("native") / "libplain_runtime.so"
_WITH_WHEELS = ("x86_64", "aarch64")
_KEPT_MODULES = 8
_PUSHED_OUT_BYTES = 8 * 1024 * 1024
"""Written through instead of flushing arguments one by one, for which a program has no instruction on 32-bit ARM:
several times the last cache of such boards."""

_MOST_BYTES = 2**31
_NONE, _INT, _BOOL, _FLOAT, _POINTER, _TENSOR = 0, 1, 2, 3, 4, 7
"""Of TVMFFITypeIndex."""

_CPU = 1
_DTYPE = re.compile(r"(u?int|float|bfloat|bool)(\d*)(?:x(\d+))?")
_CODES = {"int": 0, "uint": 1, "float": 2, "bfloat": 4, "bool": 6}
"""Of DLDataTypeCode."""

_NEEDS_RUNTIME = (
    "needs TVM's runtime libraries, and this device has only the plain runtime; build plain functions for it"
)


class _Value(ctypes.Union):
    _fields_ = (("as_int", ctypes.c_int64), ("as_float", ctypes.c_double), ("as_pointer", ctypes.c_void_p))


class _Any(ctypes.Structure):
    _fields_ = (("type_index", ctypes.c_int32), ("padding", ctypes.c_uint32), ("value", _Value))


class _DlTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    )


class _Knobs(ctypes.Structure):
    _fields_ = (
        ("number", ctypes.c_int32),
        ("repeat", ctypes.c_int32),
        ("min_repeat_ms", ctypes.c_int32),
        ("limit_zero", ctypes.c_int32),
        ("cooldown_ms", ctypes.c_int32),
        ("repeats_to_cooldown", ctypes.c_int32),
        ("flush_bytes", ctypes.c_uint32),
    )


_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.POINTER(_Any), ctypes.c_int32, ctypes.POINTER(_Any))


def is_only_choice() -> bool:
    """Tell whether this one has to do: TVM is not here, and no wheel of it exists for this machine."""
    return tvm_version() is None and (_BUNDLED.exists() or platform.machine() not in _WITH_WHEELS)


def preload() -> None:
    """Load the C library. Starts no thread.

    Raises:
        RuntimeError: it is not here, and cannot be built.
    """
    _library()
    make_tile("float32")


class PlainRuntime:
    """Runs candidates on this machine's CPU."""

    def __init__(self, device_type: str = "cpu", device_index: int = 0) -> None:
        self._library = _library()
        self._library.plain_set_threads(_threads())
        self._modules: OrderedDict[str, _Module] = OrderedDict()
        self._callbacks: list[Any] = []
        self._reference: CpuReference | None = None

    def register(self, name: str, function: PackedFunction) -> None:
        """Let artifacts call `function` by this name, as they call TVM's packed functions."""

        def called(_: int, args: Any, count: int, result: Any) -> int:
            try:
                function(*(_python_value(args[index]) for index in range(count)))
            except Exception as error:  # noqa: BLE001 - outermost edge: compiled code is above, it takes a code only
                self._library.plain_set_error(str(error).encode())
                return -1
            result[0].type_index = _NONE
            return 0

        callback = _CALLBACK(called)
        self._callbacks.append(callback)  # called for as long as the process lives
        if self._library.plain_register(name.encode(), callback, len(self._callbacks)):
            raise RuntimeError(f"{name!r} cannot be registered: its name is too long, or there are too many")

    def measure(self, request: measurement_pb2.MeasureRequest, path: str) -> measurement_pb2.Measurement:
        """Time a function of the artifact."""
        started = time.perf_counter()
        function = self._function(request.artifact_digest, path, request.module_kind, request.function or "main")
        evaluator = _checked(request.evaluator)
        with _Arguments(self._library, request.args) as arguments:
            loaded = time.perf_counter()
            repeats = self._make_time_repeats(function, arguments, for_single_calls(evaluator))
            run_secs = run_schedule(evaluator, repeats)
            ended = time.perf_counter()
        return measurement_pb2.Measurement(
            candidate_id=request.candidate_id,
            run_secs=run_secs,
            provenance=measurement_pb2.Provenance(flushed="cpu" if evaluator.cache_flush_bytes else ""),
            clocks=measurement_pb2.Clocks(load=duration(loaded - started), run=duration(ended - loaded)),
        )

    def call(self, request: session_service_pb2.CallRequest, path: str) -> session_service_pb2.CallResponse:
        """Run a function of the artifact once and return what it computed."""
        function = self._function(request.artifact_digest, path, request.module_kind, request.function or "main")
        with _Arguments(self._library, request.args) as arguments:
            self._run(function, arguments)
            return session_service_pb2.CallResponse(outputs=arguments.written(request.args))

    def reference(self) -> list[float]:
        """Time the reference kernel of processors."""
        if self._reference is None:
            self._reference = CpuReference()
        return self._reference()

    def _run(self, function: int, arguments: _Arguments) -> None:
        if self._library.plain_call(function, arguments.packed, arguments.count):
            self._fail()

    def _make_time_repeats(
        self, function: int, arguments: _Arguments, evaluator: measurement_pb2.Evaluator
    ) -> TimeRepeats:
        def time_repeats(*, number: int, repeat: int, min_repeat_ms: int) -> list[float]:
            secs = (ctypes.c_double * repeat)()
            knobs = _Knobs(
                number,
                repeat,
                min_repeat_ms,
                evaluator.limit_zero_time_iterations or 100,
                evaluator.cooldown_interval_ms,
                evaluator.repeats_to_cooldown or 1,
                evaluator.cache_flush_bytes,
            )
            if self._library.plain_time(function, arguments.packed, arguments.count, ctypes.byref(knobs), secs):
                self._fail()
            return list(secs)

        return time_repeats

    def _function(self, digest: str, path: str, kind: int, name: str) -> int:
        if kind == measurement_pb2.MODULE_KIND_RELAX_VM:
            raise CandidateFailed(measurement_pb2.ERROR_KIND_LOAD_FAILED, f"a Relax VM executable {_NEEDS_RUNTIME}")
        module = self._modules.get(digest)
        if module is None:
            while len(self._modules) >= _KEPT_MODULES:
                self._modules.popitem(last=False)[1].close()
            module = self._modules[digest] = _Module(self._library, path)
        self._modules.move_to_end(digest)
        return module.find(name)

    def _fail(self) -> NoReturn:
        message = self._library.plain_error().decode(errors="replace") or "the function failed without a message"
        kind, _, _ = message.partition(":")
        if kind in ("TypeError", "ValueError") and "Cannot find function" not in message:
            # Generated code raises these where it checks what it was called with, and nowhere else.
            raise CandidateFailed(measurement_pb2.ERROR_KIND_BAD_ARGUMENTS, message)
        raise classify(RuntimeError(message))


class _Module:
    """One loaded artifact."""

    def __init__(self, library: ctypes.CDLL, path: str) -> None:
        self._library = library
        self._handle = library.plain_load(path.encode())
        if not self._handle:
            message = library.plain_error().decode(errors="replace")
            raise CandidateFailed(measurement_pb2.ERROR_KIND_LOAD_FAILED, f"cannot load: {message}")
        if library.plain_find(self._handle, b"__tvm_ffi__library_bin"):
            self.close()
            raise CandidateFailed(
                measurement_pb2.ERROR_KIND_LOAD_FAILED, f"a module with constants or modules inside {_NEEDS_RUNTIME}"
            )

    def find(self, name: str) -> int:
        found: int | None = self._library.plain_find(self._handle, f"__tvm_ffi_{name}".encode())
        if not found:
            raise CandidateFailed(measurement_pb2.ERROR_KIND_LOAD_FAILED, f"the artifact has no function {name!r}")
        return found

    def close(self) -> None:
        self._library.plain_close(self._handle)


class _Arguments:
    """The arguments of one call, in the form that compiled functions take; their memory is freed at the end."""

    def __init__(self, library: ctypes.CDLL, args: Sequence[tensor_pb2.Argument]) -> None:
        self._library = library
        self.count = len(args)
        self.packed = (_Any * max(1, self.count))()
        self._tensors: dict[int, tuple[_DlTensor, int, tensor_pb2.TensorSpec]] = {}
        try:
            for index, argument in enumerate(args):
                self._pack(index, argument)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> _Arguments:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for tensor, _, _ in self._tensors.values():
            self._library.plain_free(tensor.data)
        self._tensors.clear()

    def written(self, args: Sequence[tensor_pb2.Argument]) -> list[tensor_pb2.Tensor]:
        """Return the tensors that a caller wants back: the outputs, or all of them when none is marked."""
        kinds = [argument.WhichOneof("kind") for argument in args]
        wanted = ("output",) if "output" in kinds else ("fill", "tensor")
        found = [self._tensors[index] for index, kind in enumerate(kinds) if kind in wanted]
        return [
            tensor_pb2.Tensor(spec=spec, content=ctypes.string_at(tensor.data, size) if size else b"")
            for tensor, size, spec in found
        ]

    def _pack(self, index: int, argument: tensor_pb2.Argument) -> None:
        kind = argument.WhichOneof("kind")
        packed = self.packed[index]
        if kind is None:
            raise _bad(index, "is empty")
        if kind == "int_value":
            packed.type_index, packed.value.as_int = _INT, argument.int_value
            return
        if kind == "float_value":
            packed.type_index, packed.value.as_float = _FLOAT, argument.float_value
            return
        spec = argument.tensor.spec if kind == "tensor" else getattr(argument, kind)
        tensor, size = self._allocate(index, spec)
        packed.type_index, packed.value.as_int = _TENSOR, ctypes.addressof(tensor)
        if kind == "fill":
            self._fill(index, tensor, size, spec)
        elif kind == "tensor":
            content = argument.tensor.content
            if len(content) != size:
                raise _bad(index, f"is {spec.dtype}{list(spec.shape)}, which takes {size} bytes, not {len(content)}")
            ctypes.memmove(tensor.data, content, size)
        else:
            ctypes.memset(tensor.data, 0, size)

    def _allocate(self, index: int, spec: tensor_pb2.TensorSpec) -> tuple[_DlTensor, int]:
        found = _DTYPE.fullmatch(spec.dtype)
        if found is None or any(extent < 0 for extent in spec.shape):
            raise _bad(index, f": {spec.dtype}{list(spec.shape)} is no tensor type that the plain runtime knows")
        bits, lanes = int(found[2] or 8), int(found[3] or 1)
        count = 1
        for extent in spec.shape:
            count *= extent
        size = (count * bits * lanes + 7) // 8
        memory = self._library.plain_alloc(size) if size < _MOST_BYTES else None
        if not memory:
            raise CandidateFailed(
                measurement_pb2.ERROR_KIND_OUT_OF_MEMORY, f"out of memory for argument {index}, {size} bytes"
            )
        shape = (ctypes.c_int64 * max(1, len(spec.shape)))(*spec.shape)
        tensor = _DlTensor(memory, _CPU, 0, len(spec.shape), _CODES[found[1]], bits, lanes, shape, None, 0)
        self._tensors[index] = (tensor, size, spec)
        return tensor, size

    def _fill(self, index: int, tensor: _DlTensor, size: int, spec: tensor_pb2.TensorSpec) -> None:
        content = random_content(spec.dtype, size, index)
        if content is not None:
            ctypes.memmove(tensor.data, content, size)
            return
        tile = make_tile(spec.dtype.partition("x")[0])
        if not tile:
            raise _bad(index, f": no random numbers of the type {spec.dtype} are known here; send real ones")
        for start in range(0, size, len(tile)):
            ctypes.memmove(tensor.data + start, tile, min(len(tile), size - start))


def _bad(index: int, problem: str) -> CandidateFailed:
    return CandidateFailed(measurement_pb2.ERROR_KIND_BAD_ARGUMENTS, f"argument {index} {problem}")


def _checked(evaluator: measurement_pb2.Evaluator) -> measurement_pb2.Evaluator:
    """Return the knobs as they are turned here."""
    if evaluator.f_preproc:
        raise CandidateFailed(
            measurement_pb2.ERROR_KIND_BAD_ARGUMENTS,
            f"the plain runtime has no global function {evaluator.f_preproc!r} for f_preproc",
        )
    if evaluator.cache_flush_bytes >= _MOST_BYTES:
        raise CandidateFailed(
            measurement_pb2.ERROR_KIND_BAD_ARGUMENTS, f"cache_flush_bytes: at most {_MOST_BYTES - 1} here"
        )
    if not evaluator.flush_cpu_cache:
        return evaluator
    pushed = measurement_pb2.Evaluator()
    pushed.CopyFrom(evaluator)
    pushed.flush_cpu_cache = False
    pushed.cache_flush_bytes = max(evaluator.cache_flush_bytes, _PUSHED_OUT_BYTES)
    return pushed


def _python_value(value: _Any) -> int | float | None:
    if value.type_index == _FLOAT:
        return float(value.value.as_float)
    if value.type_index == _TENSOR:
        tensor = ctypes.cast(value.value.as_pointer, ctypes.POINTER(_DlTensor)).contents
        return int(tensor.data or 0) + int(tensor.byte_offset)
    if value.type_index == _POINTER:
        return int(value.value.as_pointer or 0)
    if value.type_index in (_INT, _BOOL):
        return int(value.value.as_int)
    return None


def _threads() -> int:
    given = os.environ.get("TVM_NUM_THREADS", "")
    return int(given) if given.isdigit() else len(os.sched_getaffinity(0))


@functools.cache
def _library() -> ctypes.CDLL:
    # Global: artifacts look for the one symbol that they miss in it.
    library = ctypes.CDLL(str(_library_path()), ctypes.RTLD_GLOBAL)
    pointer, text, number = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int32
    for name, result, arguments in (
        ("plain_error", text, []),
        ("plain_set_error", None, [text]),
        ("plain_alloc", pointer, [ctypes.c_uint32]),
        ("plain_free", None, [pointer]),
        ("plain_register", ctypes.c_int, [text, _CALLBACK, number]),
        ("plain_set_threads", None, [ctypes.c_int]),
        ("plain_load", pointer, [text]),
        ("plain_find", pointer, [pointer, text]),
        ("plain_close", None, [pointer]),
        ("plain_call", ctypes.c_int, [pointer, pointer, number]),
        ("plain_time", ctypes.c_int, [pointer, pointer, number, pointer, pointer]),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    # Artifacts do not say what they need: mathematical functions, and division on 32-bit ARM.
    for name in ("libm.so.6", "libgcc_s.so.1"):
        with contextlib.suppress(OSError):
            ctypes.CDLL(name, ctypes.RTLD_GLOBAL)
    return library


def _library_path() -> Path:
    if _BUNDLED.exists():
        return _BUNDLED
    try:
        from cross.plain_runtime import cached_plain_runtime
    except ImportError as error:
        raise RuntimeError(f"{_BUNDLED} is missing; make a new bundle with: fleet agent bundle") from error
    return cached_plain_runtime()
