"""Compares functions implemented as arithmetic with float64 references, over all float32 numbers or a part of them.

    python -m tests.function_errors                       all numbers: minutes for each function
    python -m tests.function_errors exp tanh --every 997
    python -m tests.function_errors --mcpu x86-64-v3
    python -m tests.function_errors --neon --every 9973   under qemu

The table shows the largest error in units in the last place, and the number with that error. Results and references
below the smallest normal number count as zero.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cross.compile.lowering import tir_pipeline
from cross.compile.tools import run_tool, zig
from cross.targets.boards import find_board
from cross.targets.target import Target, host_target, make_target, parse_target
from fleet.spaces.space import finished, static_schedule

if TYPE_CHECKING:
    from tvm.ir import IRModule

Floats = NDArray[np.float32]

MOST_ULP = 4.0
CHUNK = 1 << 16
QEMU = "qemu-aarch64-static"
_DRIVER = Path(__file__).parent / "emulated" / "apply_function.c"
_WITHOUT_LIBC = ("-target", "aarch64-linux-none", "-ffreestanding", "-nostdlib", "-static")
"""Options of zig's compiler for a program without a C library, which zig would build first."""
_TIMEOUT_SEC = 180.0
_ALL = 1 << 32
_SMALLEST_NORMAL, _OVERFLOW = 2.0**-126, 2.0**128
_DIGITS = 24
"""Significand bits of float32."""


_Reference = Callable[[NDArray[np.float64]], NDArray[np.float64]]
_REFERENCES: dict[str, _Reference] = {
    "acos": np.arccos,
    "acosh": np.arccosh,
    "asin": np.arcsin,
    "asinh": np.arcsinh,
    "atan": np.arctan,
    "atanh": np.arctanh,
    "cos": np.cos,
    "cosh": np.cosh,
    "exp": np.exp,
    "exp10": lambda x: np.power(10.0, x),
    "exp2": np.exp2,
    "log": np.log,
    "log10": np.log10,
    "log1p": np.log1p,
    "log2": np.log2,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "sin": np.sin,
    "sinh": np.sinh,
    "tan": np.tan,
    "tanh": np.tanh,
}
_ERF = "erf"
"""Name of erf, which numpy lacks: the C library's is called through TVM."""

EXPONENTS = (*range(-4, 7), 20.0, 64.0, 65.0, -0.5, 0.5, 1 / 3, 0.75, 2.2, -1.7)
_POWERS = {f"x^{exponent:.4g}": float(np.float32(exponent)) for exponent in EXPONENTS}
NAMES = (*sorted([*_REFERENCES, _ERF]), *_POWERS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Worst:
    """The largest error of a function, and its argument."""

    ulp: float
    at: float
    compared: int


def target_of(mcpu: str | None) -> Target:
    """Return the target of this machine, or of another processor model."""
    return parse_target(json.dumps({"kind": "llvm", "mcpu": mcpu, "num-cores": 2})) if mcpu else host_target()


def function_of(name: str) -> Callable[[Any], Any]:
    """Return the function of an expression."""
    from tvm import tirx

    if name in _POWERS:
        return lambda x: tirx.power(x, tirx.const(_POWERS[name], str(x.dtype)))
    return getattr(tirx, name)  # type: ignore[no-any-return]


def reference_of(name: str, target: Target) -> _Reference:
    """Return the reference function on arrays of float64."""
    if name == _ERF:
        return compiled(program(function_of(name), dtype="float64"), target)
    if name in _POWERS:
        return lambda x: np.power(x, np.full_like(x, _POWERS[name]))  # numpy has special code for a single exponent
    return _REFERENCES[name]


def program(function: Callable[..., Any], *, size: int = CHUNK, arguments: int = 1, dtype: str = "float32") -> IRModule:
    """Return a program that applies a function to tensors elementwise."""
    import tvm
    from tvm import te

    data = [te.placeholder((size,), dtype, name=f"data{index}") for index in range(arguments)]
    result = te.compute((size,), lambda i: function(*(each[i] for each in data)), name="result")
    return tvm.IRModule({"main": te.create_prim_func([*data, result])})


def compiled(mod: IRModule, target: Target) -> Callable[..., NDArray[Any]]:
    """Return a program as a function on arrays, compiled with its static schedule as in models."""
    import tvm

    schedule = static_schedule(mod, target)
    assert schedule is not None
    main = tvm.compile(finished(schedule.mod, target), target=tvm.target.Target(dict(target.options)))["main"]
    buffer = mod["main"].params[-1]
    shape, dtype = tuple(map(int, buffer.shape)), str(buffer.dtype)

    def call(*arrays: NDArray[Any]) -> NDArray[Any]:
        result = tvm.runtime.tensor(np.empty(shape, dtype))
        main(*map(tvm.runtime.tensor, arrays), result)
        return np.asarray(result.numpy())

    return call


def emulated(mod: IRModule, folder: Path) -> Callable[[Floats], Floats]:
    """Return a program of one argument, compiled for 64-bit ARM, as a function on arrays that runs in qemu.

    Raises:
        BuildError: it does not compile.
    """
    import tvm

    target = parse_target(find_board("rpi4-64").target_json)
    schedule = static_schedule(mod, target)
    assert schedule is not None
    built = tvm.compile(
        finished(schedule.mod, target),
        target=make_target(target),
        tir_pipeline=tir_pipeline(target),
    )
    built.mod.write_to_file(str(folder / "function.o"))
    command = zig("cc", *_WITHOUT_LIBC, "-O2", f"-DCOUNT={CHUNK}") or ()
    run_tool([*command, str(_DRIVER), str(folder / "function.o"), "-o", str(folder / "function")], _TIMEOUT_SEC)

    def call(x: Floats) -> Floats:
        given = x.tobytes()
        done = subprocess.run([QEMU, folder / "function"], input=given, capture_output=True, check=True)
        return np.frombuffer(done.stdout, np.float32)

    return call


def chunks(every: int) -> Iterator[Floats]:
    """Yield every n-th float32, in the order of its bits."""
    for start in range(0, _ALL, CHUNK * every):
        bits = np.arange(start, start + CHUNK * every, every, dtype=np.uint64)
        yield np.minimum(bits, _ALL - 1).astype(np.uint32).view(np.float32)


def edges() -> Floats:
    """Return special numbers and their neighbours: powers of two and ten, halves, range bounds, infinities and NaN."""
    powers = [np.exp2(np.arange(-149.0, 128)), 10.0 ** np.arange(-38, 39), np.arange(0, 2048) / 16]
    borders = np.pi / 4 * np.arange(0, 2048), np.linspace(80, 110, 512), [np.finfo(np.float32).max, np.inf, np.nan]
    with np.errstate(over="ignore"):
        values = np.concatenate([*powers, *borders]).astype(np.float32)
        near = [values, np.nextafter(values, np.float32(np.inf)), np.nextafter(values, np.float32(-np.inf))]
    both = np.concatenate([*near, *(-one for one in near)])
    return np.resize(both, -(-both.size // CHUNK) * CHUNK)


def errors(made: NDArray[Any], right: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return errors in units in the last place of float32; infinite if only one of two values is NaN.

    Infinity counts as the number after the largest: a result may overflow within the allowed error.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        single = right.astype(np.float32)
        bounded, exact = (np.clip(each, -_OVERFLOW, _OVERFLOW) for each in (made.astype(np.float64), right))
        _, exponent = np.frexp(np.maximum(np.abs(exact), _SMALLEST_NORMAL))
        found: NDArray[np.float64] = np.abs(bounded - exact) * np.ldexp(1.0, _DIGITS - exponent)
    same = (made == single) | (np.isnan(made) & np.isnan(single))
    tiny = (np.abs(made) < _SMALLEST_NORMAL) & (np.abs(single) <= _SMALLEST_NORMAL)
    found[(same & ~np.isfinite(single)) | tiny] = 0.0
    found[np.isnan(found)] = np.inf
    return found


def worst(name: str, target: Target, *, every: int) -> Worst:
    """Compare a function, for a target that runs on this machine."""
    return _worst(name, compiled(program(function_of(name)), target), chunks(every) if every else ())


def worst_on_neon(name: str, *, every: int) -> Worst:
    """Compare a function for 64-bit ARM, in qemu."""
    with tempfile.TemporaryDirectory() as folder:
        return _worst(name, emulated(program(function_of(name)), Path(folder)), chunks(every) if every else ())


def _worst(name: str, made: Callable[[Floats], Floats], parts: Iterable[Floats]) -> Worst:
    right = reference_of(name, host_target())
    found = Worst(ulp=0.0, at=0.0, compared=0)
    for part in itertools.chain(edges().reshape(-1, CHUNK), parts):
        ulp = errors(made(part), _quietly(right, part))
        at = int(ulp.argmax())
        largest = Worst(ulp=float(ulp[at]), at=float(part[at]), compared=0) if ulp[at] > found.ulp else found
        found = Worst(ulp=largest.ulp, at=largest.at, compared=found.compared + CHUNK)
    return found


def _quietly(function: _Reference, x: Floats) -> NDArray[np.float64]:
    with np.errstate(all="ignore"):
        return function(x.astype(np.float64))


def main() -> int:
    """Print a table of the functions' errors."""
    parser = argparse.ArgumentParser(prog="python -m tests.function_errors", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"default: all of {', '.join(NAMES)}")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only every Nth number, and the edges")
    parser.add_argument("--mcpu", metavar="CPU", help="compile for this processor; default: this one")
    parser.add_argument("--neon", action="store_true", help="compile for 64-bit ARM, and run it under qemu")
    options = parser.parse_args()
    target = target_of(options.mcpu)
    failed = 0
    for name in options.names or NAMES:
        every = options.every
        found = worst_on_neon(name, every=every) if options.neon else worst(name, target, every=every)
        failed += found.ulp > MOST_ULP
        sys.stdout.write(f"{name:10} {found.ulp:8.2f} ulp at {found.at:.9g}, of {found.compared:,}\n")
        sys.stdout.flush()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
