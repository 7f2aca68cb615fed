"""Real TVM modules on a real cpu device: numbers against numpy, times, and every way to get the arguments wrong."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

from fleet.errors import ArtifactRefused
from fleet.v1 import measurement_pb2, session_service_pb2, tensor_pb2
from tests.needs import is_absent
from tests.service.agent_bench import Bench, Holder, kind_of, request_for, serve_bench
from tests.service.tensors import array_of, spec, tensor

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the modules are built for x86_64"),
]
DEVICE = "devices/here"
_MIB = 1024 * 1024


@pytest.fixture
def models(agent_models: Path) -> Path:
    return agent_models


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    config = {"devices": [{"driver": "cpu", "name": "here"}], "memory_limit_bytes": 512 * _MIB}
    async with serve_bench(tmp_path, config) as served:
        yield served


@pytest.fixture
def holder(bench: Bench) -> Holder:
    return bench.holding(epoch=1, device=DEVICE)


MATMUL_ARGS = [spec("fill", 16, 16), spec("fill", 16, 16), spec("output", 16, 16)]


async def test_a_function_is_timed(holder: Holder, models: Path) -> None:
    """All repeats come back, and the clocks cover them."""
    evaluator = measurement_pb2.Evaluator(number=3, repeat=5, min_repeat_ms=2)

    result = await holder.run((models / "matmul.so").read_bytes(), args=MATMUL_ARGS, evaluator=evaluator)

    assert kind_of(result) == "UNSPECIFIED", result.error_message
    assert len(result.run_secs) == 5
    assert all(1e-8 < sec < 1e-2 for sec in result.run_secs)
    assert result.clocks.run.ToTimedelta().total_seconds() > 0.01


async def test_a_call_computes_the_same_as_numpy(holder: Holder, models: Path) -> None:
    """Numbers in, numbers out; without marked outputs all tensors come back."""
    digest = await holder.put((models / "matmul.so").read_bytes())
    left, right = (np.random.default_rng(seed).random((16, 16), "float32") for seed in range(2))

    marked = await holder.call(
        session_service_pb2.CallRequest(
            artifact_digest=digest, args=[tensor(left), tensor(right), spec("output", 16, 16)]
        )
    )
    unmarked = await holder.call(
        session_service_pb2.CallRequest(
            artifact_digest=digest, args=[tensor(left), tensor(right), tensor(np.zeros_like(left))]
        )
    )

    np.testing.assert_allclose(left @ right, array_of(marked.outputs[0]), rtol=1e-5)
    assert len(marked.outputs) == 1
    np.testing.assert_array_equal(left, array_of(unmarked.outputs[0]))
    np.testing.assert_allclose(left @ right, array_of(unmarked.outputs[2]), rtol=1e-5)


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8", "float16", "float64", "bool"])
async def test_every_usual_dtype_can_be_filled_and_sent(holder: Holder, models: Path, dtype: str) -> None:
    """Filling works on the device, and sent numbers come back as they were."""
    digest = await holder.put((models / f"{dtype}.so").read_bytes())
    values = np.array([0, 1, 1, 0, 1, 0, 0, 1]).astype(dtype)

    filled = await holder.measure(
        [request_for(digest, args=[spec("fill", 8, dtype=dtype), spec("output", 8, dtype=dtype)])]
    )
    called = await holder.call(
        session_service_pb2.CallRequest(artifact_digest=digest, args=[tensor(values), spec("output", 8, dtype=dtype)])
    )

    assert kind_of(filled[0]) == "UNSPECIFIED", filled[0].error_message
    assert called.error == 0, called.error_message
    np.testing.assert_array_equal(values, array_of(called.outputs[0]))


async def test_a_relax_executable_runs_and_is_timed(holder: Holder, models: Path) -> None:
    """Inputs in, all returned tensors out, flattened."""
    digest = await holder.put((models / "vm.so").read_bytes())
    x, w = np.random.default_rng(1).standard_normal((4, 8)), np.random.default_rng(2).standard_normal((8, 8))
    x, w = x.astype("float32"), w.astype("float32")
    vm = measurement_pb2.MODULE_KIND_RELAX_VM

    called = await holder.call(
        session_service_pb2.CallRequest(artifact_digest=digest, args=[tensor(x), tensor(w)], module_kind=vm)
    )
    timed = await holder.measure(
        [request_for(digest, args=[spec("fill", 4, 8), spec("fill", 8, 8)], module_kind=vm)] * 2
    )
    wrong = await holder.measure([request_for(digest, args=[spec("fill", 4, 8)], module_kind=vm)])

    np.testing.assert_allclose(np.maximum(x @ w, 0), array_of(called.outputs[0]), rtol=1e-4)
    np.testing.assert_allclose(x @ w, array_of(called.outputs[1]), rtol=1e-4)
    assert [kind_of(result) for result in timed] == ["UNSPECIFIED"] * 2, timed
    assert kind_of(wrong[0]) == "BAD_ARGUMENTS", wrong


async def test_the_operators_of_a_relax_executable_are_timed_in_their_place(holder: Holder, models: Path) -> None:
    """Every call is reported in order, together with the whole; later measurements run without the instrument."""
    digest = await holder.put((models / "vm.so").read_bytes())
    vm = measurement_pb2.MODULE_KIND_RELAX_VM
    args = [spec("fill", 4, 8), spec("fill", 8, 8)]

    profiled, timed = await holder.measure(
        [
            request_for(digest, args=args, module_kind=vm, operator_runs=5),
            request_for(digest, args=args, module_kind=vm),
        ]
    )

    assert kind_of(profiled) == "UNSPECIFIED", profiled.error_message
    calls = profiled.operators.calls
    kernels = [call for call in calls if not call.function.startswith("vm.builtin.")]
    assert [call.function for call in kernels] == ["matmul", "relu"]
    assert all(0 < call.min_sec <= call.median_sec for call in kernels)
    assert len(profiled.operators.run_secs) == 5
    assert sum(call.min_sec for call in calls) < max(profiled.operators.run_secs)
    assert profiled.run_secs
    assert kind_of(timed) == "UNSPECIFIED", timed.error_message
    assert not timed.HasField("operators")


async def test_only_a_relax_executable_has_operators_to_time(holder: Holder, models: Path) -> None:
    """Another artifact fails with the reason instead of returning plain times."""
    digest = await holder.put((models / "matmul.so").read_bytes())

    (result,) = await holder.measure([request_for(digest, args=MATMUL_ARGS, operator_runs=5)])

    assert kind_of(result) == "BAD_ARGUMENTS"
    assert "Relax VM" in result.error_message


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (MATMUL_ARGS[:2], "Expected 3 arguments"),
        ([*MATMUL_ARGS, spec("fill", 1)], "Expected 3 arguments"),
        ([*MATMUL_ARGS[:2], spec("output", 16, 8)], "Mismatched"),
        ([*MATMUL_ARGS[:2], spec("output", 16, 16, dtype="float64")], "Mismatched"),
        ([*MATMUL_ARGS[:2], tensor_pb2.Argument(int_value=3)], "Mismatched"),
        ([*MATMUL_ARGS[:2], spec("fill", 16, 16, dtype="float33x")], "not a tensor type"),
        ([*MATMUL_ARGS[:2], spec("fill", -1)], "not a tensor type"),
        ([*MATMUL_ARGS[:2], tensor_pb2.Argument()], "argument 2 is empty"),
        (
            [*MATMUL_ARGS[:2], tensor_pb2.Argument(tensor=tensor_pb2.Tensor(spec=MATMUL_ARGS[2].output, content=b"x"))],
            "takes 1024 bytes, not 1",
        ),
    ],
)
async def test_arguments_that_do_not_fit_are_named(
    holder: Holder, models: Path, args: list[tensor_pb2.Argument], text: str
) -> None:
    """BAD_ARGUMENTS with the runtime's own words, and the worker lives."""
    digest = await holder.put((models / "matmul.so").read_bytes())

    bad, good = await holder.measure([request_for(digest, args=args), request_for(digest, args=MATMUL_ARGS)])

    assert (kind_of(bad), kind_of(good)) == ("BAD_ARGUMENTS", "UNSPECIFIED"), bad
    assert text in bad.error_message
    assert bad.provenance.worker_pid == good.provenance.worker_pid


async def test_loading_and_lookup_errors_are_reported(holder: Holder, models: Path) -> None:
    """A library with missing symbols, and a call of a missing function."""
    content = (models / "matmul.so").read_bytes()

    torn = await holder.run(content[:64] + bytes(len(content) - 64), args=MATMUL_ARGS)
    nameless = await holder.run(content, function="nope", args=MATMUL_ARGS)

    assert kind_of(torn) in ("LOAD_FAILED", "CRASHED")
    assert kind_of(nameless) == "LOAD_FAILED"
    assert "no function 'nope'" in nameless.error_message


async def test_more_memory_than_there_may_be_is_out_of_memory(holder: Holder, models: Path) -> None:
    """Arguments too large to allocate, and arguments too large to fill."""
    digest = await holder.put((models / "matmul.so").read_bytes())
    huge, large = [spec("fill", 1 << 42)], [spec("fill", 400 * _MIB)]

    results = await holder.measure([request_for(digest, args=args, timeout_sec=30.0) for args in (huge, large)])

    assert [kind_of(result) for result in results] == ["OUT_OF_MEMORY"] * 2, results


async def test_a_clearly_slower_candidate_is_given_up_after_one_repeat(holder: Holder, models: Path) -> None:
    """The adaptive knobs reach the worker."""
    content = (models / "matmul.so").read_bytes()
    lost = measurement_pb2.Evaluator(repeat=5, max_repeat=9, give_up_above_sec=1e-12)
    close = measurement_pb2.Evaluator(repeat=2, max_repeat=4, spread_target=1e-12)

    assert len((await holder.run(content, args=MATMUL_ARGS, evaluator=lost)).run_secs) == 1
    assert len((await holder.run(content, args=MATMUL_ARGS, evaluator=close)).run_secs) == 4


@pytest.mark.parametrize(
    ("bounds", "stop", "most_runs"),
    [
        ({"hopeless_above_sec": 1e-12}, measurement_pb2.STOP_HOPELESS, 2),
        ({"behind_above_sec": 1e-12}, measurement_pb2.STOP_BEHIND, 4),
        ({"hopeless_above_sec": 99.0, "behind_above_sec": 99.0}, measurement_pb2.STOP_UNSPECIFIED, 5),
    ],
)
async def test_a_slow_candidate_is_stopped_after_the_first_runs(
    bounds: dict[str, float], stop: measurement_pb2.Stop, most_runs: int, holder: Holder, models: Path
) -> None:
    """A few runs in the worker decide; a candidate near the best gets all its repeats."""
    evaluator = measurement_pb2.Evaluator(number=9, repeat=5, look_runs=3, min_repeat_ms=1, **bounds)

    result = await holder.run((models / "matmul.so").read_bytes(), args=MATMUL_ARGS, evaluator=evaluator)

    assert stop == result.stopped
    assert 1 <= len(result.run_secs) <= most_runs


async def test_the_cpu_cache_can_be_flushed(holder: Holder, models: Path) -> None:
    """Both ways to time cold run to their end."""
    content = (models / "matmul.so").read_bytes()
    for knobs in ({"flush_cpu_cache": True}, {"cache_flush_bytes": _MIB}):
        result = await holder.run(content, args=MATMUL_ARGS, evaluator=measurement_pb2.Evaluator(repeat=2, **knobs))
        assert len(result.run_secs) == 2, result.error_message


_HARM = {
    "segfault": ("*(volatile int*)0 = 1;", "CRASHED"),
    "hang": ("for (;;) ;", "TIMEOUT"),
    "exit": ("exit(0);", "CRASHED"),
    "abort": ("abort();", "CRASHED"),
    "close": ("for (int fd = 0; fd < 256; ++fd) close(fd);", "CRASHED"),
    "memory": (
        "for (;;) { char* p = malloc(1 << 20); if (p) memset(p, 1, 1 << 20); else usleep(1000); }",
        "OUT_OF_MEMORY",
    ),
    "exception": (  # as in TVM's thread pool, where nothing catches it
        "pthread_t t; pthread_create(&t, 0, (void*(*)(void*))_ZSt17__throw_bad_allocv, 0); for (;;) pause();",
        "OUT_OF_MEMORY",
    ),
    "children": ("for (int i = 0; i < 8; ++i) if (fork() == 0) { setsid(); for (;;) pause(); } abort();", "CRASHED"),
    "file": ('FILE* f = fopen("big", "w"); for (;;) fputs("0123456789abcdef", f);', "OUT_OF_DISK"),
    "output": ('for (;;) puts("noise noise noise");', "TIMEOUT"),
}


def compile_harm(body: str, folder: Path) -> Path:
    source, library = folder / "harm.c", folder / "harm.so"
    source.write_text(
        "#include <pthread.h>\n#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n#include <unistd.h>\n"
        "void _ZSt17__throw_bad_allocv(void);\n"
        f"int __tvm_ffi_main(void* self, const void* args, int count, void* result) {{ {body} return 0; }}\n"
    )
    subprocess.run(["gcc", "-O0", "-w", "-shared", "-fPIC", "-o", library, source, "-lstdc++"], check=True, timeout=60)
    return library


@pytest.mark.skipif(is_absent("gcc"), reason="harmful kernels are compiled with gcc")
@pytest.mark.parametrize("name", _HARM)
async def test_harmful_native_code_ends_only_its_worker(tmp_path: Path, models: Path, name: str) -> None:
    """Compiled kernels that do harm get their kind of error; the next candidate runs, and no process is left."""
    kind = _HARM[name][1]
    library = compile_harm(_HARM[name][0], tmp_path)
    config = {
        "devices": [{"driver": "cpu", "name": "here"}],
        "memory_limit_bytes": 200 * _MIB,
        "disk_limit_bytes": 16 * _MIB,
    }
    async with serve_bench(tmp_path / "state", config) as bench:
        holder = bench.holding(epoch=1, device=DEVICE)
        good = await holder.put((models / "matmul.so").read_bytes())
        harm = await holder.put(library.read_bytes())
        timeout_sec = 1.0 if kind == "TIMEOUT" else 60.0

        results = await holder.measure(
            [request_for(harm, timeout_sec=timeout_sec), request_for(good, args=MATMUL_ARGS)]
        )

        assert [kind_of(result) for result in results] == [kind, "UNSPECIFIED"], results


async def test_a_library_that_was_cut_short_is_refused(holder: Holder, models: Path) -> None:
    """A truncated library is refused before the upload ends; loading it crashed its worker by SIGBUS."""
    content = (models / "matmul.so").read_bytes()

    with pytest.raises(ArtifactRefused, match=rf"truncated: {len(content) // 2} of {len(content)} bytes"):
        await holder.put(content[: len(content) // 2])


@pytest.mark.parametrize("knob", ["repeat", "max_repeat", "look_runs"])
async def test_more_runs_than_an_answer_holds_are_refused(holder: Holder, models: Path, knob: str) -> None:
    """The next candidate is served. Before, TVM's error was "unpack requires a buffer of 17179869184 bytes"."""
    digest = await holder.put((models / "matmul.so").read_bytes())
    endless = measurement_pb2.Evaluator(**{knob: 2**31})

    refused, fine = await holder.measure(
        [request_for(digest, args=MATMUL_ARGS, evaluator=endless), request_for(digest, args=MATMUL_ARGS)]
    )

    assert kind_of(refused) == "BAD_ARGUMENTS"
    assert refused.error_message == f"{knob}=2147483648: one measurement has at most 100000 timed runs; ask for fewer"
    assert kind_of(fine) == "UNSPECIFIED", fine.error_message
