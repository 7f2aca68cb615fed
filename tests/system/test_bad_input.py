"""Bad input gets one clear message, the right exit code, and no traceback."""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper
from typer.testing import CliRunner

from fleet.cli.main import app
from tests.system.fleet_processes import Fleet, run_fleet, running_fleet

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with running_fleet(tmp_path_factory.mktemp("fleet"), "devices: [{driver: simulated, name: sim}]\n") as found:
        yield found


def save_model(path: Path, operator: str = "Relu", shape: tuple[object, ...] = (4, 4), domain: str = "") -> Path:
    graph = helper.make_graph(
        [helper.make_node(operator, ["x"], ["y"], name="the_node", domain=domain)],
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
    )
    imports = [helper.make_opsetid("", 17), *([helper.make_opsetid(domain, 1)] if domain else [])]
    model = helper.make_model(graph, opset_imports=imports)
    model.ir_version = 8
    onnx.save(model, path)
    return path


def refused(*words: str, code: int = 2) -> str:
    """Run a command that must be refused, in this process because starting one takes a second, and return its
    message.
    """
    done = CliRunner().invoke(app, words)
    assert isinstance(done.exception, SystemExit), done.exception
    return _error(done.exit_code, done.stderr, code)


def refused_to_serve(*words: str) -> str:
    """Run a server that must be refused, in a process of its own, which it changes."""
    done = run_fleet(*words)
    assert "Traceback" not in done.stderr
    return _error(done.returncode, done.stderr, 2)


def _error(found: int, stderr: str, code: int) -> str:
    assert found == code, stderr
    message = stderr.strip().splitlines()[-1]
    assert message.startswith("error: "), stderr
    return message


def test_a_profile_asks_for_its_device_before_it_reads_the_model(fleet: Fleet, tmp_path: Path) -> None:
    """Reading may take minutes, so the quick check fails first."""
    path = tmp_path / "text.onnx"
    path.write_text("not a model at all")

    assert "kind=cuda" in refused("profile", str(path), "--on", "kind=cuda", "--tracker", fleet.address, code=1)


def test_a_file_that_is_no_model(fleet: Fleet, tmp_path: Path) -> None:
    """A text file is no ONNX model."""
    path = tmp_path / "text.onnx"
    path.write_text("not a model at all")

    message = refused(
        "tune", str(path), "--on", "simulated", "--tracker", fleet.address, "--library", str(tmp_path / "l")
    )

    assert "text.onnx" in message
    assert "ONNX" in message


def test_an_operator_that_cannot_be_imported(fleet: Fleet, tmp_path: Path) -> None:
    """The operator is named."""
    path = save_model(tmp_path / "odd.onnx", "Frobnicate", domain="")

    assert "Frobnicate" in refused(
        "tune", str(path), "--on", "simulated", "--tracker", fleet.address, "--library", str(tmp_path / "l")
    )


def test_a_model_without_an_operator(fleet: Fleet, tmp_path: Path) -> None:
    """The error distinguishes a model without tunable operators from a pattern without a match."""
    path = save_model(tmp_path / "unique.onnx", "Unique", shape=(4,))

    message = refused(
        "tune", str(path), "--on", "simulated", "--tracker", fleet.address, "--library", str(tmp_path / "l")
    )

    assert "unique.onnx has no operator" in message


def test_symbolic_shapes(fleet: Fleet, tmp_path: Path) -> None:
    """The error names the inputs and the option that fixes their shapes."""
    path = save_model(tmp_path / "any.onnx", shape=("batch", 4))

    message = refused(
        "tune", str(path), "--on", "simulated", "--tracker", fleet.address, "--library", str(tmp_path / "l")
    )

    assert "batch" in message
    assert "--shape x=" in message


def test_an_unsatisfiable_selector(fleet: Fleet) -> None:
    """It fails at once and lists the devices."""
    message = refused("acquire", "kind=fpga", "--tracker", fleet.address, "--", "true", code=1)

    assert "sim" in message
    assert "fpga" in message


def test_a_port_in_use(fleet: Fleet, tmp_path: Path) -> None:
    """The port is named, exit code 2."""
    port = fleet.address.rpartition(":")[2]

    message = refused_to_serve("tracker", "serve", "--port", port, "--state-dir", str(tmp_path))

    assert port in message
    assert "in use" in message


def test_a_library_that_is_no_database(fleet: Fleet, tmp_path: Path) -> None:
    """The file is left as it was."""
    path = tmp_path / "library.sqlite"
    path.write_text("my shopping list, dear to me, longer than a header of one hundred bytes" * 4)
    before = path.read_bytes()

    message = refused(
        "tune",
        str(save_model(tmp_path / "m.onnx")),
        "--on",
        "simulated",
        "--library",
        str(path),
        "--tracker",
        fleet.address,
        code=2,
    )

    assert str(path) in message
    assert before == path.read_bytes()


def test_the_database_of_another_program_is_left_unchanged(tmp_path: Path) -> None:
    """Another program's SQLite file is left unchanged."""
    path = tmp_path / "other.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE recipes (name TEXT)")
    connection.commit()
    connection.close()

    assert str(path) in refused("jobs", "list", "--library", str(path), code=1)


def test_missing_hardware_leaves_other_devices_alone(tmp_path: Path) -> None:
    """A device of agent.yaml that is missing here is shown as faulted with the reason; the others are served."""
    no_gpus = f"{{driver: rocm, sys_root: {tmp_path}}}"
    config = (
        f"devices: [{{driver: simulated, name: sim}}, {no_gpus}, {no_gpus}, "
        f"{{driver: raspberry_pi, name: pi, sys_root: {tmp_path}}}]\n"
    )
    with running_fleet(tmp_path, config) as found:
        listed = run_fleet("devices", "--json", "--tracker", found.address)
        by_kind: dict[str, list[str]] = {}
        for device in json.loads(listed.stdout)["devices"]:
            by_kind.setdefault(device["inventory"]["kind"], []).append(f"{device['state']} {device.get('reason', '')}")
        shown = run_fleet("devices", "show", "pi", "--tracker", found.address)
        held = run_fleet("acquire", "name=sim", "--tracker", found.address, "--", "true")

    assert by_kind["simulated"] == ["available "]
    assert len(by_kind["rocm"]) == 2
    assert all("faulted no AMD GPU" in text for text in by_kind["rocm"])
    assert "no Raspberry Pi" in by_kind["raspberry_pi"][0]
    assert "looked for again without a restart" in " ".join(shown.stdout.split())
    assert held.returncode == 0


def test_an_agent_without_a_device_does_not_start(tmp_path: Path) -> None:
    """One line, and the exit code of a wrong configuration."""
    path = tmp_path / "agent.yaml"
    path.write_text(f"devices: [{{driver: rocm, sys_root: {tmp_path}}}]")

    message = refused_to_serve("agent", "serve", "--config", str(path), "--state-dir", str(tmp_path / "state"))
    assert "no AMD GPU" in message


def test_a_kind_without_a_connected_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that would start an agent for phones alone fails at once if there are none."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("ANDROID_ADB_SERVER_PORT", str(free.getsockname()[1]))
    model = save_model(tmp_path / "m.onnx")
    try:
        message = refused("tune", str(model), "--on", "kind=android", "--library", str(tmp_path / "l"), code=1)
    finally:
        subprocess.run(["adb", "kill-server"], check=False)
    assert "no device of kind android is connected" in message


@pytest.mark.parametrize("words", [("tune", "m.onnx"), ("agent", "serve", "--tracker", "127.0.0.1:1"), ("doctor",)])
def test_a_pair_of_tvm_packages_that_crashes(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commands refuse a TVM and a tvm-ffi that crash each other; the message names the version to install."""
    package = tmp_path / "site/apache_tvm_ffi-0.1.15.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: apache-tvm-ffi\nVersion: 0.1.15\n")
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    save_model(tmp_path / "m.onnx")

    done = run_fleet(*words, cwd=tmp_path)

    assert 0 != done.returncode
    assert "Traceback" not in done.stderr
    assert "apache-tvm-ffi==0.1.14.post1" in " ".join((done.stdout + done.stderr).split())


@pytest.mark.parametrize("words", [("targets", "--json"), ("man",)])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_for_the_output_is_reported_in_one_line(words: tuple[str, ...], unbuffered: str) -> None:
    """A full disk is reported in one line, in the middle of the output and at its last write."""
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "fleet", *words],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            check=False,
        )

    assert (done.returncode, done.stderr.splitlines()) == (
        1,
        ["error: the output: No space left on device"],
    )
