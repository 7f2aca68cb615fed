"""Tasks of a build pool that run untrusted code: their worker stays confined, and its answer is not trusted.

Such a worker serves one task and ends. Its answer is unpickled with an allowlist of classes: plain values, arrays,
values and errors of this project. Any other pickle could run code in the process that reads it.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import io
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, ParamSpec, TypeVar

from fleet.confinement.process import AllowedFiles
from fleet.errors import BuildError, FleetError

P = ParamSpec("P")
T = TypeVar("T")

_OURS = ("fleet.", "cross.")
_PLAIN = frozenset(
    {("builtins", name) for name in ("bool", "bytearray", "bytes", "complex", "dict", "float")}
    | {("builtins", name) for name in ("frozenset", "int", "list", "range", "set", "slice", "str", "tuple")}
    | {("collections", name) for name in ("Counter", "OrderedDict", "deque")}
    | {("pathlib", name) for name in ("PosixPath", "PurePosixPath")}
    | {("numpy", "dtype"), ("numpy", "ndarray")}
    | {(f"{core}.multiarray", name) for core in ("numpy._core", "numpy.core") for name in ("_reconstruct", "scalar")}
    | {(f"{core}.numeric", "_frombuffer") for core in ("numpy._core", "numpy.core")}
)


@dataclass(frozen=True)
class Confined(Generic[P, T]):
    """Function that a build pool runs in a confined worker."""

    fn: Callable[P, T]
    files: AllowedFiles

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the function. The worker must have confined itself first."""
        return self.fn(*args, **kwargs)


def read_answer(content: bytes) -> Any:
    """Return the value of a pickle from a confined worker.

    Raises:
        BuildError: the content is not a valid pickle, or contains a class that is not on the allowlist.
    """
    try:
        return _Reader(io.BytesIO(content)).load()
    except BuildError:
        raise
    except Exception as error:  # pickle follows damaged content anywhere
        raise BuildError(f"the answer of a confined worker cannot be read: {type(error).__name__}: {error}") from error


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _PLAIN:
            return super().find_class(module, name)
        if (module, name) == ("builtins", "getattr"):
            return _member
        found = None
        if module.startswith(_OURS) and "." not in name:
            found = getattr(importlib.import_module(module), name, None)
        if not _is_value(found):
            raise BuildError(f"the answer of a confined worker holds {module}.{name}, which is not allowed there")
        return found


def _member(owner: object, name: str) -> enum.Enum:
    """Return an enumeration member. Python 3.11.0 to 3.11.3 pickle a member as a call of getattr."""
    if not (isinstance(owner, type) and issubclass(owner, enum.Enum) and _is_value(owner)):
        raise BuildError(f"the answer of a confined worker reads an attribute of {owner!r}, which is not allowed there")
    return owner[name]


def _is_value(found: object) -> bool:
    """Return True for a value class of this project, which is constructed without side effects."""
    if not isinstance(found, type) or not found.__module__.startswith(_OURS):
        return False
    is_frozen = dataclasses.is_dataclass(found) and found.__dataclass_params__.frozen  # type: ignore[attr-defined]
    return is_frozen or issubclass(found, enum.Enum | FleetError)
