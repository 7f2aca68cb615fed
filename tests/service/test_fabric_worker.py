"""TVM modules that call the fabric, in a real worker of this machine; the fabric is the simulated core."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from cross.compile.library import build, build_relax
from cross.fabric.tiles import GEMM_I8_DMA, FabricTile, matmul_i8, schedule_matmul
from cross.targets.target import host_target
from device_agents.driver import WorkerSpec
from device_agents.fabric.description import Window
from device_agents.fabric.program import FabricDead
from device_agents.fabric.window import MappedPlaces, list_windows
from device_agents.workers.limits import WorkerLimits
from device_agents.workers.pool import WorkerPool
from fleet.artifacts.artifact import Artifact
from fleet.errors import BuildError
from fleet.testing import eventually
from fleet.v1 import measurement_pb2, session_service_pb2, tensor_pb2, worker_pb2
from tests.emulated.fabric import EmulatedFabric, emulated_fabric, registers_yaml
from tests.service.tensors import array_of, spec, tensor

if TYPE_CHECKING:
    from tvm.ir import IRModule

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
EXTENT = 64
TILES = (FabricTile(m=8, n=8, k=16), FabricTile(m=16, n=16, k=64), FabricTile(m=32, n=32, k=32))
LEFT = np.random.default_rng(1).integers(-128, 128, (EXTENT, EXTENT), dtype=np.int8)
RIGHT = np.random.default_rng(2).integers(-128, 128, (EXTENT, EXTENT), dtype=np.int8)
PRODUCT = LEFT.astype(np.int32) @ RIGHT.astype(np.int32)
_GIB = 1024**3
_NOBODY = 65534


ARGUMENTS = [
    tensor(LEFT),
    tensor(RIGHT),
    spec("output", EXTENT, EXTENT, dtype="int32"),
]


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> dict[FabricTile, Artifact]:
    folder = tmp_path_factory.mktemp("artifacts")
    tiles = (*TILES, FabricTile(m=8, n=8, k=4))
    mod = matmul_i8(EXTENT, EXTENT, EXTENT)
    return {tile: build(schedule_matmul(mod, tile), host_target(), folder) for tile in tiles}


@pytest.fixture
def fabric(tmp_path: Path) -> Iterator[EmulatedFabric]:
    with emulated_fabric(tmp_path / "root/dev/uio0", sysfs_root=tmp_path / "root") as emulated:
        emulated.load("gemm_i8")
        yield emulated


class Workers:
    """Makes workers as an agent does, and sends requests to the latest one."""

    def __init__(self, pool: WorkerPool, root: Path) -> None:
        self._pool = pool
        self._root = root
        self._worker: Any = None

    async def start(self, registers: str) -> None:
        settings = {"registers_yaml": registers, "root": str(self._root)}
        spec = WorkerSpec(runtime="device_agents.runtimes.fabric:FabricRuntime", settings=settings)
        await self.stop()
        self._worker = await self._pool.start_worker(spec, lambda _: None)

    async def stop(self) -> None:
        if self._worker is not None:
            await self._worker.kill()

    async def measure(
        self, artifact: Artifact, how: dict[str, Any] | None = None, **knobs: Any
    ) -> measurement_pb2.Measurement:
        fields = {"args": ARGUMENTS, "evaluator": measurement_pb2.Evaluator(**knobs), **(how or {})}
        request = measurement_pb2.MeasureRequest(artifact_digest=artifact.digest, **fields)
        order = worker_pb2.WorkerRequest(measure=request, artifact_path=str(artifact.path))
        return (await self.exchange(order)).measurement

    async def call(self, artifact: Artifact, **how: Any) -> session_service_pb2.CallResponse:
        request = session_service_pb2.CallRequest(artifact_digest=artifact.digest, **{"args": ARGUMENTS, **how})
        order = worker_pb2.WorkerRequest(call=request, artifact_path=str(artifact.path))
        return (await self.exchange(order)).call

    async def exchange(self, order: worker_pb2.WorkerRequest) -> worker_pb2.WorkerResponse:
        response: worker_pb2.WorkerResponse = await self._worker.exchange(order.SerializeToString(), 60.0)
        return response


@pytest.fixture
async def workers(tmp_path: Path) -> AsyncIterator[Workers]:
    limits = WorkerLimits(memory_bytes=_GIB, disk_bytes=_GIB)
    pool = WorkerPool(tmp_path / "workers", ["device_agents.runtimes.tvm"], limits)
    await pool.open()
    made = Workers(pool, tmp_path / "root")
    try:
        yield made
    finally:
        await made.stop()
        await pool.close()


def output(response: session_service_pb2.CallResponse) -> np.ndarray:
    assert response.error == 0, response.error_message
    return array_of(response.outputs[0])


def kind_of(response: measurement_pb2.Measurement | session_service_pb2.CallResponse) -> str:
    return measurement_pb2.ErrorKind.Name(response.error).removeprefix("ERROR_KIND_")


async def test_tilings_compute_the_same_in_different_repeatable_cycles(
    workers: Workers, fabric: EmulatedFabric, artifacts: dict[FabricTile, Artifact]
) -> None:
    """Results equal numpy's bit for bit; each tiling takes its own number of cycles, in this worker and the next."""
    cycles: dict[FabricTile, set[int]] = {tile: set() for tile in TILES}
    for _ in range(2):
        await workers.start(registers_yaml())
        for tile in TILES:
            measured = await workers.measure(artifacts[tile], number=2, repeat=2, min_repeat_ms=50)

            assert (kind_of(measured), measured.time_source) == ("UNSPECIFIED", "cycles"), measured.error_message
            assert [count / 1e8 for count in measured.run_cycles] == list(measured.run_secs)
            assert len(measured.run_secs) == 2
            cycles[tile].update(measured.run_cycles)
            np.testing.assert_array_equal(PRODUCT, output(await workers.call(artifacts[tile])))

    assert [len(found) for found in cycles.values()] == [1, 1, 1]
    assert len(set.union(*cycles.values())) == 3


async def test_operands_can_be_fetched_by_the_fabric(
    workers: Workers, fabric: EmulatedFabric, artifacts: dict[FabricTile, Artifact], tmp_path: Path
) -> None:
    """The same numbers through memory that both share; its cycles hold the bursts, too."""
    tile = replace(TILES[1], function=GEMM_I8_DMA)
    mod = schedule_matmul(matmul_i8(EXTENT, EXTENT, EXTENT), tile)
    fetching = build(mod, host_target(), tmp_path)
    await workers.start(registers_yaml())

    times = [await workers.measure(artifact) for artifact in (artifacts[TILES[1]], fetching, fetching)]

    np.testing.assert_array_equal(PRODUCT, output(await workers.call(fetching)))
    alone, first, second = (list(measured.run_cycles) for measured in times)
    assert first == second > alone


async def test_cycles_of_a_models_fabric_operators_are_counted(
    workers: Workers, fabric: EmulatedFabric, artifacts: dict[FabricTile, Artifact], tmp_path: Path
) -> None:
    """A Relax executable that multiplies twice takes the cycles of two products."""
    tile = TILES[2]
    model = build_relax(chain(tile), host_target(), tmp_path)
    await workers.start(registers_yaml())
    vm = {"args": ARGUMENTS[:2], "module_kind": measurement_pb2.MODULE_KIND_RELAX_VM}

    called = await workers.call(model, **vm)
    single = await workers.measure(artifacts[tile])
    chained = await workers.measure(model, vm, repeat=2)

    np.testing.assert_array_equal(PRODUCT, output(called))
    second = np.frombuffer(called.outputs[1].content, np.int32).reshape(EXTENT, EXTENT)
    np.testing.assert_array_equal(RIGHT.astype(np.int32) @ LEFT.astype(np.int32), second)
    assert (chained.time_source, kind_of(chained)) == ("cycles", "UNSPECIFIED"), chained.error_message
    assert list(chained.run_cycles) == [2 * single.run_cycles[0]] * 2


def chain(tile: FabricTile) -> IRModule:
    """Return a Relax module that computes A B and B A, each by the same tensorised function."""
    from tvm import relax

    builder = relax.BlockBuilder()
    product = schedule_matmul(matmul_i8(EXTENT, EXTENT, EXTENT), tile)["main"].with_attr("global_symbol", "product")
    function = builder.add_func(product, "product")
    left, right = (relax.Var(name, relax.TensorType((EXTENT, EXTENT), "int8")) for name in ("left", "right"))
    result = relax.TensorType((EXTENT, EXTENT), "int32")
    with builder.function("main", [left, right]):
        with builder.dataflow():
            both = [
                builder.emit(relax.call_tir(function, operands, result)) for operands in ([left, right], [right, left])
            ]
            returned = builder.emit_output(relax.Tuple(both))
        builder.emit_func_output(returned)
    return builder.get()


async def test_knobs_without_effect_on_cycles_cost_no_trials(
    workers: Workers, fabric: EmulatedFabric, artifacts: dict[FabricTile, Artifact]
) -> None:
    """Adaptive repeats see no spread; flushing caches and growing the number of runs are left out."""
    await workers.start(registers_yaml())
    tile = TILES[2]

    plain = await workers.measure(artifacts[tile])
    fancy = await workers.measure(
        artifacts[tile], repeat=2, max_repeat=9, min_repeat_ms=500, flush_cpu_cache=True, cooldown_interval_ms=50
    )

    assert kind_of(fancy) == "UNSPECIFIED", fancy.error_message
    assert [*plain.run_cycles] * 2 == [*fancy.run_cycles]
    assert fancy.clocks.run.ToTimedelta().total_seconds() < 10 * plain.clocks.run.ToTimedelta().total_seconds() + 1


async def test_modules_without_fabric_calls_are_timed_by_the_clock(
    workers: Workers, fabric: EmulatedFabric, tmp_path: Path
) -> None:
    """The measurement names its time source, so that cycles and seconds are not mixed up."""
    plain = build(matmul_i8(EXTENT, EXTENT, EXTENT), host_target(), tmp_path)
    await workers.start(registers_yaml())

    measured = await workers.measure(plain, number=3)

    assert measured.run_secs[0] > 0, measured.error_message
    assert (measured.time_source, list(measured.run_cycles)) == ("wall", [])
    np.testing.assert_array_equal(PRODUCT, output(await workers.call(plain)))


async def test_the_programmed_bitstream_decides_the_result(
    workers: Workers, fabric: EmulatedFabric, artifacts: dict[FabricTile, Artifact]
) -> None:
    """The same artifact, after the fabric was programmed with the design that drops negative sums."""
    tile = FabricTile(m=16, n=16, k=64)
    await workers.start(registers_yaml())
    before = output(await workers.call(artifacts[tile]))
    await workers.stop()
    fabric.load("gemm_i8_relu")
    await workers.start(registers_yaml("registers_relu"))

    after = output(await workers.call(artifacts[tile]))

    np.testing.assert_array_equal(PRODUCT, before)
    np.testing.assert_array_equal(np.maximum(PRODUCT, 0), after)


async def test_a_stuck_core_costs_one_candidate(
    workers: Workers, fabric: EmulatedFabric, artifacts: dict[FabricTile, Artifact], tmp_path: Path
) -> None:
    """RUN_FAILED with the reason, the worker lives, and the next candidate is right."""
    fabric.load("gemm_i8_faulty")
    bad_mod = schedule_matmul(matmul_i8(40, 40, 40), FabricTile(m=8, n=8, k=20))
    bad = build(bad_mod, host_target(), tmp_path)
    await workers.start(registers_yaml(run_ms=2000))
    request = session_service_pb2.CallRequest(
        artifact_digest=bad.digest,
        args=[tensor_pb2.Argument(fill=tensor_pb2.TensorSpec(shape=(40, 40), dtype="int8"))] * 2
        + [tensor_pb2.Argument(output=tensor_pb2.TensorSpec(shape=(40, 40), dtype="int32"))],
    )
    order = worker_pb2.WorkerRequest(call=request, artifact_path=str(bad.path))

    stuck = (await workers.exchange(order)).call

    async def good() -> session_service_pb2.CallResponse | None:
        response = await workers.call(artifacts[TILES[0]])
        return response if response.error == 0 else None

    called = await eventually(good)  # at once, unless the machine stalled for as long

    assert kind_of(stuck) == "RUN_FAILED"
    assert "gemm_i8 is stuck: ctrl & 0x1 was not 0x0 within 2000 ms" in stuck.error_message
    np.testing.assert_array_equal(PRODUCT, output(called))


async def test_fabric_errors_have_specific_messages(
    workers: Workers, fabric: EmulatedFabric, artifacts: dict[FabricTile, Artifact], tmp_path: Path
) -> None:
    """A missing bitstream, another design, another function and a missing window each have a clear message."""
    artifact = artifacts[TILES[0]]
    await workers.start("")
    nothing = await workers.measure(artifact)
    await workers.start(registers_yaml().replace("gemm_i8", "conv_i8"))
    other_function = await workers.measure(artifact)
    await workers.start(registers_yaml("registers_relu"))
    other_design = await workers.measure(artifact)
    await workers.start(registers_yaml().replace("uio: fabric", "uio: gone"))
    no_window = await workers.measure(artifact)

    assert kind_of(nothing) == kind_of(other_function) == kind_of(other_design) == "RUN_FAILED"
    assert "program a bitstream with its description of registers first" in nothing.error_message
    assert "offers fabric.conv_i8" in other_function.error_message
    assert "the fabric holds another design than gemm_i8_relu" in other_design.error_message
    assert kind_of(no_window) == "DEVICE_FAULTED"
    assert "there is no UIO device called 'gone' (found: fabric)" in no_window.error_message


def test_a_window_smaller_than_described_is_refused(fabric: EmulatedFabric, tmp_path: Path) -> None:
    """The error has the kernel's size and the description's."""
    with pytest.raises(FabricDead, match="/dev/uio0 is 0x4000 bytes, but the description says 0x8000"):
        MappedPlaces(Window(uio="fabric", size_bytes=0x8000), tmp_path / "root").window()


def test_no_permission_names_the_remedy() -> None:
    """An agent that does not run as root, below a folder that it may enter."""
    user = os.geteuid()
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        root.chmod(0o755)
        with emulated_fabric(root / "dev/uio0", sysfs_root=root) as closed:
            (root / "dev/mem").touch()
            for path in (closed.window, root / "dev/mem"):
                path.chmod(0)
            if user == 0:
                os.seteuid(_NOBODY)
            try:
                assert f"fabric (uio0, 0x4000 bytes): no permission for {closed.window}; run" in list_windows(root)
                with pytest.raises(FabricDead, match=r"no permission for .*uio0, .* udev rule"):
                    MappedPlaces(Window(uio="fabric", size_bytes=0x4000), root).window()
                with pytest.raises(FabricDead, match=r"no permission for .*dev/mem, .* or use UIO"):
                    MappedPlaces(Window(mem=0xA0000000, size_bytes=0x4000), root).window()
            finally:
                os.seteuid(user)


@pytest.mark.parametrize(
    "tile", [FabricTile(m=8, n=8, k=6), FabricTile(m=64, n=64, k=16), FabricTile(m=16, n=24, k=16)]
)
def test_tiles_that_cannot_be_are_refused_before_anything_is_built(tile: FabricTile) -> None:
    """Sizes that are no multiple of 4, exceed the core, or do not divide the product are refused."""
    with pytest.raises(BuildError, match=r"does not fit the fabric|do not divide 64 x 64 x 64"):
        schedule_matmul(matmul_i8(EXTENT, EXTENT, EXTENT), tile)
