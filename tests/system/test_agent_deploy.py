"""`fleet agent deploy` over a real ssh server of the test's own, onto this machine, into a directory of its own."""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import pytest

from fleet.artifacts.artifact import Artifact
from fleet.testing import eventually_sync
from tests.emulated.cache import cache_dir, locked
from tests.programs import alive, environment
from tests.system.fleet_processes import FLEET, Server, connect

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

_SSHD = "/usr/sbin/sshd"
_CONFIG = """
ListenAddress 127.0.0.1
Port {port}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized_keys
PidFile none
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin yes
StrictModes no
UsePAM no
SetEnv FLEET_PYTHON={python} FLEET_DATA_DIR={folder}/data HOME={folder}/home
"""


@dataclass
class Board:
    """This machine, accessed over ssh."""

    folder: Path
    port: int

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def login(self) -> str:
        """The ssh command: only the test's own key, host key and configuration."""
        settings = {
            "Port": self.port,
            "IdentityFile": self.folder / "key",
            "IdentitiesOnly": "yes",
            "UserKnownHostsFile": self.folder / "known_hosts",
        }
        return shlex.join(["ssh", "-F", "none", *(f"-o{key}={value}" for key, value in settings.items())])

    def agent_pid(self) -> int:
        return int((self.home / "fleet-agent/agent.pid").read_text())


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Board]:
    for program, package in ((_SSHD, "openssh-server"), ("ssh", "openssh-client"), ("ssh-keygen", "openssh-client")):
        assert shutil.which(program), f"{program} is not installed: apt-get install {package}"
    folder = tmp_path_factory.mktemp("board")
    (folder / "home").mkdir()
    for name in ("host_key", "key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    shutil.copy(folder / "key.pub", folder / "authorized_keys")
    if os.geteuid() == 0:
        # sshd, started by root, keeps the part of itself here that talks to unauthenticated peers.
        Path("/run/sshd").mkdir(exist_ok=True)
    port = _free_port()
    python = Path(sys.base_prefix, f"bin/python3.{sys.version_info.minor}")
    (folder / "sshd_config").write_text(_CONFIG.format(port=port, folder=folder, python=python))
    key = (folder / "host_key.pub").read_text().split()
    (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {key[0]} {key[1]}\n")
    with (folder / "sshd.log").open("w") as log:
        server = subprocess.Popen([_SSHD, "-D", "-e", "-f", folder / "sshd_config"], stderr=log)
    try:
        eventually_sync(lambda: "listening" in (folder / "sshd.log").read_text())
        made = Board(folder, port)
        yield made
        _kill_agent(made)
    finally:
        server.terminate()
        server.wait()


@pytest.fixture(scope="module")
def tracker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("tracker")
    server = Server(
        ["-m", "fleet.tracker", "--no-discovery", "--state-dir", str(folder / "state")], "tracker", folder / "log"
    ).start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def deployed(board: Board, tracker: Server) -> subprocess.CompletedProcess[str]:
    return _deploy(board, "--tracker", tracker.address)


def test_the_board_serves_when_the_command_ends(
    board: Board, tracker: Server, deployed: subprocess.CompletedProcess[str], agent_models: Path
) -> None:
    """One command deploys a device that computes, in the board's Python, without this checkout."""
    assert deployed.returncode == 0, deployed.stderr
    name = deployed.stdout.strip()
    assert name.startswith("devices/")
    command = psutil.Process(board.agent_pid()).cmdline()
    assert command[0] == str(Path(sys.base_prefix, f"bin/python3.{sys.version_info.minor}"))
    left, right = np.random.default_rng(1).random((2, 16, 16), dtype=np.float32)

    with connect(tracker.address) as client, client.acquire(f"name={name}") as device:
        product = left.copy()
        outputs = device.load(Artifact.of_file(agent_models / "matmul.so"))(left, right, product)

    np.testing.assert_allclose(outputs[2], left @ right, rtol=1e-5)


def test_a_second_run_copies_and_restarts_no_agent(
    board: Board, tracker: Server, deployed: subprocess.CompletedProcess[str]
) -> None:
    """Deploying is safe to repeat."""
    before = board.agent_pid()

    again = _deploy(board, "--tracker", tracker.address)

    assert again.returncode == 0, again.stderr
    assert "nothing to copy" in again.stderr
    assert "runs already" in again.stderr
    assert board.agent_pid() == before


def test_a_damaged_installation_is_replaced_and_the_old_agent_ends(
    board: Board, tracker: Server, deployed: subprocess.CompletedProcess[str]
) -> None:
    """Another digest on the board makes the command copy, stop and start."""
    before = psutil.Process(board.agent_pid())
    (board.home / "fleet-agent/bundle.json").write_text("{}")

    again = _deploy(board, "--tracker", tracker.address)

    assert again.returncode == 0, again.stderr
    assert "stopped the agent that ran" in again.stderr
    assert board.agent_pid() != before.pid
    eventually_sync(lambda: not alive([before]))
    assert not list(board.home.glob("fleet-agent.*"))


def test_a_configuration_comes_along_and_stays(
    board: Board, tracker: Server, deployed: subprocess.CompletedProcess[str], tmp_path: Path
) -> None:
    """The configuration of the deploying user decides which devices the agent serves."""
    config = tmp_path / "mine.yaml"
    config.write_text("devices: [{driver: cpu, name: desk, threads: 1}]\n")

    done = _deploy(board, "--tracker", tracker.address, "--config", str(config))

    assert done.returncode == 0, done.stderr
    assert done.stdout == "devices/desk\n"
    assert (board.home / "fleet-agent/agent.yaml").read_text() == config.read_text()


@pytest.mark.parametrize("with_new_bundle", [False, True])
def test_an_agent_that_does_not_start_gives_way_to_the_one_before(
    board: Board,
    tracker: Server,
    deployed: subprocess.CompletedProcess[str],
    tmp_path: Path,
    with_new_bundle: bool,
) -> None:
    """A bad agent.yaml takes no board out of the fleet: the previous agent runs again with its old code and
    settings.
    """
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text("devices: [{driver: cpu, name: steady, threads: 1}]\n")
    bad.write_text("devices: [{driver: cpu, name: shaky, treads: 1}]\n")
    assert _deploy(board, "--tracker", tracker.address, "--config", str(good)).returncode == 0
    marks = board.home / "fleet-agent/bundle.json"
    if with_new_bundle:
        marks.write_text(marks.read_text().replace("sha256:", "sha256:0"))
    marked, before = marks.read_text(), board.agent_pid()

    failed = _deploy(board, "--tracker", tracker.address, "--config", str(bad))

    assert failed.returncode == 1
    said = failed.stderr.replace("\n", " ")
    assert ("nothing to copy" in said) is not with_new_bundle
    assert "unknown key 'treads'" in said
    assert "the agent that ran before runs again" in said
    assert marks.read_text() == marked
    assert (board.home / "fleet-agent/agent.yaml").read_text() == good.read_text()
    assert board.agent_pid() != before
    assert psutil.Process(board.agent_pid()).is_running()
    assert not list(board.home.glob("fleet-agent.*"))
    with connect(tracker.address) as client, client.acquire("name=devices/steady", wait_timeout_sec=60):
        pass


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-oPort=1"], "Connection refused; is an ssh server running there?"),
        (["-oPubkeyAuthentication=no"], "Permission denied (publickey).; give the board your key first: ssh-copy-id"),
        (["-oUserKnownHostsFile=/dev/null"], "Host key verification failed.; log in once by hand"),
    ],
)
def test_a_failed_login_is_a_one_line_error(board: Board, words: list[str], said: str) -> None:
    """The error names the failure and the remedy."""
    first, *rest = shlex.split(board.login)

    done = _deploy(board, "--tracker", "127.0.0.1:1", login=shlex.join([first, *words, *rest]))

    assert done.returncode == 1
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--board", "rpi4-64"], "is x86_64, and rpi4-64 is aarch64; leave out --board"),
        (["--systemd"], "has no systemd for users; leave out --systemd"),
        (["--dir", "."], "there is something else; name a folder that is the agent's alone"),
        (["--dir", "/etc"], "there is something else; name a folder that is the agent's alone"),
        (["--dir", "/proc/agent"], "are free in /proc/agent; make room, or name another place with --dir"),
    ],
)
def test_an_unsupported_board_is_an_error(board: Board, words: list[str], said: str) -> None:
    """The error leaves no partial deployment."""
    done = _deploy(board, "--dir", "elsewhere", "--tracker", "127.0.0.1:1", *words)

    assert done.returncode != 0
    assert said in done.stderr.replace("\n", " ")
    assert not (board.home / "elsewhere").exists()


def _deploy(board: Board, *words: str, login: str | None = None) -> subprocess.CompletedProcess[str]:
    with locked("bundle-x86_64"):
        return subprocess.run(
            [FLEET, "agent", "deploy", "127.0.0.1", "--ssh", login or board.login, *words],
            capture_output=True,
            text=True,
            timeout=350,
            env={**environment(), "FLEET_CACHE_DIR": str(cache_dir() / "fleet")},
            check=False,
        )


def _kill_agent(board: Board) -> None:
    try:
        agent = psutil.Process(board.agent_pid())
    except (OSError, psutil.NoSuchProcess):
        return
    agent.terminate()
    try:
        agent.wait(60)
    except psutil.TimeoutExpired:
        agent.kill()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
