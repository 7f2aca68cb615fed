"""A Raspberry Pi 4 under emulation, from bundle to numbers: the bundle unpacked in a Debian tree, its agent started
with the CPU that the board has, its kernels cross-compiled here. The times mean nothing, and the device says so.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

import fleet
from fleet.artifacts.artifact import Artifact
from fleet.checking.numerics import compare
from fleet.client.upload import messages
from fleet.domain.measuring import ErrorKind, Evaluator, Trial
from fleet.errors import ArtifactRefused
from fleet.identity.credentials import agent_name
from fleet.testing import eventually_sync
from fleet.testing.identity import account_proof
from fleet.v1 import session_service_pb2
from fleet.wire.rpc import Stub, make_channel
from fleet.wire.tokens import TOKEN_HEADER
from tests.emulated import integer_kernels
from tests.emulated.board import HOME, emulated_board
from tests.emulated.board_agents import BoardAgent
from tests.emulated.bundles import bundle_for
from tests.emulated.pi_files import PI_4
from tests.emulated.pi_kernels import SIZE
from tests.emulated.recurrent_kernels import LAYER, answers_of
from tests.emulated.winograd_kernels import SIZES, answers
from tests.programs import environment, made_once
from tests.system.fleet_processes import Server, connect, run_fleet

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

_CONFIG = "devices: [{driver: raspberry_pi, name: pi4, emulated: true, threads: 2}]\n"
_ONCE = Evaluator(number=1, repeat=1)
_MAX_BYTES = 25_000_000


@dataclass
class Bench:
    """A tracker here, a board with its agent, and the kernels built for it."""

    tracker: Server
    agent: BoardAgent
    kernels: dict[str, Path]

    def artifact(self, name: str) -> Artifact:
        return Artifact.of_file(self.kernels[name])

    def connect(self) -> fleet.Fleet:
        return connect(self.tracker.address)


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = made_once(tmp_path_factory, "tests.emulated.pi_kernels")
    return {name: Path(path) for name, path in json.loads((folder / "index.json").read_text()).items()}


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory, kernels: dict[str, Path]) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("pi")
    tracker = Server(
        ["-m", "fleet.tracker", "--no-discovery", "--state-dir", str(folder / "tracker")],
        "tracker",
        folder / "tracker.log",
    ).start()
    try:
        with emulated_board("arm64", cpu="cortex-a72", directory=folder) as board:
            for name, content in PI_4.items():
                board.write(f"/{name}", content)
            agent = BoardAgent(board, tracker.address, _CONFIG, folder / "agent.log")
            agent.unpack(bundle_for("rpi4-64"))
            agent.start()
            try:
                yield Bench(tracker, agent, kernels)
            finally:
                agent.stop()
    finally:
        tracker.stop()


async def _put(client: fleet.Fleet, device: fleet.Device, artifact: Artifact) -> list[str]:
    """Upload an artifact even if the agent has it; return the digests that it accepted."""
    (key_id,) = [shown.agent_key_id for shown in client.snapshot().devices if shown.name == device.name]
    async with make_channel(device.address, account_proof(client.address), agent_name(key_id)) as channel:
        stub = Stub(channel, session_service_pb2.DESCRIPTOR.services_by_name["SessionService"])
        response = await stub.put_artifact(messages([artifact]), metadata=((TOKEN_HEADER, device.token),))
    return list(response.digests)


def _square(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).random((SIZE, SIZE), dtype=np.float32)


def test_the_bundle_is_small() -> None:
    """Less than 25 MB to copy to a board."""
    assert bundle_for("rpi4-64").size_bytes < _MAX_BYTES


def test_it_is_a_raspberry_pi_in_the_fleet(bench: Bench) -> None:
    """Its kind, board, target and readings are a Raspberry Pi's, and it is marked as emulated."""
    with bench.connect() as client, client.acquire("kind=raspberry_pi,emulated=true") as device:
        inventory = device.inventory

        assert device.name == "devices/pi4"
        assert inventory.is_simulated
        assert (inventory.labels["arch"], inventory.labels["board"]) == ("aarch64", "rpi4-64")
        assert json.loads(inventory.target_json)["mcpu"] == "cortex-a72"
        assert inventory.device_model.startswith("emulated Raspberry Pi 4 Model B")


def test_a_cross_compiled_kernel_computes_the_same_as_numpy(bench: Bench) -> None:
    """The same program for this machine gives the same numbers, too."""
    left, right = _square(1), _square(2)
    with bench.connect() as client, client.acquire("kind=raspberry_pi") as device:
        product = device.load(bench.artifact("pi4"))(left, right)
        timing = device.load(bench.artifact("pi4")).time(repeat=2, min_repeat_ms=0)

    np.testing.assert_allclose(product, left @ right, rtol=1e-5)
    np.testing.assert_allclose(product, _on_this_machine(bench.kernels["host"], left, right), rtol=1e-5)
    assert timing.error is None
    assert len(timing.run_secs) == 2


@pytest.mark.parametrize("outputs", SIZES)
def test_winograd_convolutions_are_right_there(bench: Bench, outputs: int) -> None:
    """F(2) and F(4), each where the graph chooses it: within the tolerance of the sum as it is written."""
    right = answers(bench.kernels[f"winograd{outputs}-pi4"])
    with bench.connect() as client, client.acquire("kind=raspberry_pi") as device:
        found = device.load(bench.artifact(f"winograd{outputs}-pi4"))(*right.inputs)

    assert compare([found], [right.expected], reduction_size=right.terms) is None


def test_a_recurrent_layer_is_right_there(bench: Bench) -> None:
    """Threads share its steps and meet at a barrier, in the board's runtime."""
    right = answers_of(bench.kernels["lstm-pi4"])
    with bench.connect() as client, client.acquire("kind=raspberry_pi") as device:
        found = device.load(bench.artifact("lstm-pi4"))(*right.inputs)

    assert compare(found, right.expected, reduction_size=LAYER.hidden) is None


def test_sums_of_integers_are_exact_on_a_core_with_dot_products(bench: Bench) -> None:
    """A Pi 5's: `sdot` of the largest and smallest codes gives each sum that they have, requantized as ONNX says."""
    board, built = bench.agent.board, bench.kernels["pi4"].parent / "integers"
    shutil.copytree(built, board.path(f"{HOME}/integers"))
    board.write(f"{HOME}/integers.py", Path(integer_kernels.__file__).read_text())

    with board.another_cpu("cortex-a76"):
        found = board.run("python3", f"{HOME}/integers.py", f"{HOME}/integers", PYTHONPATH=f"{HOME}/fleet-agent/lib")

    assert (built / "digest").read_text() == found.stdout.strip(), found.stderr


def test_a_throttled_pi_is_reported_with_the_measurement(bench: Bench) -> None:
    """Measurements carry the throttle reasons of the firmware."""
    name = "/sys/devices/platform/soc/soc:firmware/get_throttled"
    with bench.connect() as client, client.acquire("kind=raspberry_pi") as device:
        bench.agent.board.write(name, "50005\n")
        timing = device.load(bench.artifact("pi4")).time(repeat=1, min_repeat_ms=0)
        bench.agent.board.write(name, "50000\n")

    assert timing.provenance["after"]["throttle_reasons"] == ["under-voltage", "throttled"]


def test_a_model_is_tuned_on_it(bench: Bench, two_products: Path, tmp_path: Path) -> None:
    """Searched and cross-compiled here, measured there, and the whole tuned model gives ONNX Runtime's numbers."""
    library = f"sqlite:///{tmp_path}/library.db"
    words = ("--on", "kind=raspberry_pi", "--trials", "6", "--batch", "3", "--library", library)

    done = run_fleet("tune", str(two_products), *words, "--tracker", bench.tracker.address, timeout_sec=200)

    assert done.returncode == 0, done.stderr
    assert "output agrees with ONNX Runtime" in done.stdout
    assert "on emulated Raspberry Pi 4 Model B Rev 1.4 x2" in " ".join(done.stdout.split())


def test_code_for_a_newer_core_dies_there_and_the_next_candidate_is_fine(bench: Bench) -> None:
    """Half-precision arithmetic is an illegal instruction on a Cortex-A72, emulated or not."""
    # By its file alone: with its facts it would be refused for its target already.
    wrong = Artifact(path=bench.kernels["half"], digest=bench.artifact("half").digest)
    half = bench.artifact("half").args
    right = bench.artifact("pi4")
    with bench.connect() as client, client.acquire("kind=raspberry_pi") as device:
        device.ensure([wrong, right])
        died, fine = device.measure([_trial("wrong", replace(wrong, args=half)), _trial("fine", right)])

    assert (died.error, died.signal) == (ErrorKind.CRASHED, 4)
    assert fine.error is None


def test_a_killed_worker_costs_its_candidate_only(bench: Bench) -> None:
    """kill -9 on the board, in the middle of a run."""
    slow, right = bench.artifact("slow"), bench.artifact("pi4")
    with bench.connect() as client, client.acquire("kind=raspberry_pi") as device:
        device.ensure([slow, right])
        results = device.measure(
            [_trial("fine", right), _trial("slow", slow, Evaluator(number=1000, repeat=1)), _trial("next", right)]
        )
        assert next(results).error is None
        eventually_sync(lambda: any(worker.cpu_times().user > 1 for worker in bench.agent.workers()))
        for worker in bench.agent.workers():
            worker.kill()
        killed, following = results

    assert (killed.error, killed.signal) == (ErrorKind.CRASHED, 9)
    assert following.error is None


def test_a_library_that_is_in_use_can_be_put_again(bench: Bench) -> None:
    """Overwriting a mapped file kills its processes; an upload makes a new file and moves it in place."""
    artifact = bench.artifact("pi4")
    left, right = _square(3), _square(4)
    with bench.connect() as client, client.acquire("kind=raspberry_pi") as device:
        module = device.load(artifact)
        before = module(left, right)
        workers = bench.agent.workers()
        # As over a slow link, where the client uploads before the agent reports that it has the file.
        assert asyncio.run(_put(client, device, artifact)) == [artifact.digest]
        after = module(left, right)

        assert bench.agent.workers() == workers
    np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize(("name", "reason"), [("armv7", "armv7l"), ("soft", "armv7l"), ("host", "x86_64")])
def test_an_artifact_for_another_machine_is_refused_before_it_travels(bench: Bench, name: str, reason: str) -> None:
    """The client names the machine that the artifact was built for; no byte reaches the board."""
    artifact = Artifact(path=bench.kernels[name], digest=bench.artifact(name).digest)
    with (
        bench.connect() as client,
        client.acquire("kind=raspberry_pi") as device,
        pytest.raises(ArtifactRefused, match=reason),
    ):
        device.ensure([artifact])

    assert not _stored(bench, artifact).exists()


def test_a_killed_agent_comes_back_as_the_same_device(bench: Bench) -> None:
    """The killed agent leaves nothing behind, and the next one serves at once."""
    bench.agent.kill()
    bench.agent.start()
    left, right = _square(5), _square(6)

    with bench.connect() as client, client.acquire("kind=raspberry_pi", wait_timeout_sec=60) as device:
        product = device.load(bench.artifact("pi4"))(left, right)

    np.testing.assert_allclose(product, left @ right, rtol=1e-5)


def _trial(name: str, artifact: Artifact, evaluator: Evaluator = _ONCE) -> Trial:
    return Trial(
        candidate_id=name, artifact_digest=artifact.digest, args=artifact.args, evaluator=evaluator, timeout_sec=60
    )


def _stored(bench: Bench, artifact: Artifact) -> Path:
    folder = bench.agent.board.path(f"{HOME}/.local/share/tvm-fleet/agent/artifacts")
    found = list(folder.rglob(f"*{artifact.digest.removeprefix('sha256:')}*"))
    return found[0] if found else folder / "nothing"


def _on_this_machine(path: Path, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Run the kernel here, in a process of its own."""
    code = (
        "import sys, numpy, tvm\n"
        "left, right = (numpy.load(path) for path in sys.argv[2:4])\n"
        "out = tvm.runtime.tensor(numpy.zeros_like(left))\n"
        "tvm.runtime.load_module(sys.argv[1])['main'](*map(tvm.runtime.tensor, (left, right)), out)\n"
        "numpy.save(sys.argv[4], out.numpy())\n"
    )
    names = [str(path.with_suffix(f".{name}.npy")) for name in ("left", "right", "product")]
    np.save(names[0], left)
    np.save(names[1], right)
    subprocess.run([sys.executable, "-c", code, str(path), *names], check=True, env=environment())
    return np.load(names[2])
