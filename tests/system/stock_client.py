"""A stock TVM client: `stock_client.py PORT KEY DEED [...]` prints one line for each deed."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import tvm
from tvm import rpc, te
from tvm.s_tir import meta_schedule as ms

PORT, KEY = int(sys.argv[1]), sys.argv[2]
FOLDER = Path(tempfile.mkdtemp())
NOISE = """
#include <stdio.h>
__attribute__((constructor)) static void shout(void) { for (int i = 0; i < 1 << 20; ++i) fputs("output.\\n", stderr); }
"""
CRASH = "__attribute__((constructor)) static void crash(void) { *(volatile int *)0 = 1; }"


def library() -> Path:
    """Build y = x + 1 of 64 numbers."""
    x = te.placeholder((64,), name="x")
    y = te.compute((64,), lambda i: x[i] + 1.0, name="y")
    built = tvm.compile(te.create_prim_func([x, y]).with_attr("global_symbol", "main"), target="llvm")
    path = FOLDER / "plus.so"
    built.export_library(str(path))
    return path


def session(timeout_sec: int = 30) -> rpc.RPCSession:
    return rpc.connect_tracker("127.0.0.1", PORT).request(KEY, session_timeout=timeout_sec)


def sessions() -> str:
    """Ten sessions in a row, each with its own upload, run and timing."""
    path = library()
    for _ in range(10):
        remote = session()
        remote.upload(str(path))
        module, device = remote.load_module(path.name), remote.cpu(0)
        x = tvm.runtime.tensor(np.arange(64, dtype="float32"), device)
        y = tvm.runtime.tensor(np.zeros(64, "float32"), device)
        assert module.time_evaluator("main", device, number=3)(x, y).mean > 0
        np.testing.assert_array_equal(y.numpy(), np.arange(64, dtype="float32") + 1)
        del x, y, module, device, remote
    return "10"


def brief(_: int) -> None:
    """Open a session, and have the device answer."""
    remote = session()
    assert remote.get_function("runtime.GetDeviceAttr") is not None
    del remote


def row() -> str:
    """200 sessions in a row."""
    for number in range(200):
        brief(number)
    return "200"


def crowd() -> str:
    """24 sessions, eight at once."""
    with ThreadPoolExecutor(8) as pool:
        return str(len(list(pool.map(brief, range(24)))))


def timeout() -> str:
    """A run that lasts longer than the session may."""
    path = library()
    remote = session(timeout_sec=8)
    remote.upload(str(path))
    module, device = remote.load_module(path.name), remote.cpu(0)
    x, y = (tvm.runtime.tensor(np.zeros(64, "float32"), device) for _ in range(2))
    return failure(lambda: module.time_evaluator("main", device, number=2**30)(x, y))


def endless() -> str:
    """A run without an end, in a session without a time limit."""
    path = library()
    remote = session(timeout_sec=0)
    remote.upload(str(path))
    module, device = remote.load_module(path.name), remote.cpu(0)
    x, y = (tvm.runtime.tensor(np.zeros(64, "float32"), device) for _ in range(2))
    print("running", flush=True)
    return failure(lambda: module.time_evaluator("main", device, number=2**30, repeat=2**10)(x, y))


def crash() -> str:
    """A library that ends its process when it is loaded."""
    path = compiled("crash", CRASH)
    remote = session()
    remote.upload(str(path))
    return failure(lambda: remote.load_module(path.name))


def noise() -> str:
    """A library that writes 8 MiB when it is loaded."""
    path = compiled("noise", NOISE)
    remote = session()
    remote.upload(str(path))
    return failure(lambda: remote.load_module(path.name))


def compiled(name: str, source: str) -> Path:
    """Return a library made from C."""
    path = FOLDER / f"{name}.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(path), "-xc", "-"], input=source, text=True, check=True)
    return path


def absent() -> str:
    """A key that no device has."""
    return failure(lambda: rpc.connect_tracker("127.0.0.1", PORT).request("no-such-board", max_retry=1))


def runner() -> str:
    """MetaSchedule's builder and runner, with objects that are linked on the device."""
    x = te.placeholder((64,), name="x")
    y = te.compute((64,), lambda i: x[i] * 2.0, name="y")
    module = tvm.IRModule({"main": te.create_prim_func([x, y])})
    (built,) = ms.builder.LocalBuilder(timeout_sec=120).build(
        [ms.builder.BuilderInput(module, tvm.target.Target("llvm"))]
    )
    config = ms.runner.RPCConfig(tracker_host="127.0.0.1", tracker_port=PORT, tracker_key=KEY, session_timeout_sec=120)
    spec = ms.arg_info.TensorInfo("float32", (64,))
    wanted = ms.runner.RunnerInput(built.artifact_path, "cpu", [spec, spec])
    results = [future.result() for future in ms.runner.RPCRunner(config).run([wanted] * 3)]
    assert not any(one.error_msg for one in results), results[0].error_msg
    return str(sum(all(float(sec) > 0 for sec in one.run_secs) for one in results))


def failure(run: Callable[[], object]) -> str:
    """Run something that fails, and return its error in one line."""
    try:
        run()
    except Exception as error:  # noqa: BLE001 - the error is the result
        return f"{type(error).__name__}: {error}".replace("\n", " ")
    return "no error"


if __name__ == "__main__":
    for name in sys.argv[3:]:
        print(name, globals()[name](), flush=True)
