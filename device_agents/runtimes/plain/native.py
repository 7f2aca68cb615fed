"""ctypes interface to the plain runtime's C library: types, functions, and path."""

from __future__ import annotations

import contextlib
import ctypes
import functools
from pathlib import Path

BUNDLED = Path(__file__).with_name("libplain_runtime.so")
"""Path in a bundle."""

NONE, INT, BOOL, FLOAT, POINTER, TENSOR = 0, 1, 2, 3, 4, 7
"""Values of TVMFFITypeIndex."""


class Value(ctypes.Union):
    _fields_ = (("as_int", ctypes.c_int64), ("as_float", ctypes.c_double), ("as_pointer", ctypes.c_void_p))


class AnyValue(ctypes.Structure):
    _fields_ = (("type_index", ctypes.c_int32), ("padding", ctypes.c_uint32), ("value", Value))


class DlTensor(ctypes.Structure):
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


class Knobs(ctypes.Structure):
    _fields_ = (
        ("number", ctypes.c_int32),
        ("repeat", ctypes.c_int32),
        ("min_repeat_ms", ctypes.c_int32),
        ("limit_zero", ctypes.c_int32),
        ("cooldown_ms", ctypes.c_int32),
        ("repeats_to_cooldown", ctypes.c_int32),
        ("flush_bytes", ctypes.c_uint32),
    )


CALLBACK = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_int32, ctypes.POINTER(AnyValue), ctypes.c_int32, ctypes.POINTER(AnyValue)
)


def python_value(value: AnyValue) -> int | float | None:
    if value.type_index == FLOAT:
        return float(value.value.as_float)
    if value.type_index == TENSOR:
        tensor = ctypes.cast(value.value.as_pointer, ctypes.POINTER(DlTensor)).contents
        return int(tensor.data or 0) + int(tensor.byte_offset)
    if value.type_index == POINTER:
        return int(value.value.as_pointer or 0)
    if value.type_index in (INT, BOOL):
        return int(value.value.as_int)
    return None


@functools.cache
def load_library() -> ctypes.CDLL:
    # Loaded globally: artifacts resolve their one undefined symbol against it.
    library = ctypes.CDLL(str(_path()), ctypes.RTLD_GLOBAL)
    pointer, text, number = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int32
    for name, result, arguments in (
        ("plain_error", text, []),
        ("plain_set_error", None, [text]),
        ("plain_alloc", pointer, [ctypes.c_uint32]),
        ("plain_free", None, [pointer]),
        ("plain_register", ctypes.c_int, [text, CALLBACK, number]),
        ("plain_set_threads", None, [ctypes.c_int]),
        ("plain_load", pointer, [text]),
        ("plain_find", pointer, [pointer, text]),
        ("plain_close", None, [pointer]),
        ("plain_call", ctypes.c_int, [pointer, pointer, number]),
        ("plain_time", ctypes.c_int, [pointer, pointer, number, pointer, pointer]),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    # Artifacts do not list their dependencies: the mathematical functions, and on 32-bit ARM the division.
    for name in ("libm.so.6", "libgcc_s.so.1"):
        with contextlib.suppress(OSError):
            ctypes.CDLL(name, ctypes.RTLD_GLOBAL)
    return library


def _path() -> Path:
    if BUNDLED.exists():
        return BUNDLED
    try:
        from cross.compile.plain_runtime import cached_plain_runtime
    except ImportError as error:
        raise RuntimeError(f"{BUNDLED} is missing; make a new bundle with: fleet agent bundle") from error
    return cached_plain_runtime()
