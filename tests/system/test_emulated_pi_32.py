"""A Raspberry Pi 2 under emulation: a 32-bit system, Python packages from Debian, kernels in the plain runtime."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fleet.artifacts.artifact import Artifact
from fleet.checking.numerics import compare
from fleet.errors import ArtifactRefused
from tests.emulated.board import HOME, emulated_board
from tests.emulated.board_agents import BoardAgent
from tests.emulated.bundles import bundle_for
from tests.emulated.pi_files import PI_2
from tests.emulated.pi_kernels import SIZE
from tests.emulated.winograd_kernels import SIZES, answers
from tests.programs import made_once
from tests.system.fleet_processes import Server, connect

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

_CONFIG = "devices: [{driver: raspberry_pi, name: pi2, emulated: true, threads: 2}]\n"


def test_a_32_bit_pi_computes_the_same_as_numpy(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """It starts from its bundle and computes; soft-float code, which would compute garbage, never reaches it."""
    kernels = made_once(tmp_path_factory, "tests.emulated.pi_kernels")
    paths = json.loads((kernels / "index.json").read_text())
    convolutions = [Path(paths[f"winograd{outputs}-armv7"]) for outputs in SIZES]
    known = [answers(path) for path in convolutions]
    left, right = np.random.default_rng(7).random((2, SIZE, SIZE), dtype=np.float32)
    state = tmp_path / "tracker"
    words = ["-m", "fleet.tracker", "--no-discovery", "--state-dir", str(state)]
    tracker = Server(words, "tracker", tmp_path / "tracker.log").start()
    try:
        with emulated_board("armhf", cpu="cortex-a7", directory=tmp_path) as board:
            for name, content in PI_2.items():
                board.write(f"/{name}", content)
            agent = BoardAgent(board, tracker.address, _CONFIG, tmp_path / "agent.log")
            agent.unpack(bundle_for("rpi2-32"))
            agent.start()
            try:
                with connect(tracker.address) as client, client.acquire("kind=raspberry_pi") as device:
                    artifact = Artifact.of_file(paths["armv7"])
                    product = device.load(artifact)(left, right)
                    timing = device.load(artifact).time(repeat=2, min_repeat_ms=0)
                    convolved = [
                        device.load(Artifact.of_file(path))(*each.inputs)
                        for path, each in zip(convolutions, known, strict=True)
                    ]
                    soft = Artifact(path=Path(paths["soft"]), digest=Artifact.of_file(paths["soft"]).digest)
                    with pytest.raises(ArtifactRefused, match="soft-float"):
                        device.ensure([soft])
                    inventory = device.inventory
            finally:
                agent.stop()
    finally:
        tracker.stop()

    np.testing.assert_allclose(product, left @ right, rtol=1e-5)
    assert timing.error is None
    for found, each in zip(convolved, known, strict=True):
        assert compare([found], [each.expected], reduction_size=each.terms) is None
    assert (inventory.labels["arch"], inventory.labels["board"]) == ("armv7l", "rpi2-32")
    assert json.loads(inventory.target_json)["mfloat-abi"] == "hard"


def test_missing_packages_of_a_board_are_named(tmp_path: Path) -> None:
    """One line names the command to type, before anything starts."""
    with emulated_board("armhf", cpu="cortex-a7", directory=tmp_path) as board:
        (board.path("/usr/lib/python3/dist-packages/yaml")).rename(tmp_path / "yaml")
        board.path(f"{HOME}/agent.tar.xz").write_bytes(bundle_for("rpi2-32").path.read_bytes())

        done = board.run("sh", "-c", "cd && tar xf agent.tar.xz && ./fleet-agent/run --check")

    assert done.returncode == 2
    assert done.stderr.strip().endswith("from its system: apt install python3-yaml")
    assert len(done.stderr.splitlines()) == 1


def test_a_bundle_names_the_board_that_it_is_for(tmp_path: Path) -> None:
    """The 64-bit one on a 32-bit system."""
    with emulated_board("armhf", cpu="cortex-a7", directory=tmp_path) as board:
        board.path(f"{HOME}/agent.tar.xz").write_bytes(bundle_for("rpi4-64").path.read_bytes())

        done = board.run("sh", "-c", "cd && tar xf agent.tar.xz && ./fleet-agent/run --tracker 127.0.0.1:1")

    assert done.returncode == 2
    assert "this bundle is for aarch64 (rpi4-64), and this is armv7l" in done.stderr
