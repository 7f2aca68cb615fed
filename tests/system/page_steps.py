"""The steps of a page of the documentation, and the steps that cannot run here.

A command stands behind `$ ` in a console block (other lines are its output, or go on after a backslash), or alone on a
line of four spaces and more. Python is in a block of its own; a block with a title is written to a file of that name.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/tutorial/*.md")), *sorted(ROOT.glob("docs/how-to/**/*.md"))]

PROGRAMS = "cc cmake fleet loginctl make mkdir pip pre-commit pytest python python3 sh systemctl tar"
"""First words of commands on pages, beside `./` and the commands that change the shell."""

_COMMAND = rf"(?:(?:{PROGRAMS.replace(' ', '|')}|\.|export) |\./|\.venv/)"
COMMAND = re.compile(_COMMAND)
_BLOCK = re.compile(
    r"^```(?P<language>\w*)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<body>.*?)^```"
    rf"|^ {{4,}}(?P<indented>{_COMMAND}[^\n]*)$",
    flags=re.MULTILINE | re.DOTALL,
)
_REMARK = re.compile(r"\s{2,}#.*")

PLACEHOLDERS = {"HOST": "127.0.0.1", "10.0.0.5": "127.0.0.1", "/path/to/tvm-fleet/.venv": sys.prefix}
"""Placeholders on pages, and their values on this machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of a reader."""

    command: str = ""
    file_name: str = ""
    """Written with `text`, instead of a command."""

    text: str = ""
    """Content of the file; without a file, Python to run."""

    @property
    def name(self) -> str:
        """The command as on the page, or the first line of Python; empty for a file."""
        return "" if self.file_name else self.command or self.text.partition("\n")[0]


NOT_RUN = {
    "writes outside the test's folder: tests/service/test_tracker_backup.py": [
        "fleet tracker backup /mnt/safe/tracker.tar",
        "fleet tracker restore /mnt/safe/tracker.tar",
    ],
    "serves until it is stopped, or needs a certificate: tests/system/test_web.py": [
        "fleet web",
        "fleet web login",
        "fleet web login --read",
        "fleet web --allow-network --url https://fleet.example.org:8080 --certificate cert.pem --key key.pem",
        "fleet web --behind-proxy --url https://fleet.example.org",
    ],
    "needs a second machine: tests/system/test_standby.py": [
        "fleet tracker join --tracker 10.0.0.5:9290",
        "fleet tracker serve --standby-of 10.0.0.5:9290 --allow-network",
        "fleet tracker promote --tracker 10.0.0.6:9290",
    ],
    "needs a model and a library with a job: tests/unit/test_argument_files.py, tests/service/test_jobs_cli.py": [
        "fleet config expand fleet tune @tune.yaml",
        "fleet jobs submit @tune.yaml --priority background",
        "fleet jobs show JOB --format yaml > again.yaml",
    ],
    "needs models: tests/unit/test_fragments.py, tests/unit/test_mutations.py, tests/system/test_tune.py": [
        "fleet workloads extract resnet18.onnx bert.onnx -o workloads.yaml",
        "fleet workloads mutate workloads.yaml rules.yaml -o more.yaml --limit 500",
        "fleet tune more.yaml --on arch=aarch64 --minutes 600 --priority background",
        "fleet library coverage model.onnx --on model=pi4",
    ],
    "needs records of that board, and a key: tests/service/test_packs.py": [
        "fleet pack make rpi4.pack --device-model 'Cortex-A72 x4' --checked --sign ~/.ssh/id_ed25519",
        "fleet pack push rpi4.pack oci://registry.example.org/lab/rpi4:2026-11",
        "fleet pack show oci://registry.example.org/lab/rpi4:2026-11",
        "fleet pack add oci://registry.example.org/lab/rpi4:2026-11",
        "fleet pack verify",
    ],
    "needs records of a board: tests/system/test_library_refresh.py, test_idle_refresh.py": [
        "fleet library refresh --on model=pi4 --dry-run",
        "fleet library refresh --on model=pi4 --minutes 20 --fail-above 3%",
        "fleet optimizer serve --refresh 10%",
    ],
    "takes minutes; .ci/run has it as its last line": ["make demo"],
    "needs a board of another account, or multicast: tests/system/test_approval.py": [
        "fleet discover",
        "fleet agent approve K7QX-2M4D-PZ5A",
        "fleet agent refuse K7QX-2M4D-PZ5A --reason 'not ours'",
    ],
    "downloads: scripts/package_check.py installs the wheel, tests/system/test_agent_deploy.py makes the bundle": [
        "python -m pip install build",
        "python -m build",
        "python3 -m venv .venv",
        ".venv/bin/pip install 'dist/tvm_fleet-0.1.0-py3-none-any.whl[tune]'",
        ".venv/bin/fleet doctor",
        "fleet agent bundle --board rpi4-64 -o agent.tar.xz",
        "tar xf agent.tar.xz && ./fleet-agent/run --tracker 10.0.0.5:9290 --allow-network --token-file -",
    ],
    "needs a board: tests/system/test_agent_deploy.py, test_emulated_pi.py, test_emulated_zynq.py": [
        "fleet agent deploy pi@pi4.local --tracker 10.0.0.5:9290 --allow-network",
        "fleet tune model.onnx --tracker HOST:9290 --on kind=raspberry_pi --target rpi4-64",
        "fleet program gemm_i8.bit --registers registers.yaml --on kind=zynq",
        "fleet program gemm.bit --on kind=zynq --registers gemm.yaml -- python measure.py",
        'with client.acquire("kind=zynq", prefer="bitstream=sha256:...") as device:',
        "python examples/zynq_gemm_i8/tune.py gemm_i8.bit --extents 64 64 64",
        "python -m tvm.exec.rpc_server --host 0.0.0.0 --port 9090 --key rpi",
        "./tvm_rpc server --host=0.0.0.0 --port=9090 --port-end=9091 --key=rpi",
        "python -m tvm.exec.rpc_server --host 0.0.0.0 --port 9090 --key rpi4 --tracker 10.1.0.1:9190",
    ],
    "needs a phone, and the NDK: tests/android": [
        "cmake .. -DUSE_CPP_RPC=ON -DUSE_OPENCL=ON -DANDROID_ABI=arm64-v8a -DANDROID_PLATFORM=android-28 "
        "-DCMAKE_TOOLCHAIN_FILE=$ANDROID_NDK/build/cmake/android.toolchain.cmake",
        "cmake --build . --target tvm_runtime tvm_rpc",
        "fleet build matmul-256 --target android-arm64 -o matmul.so",
        "fleet time matmul.so --on kind=android",
        "fleet tune model.onnx --on kind=android",
    ],
    "needs a GPU: tests/system/test_cuda_gpu.py; test_build_command.py builds for them": [
        "fleet tune model.onnx --on kind=cuda",
        "fleet build matmul-1024 --target sm_90 -o matmul.so",
        "fleet time matmul.so --on kind=cuda,sm=sm_90 --flush-bytes 1",
        "fleet build matmul-1024 --target gfx90a -o matmul.so",
        "fleet tune model.onnx --on kind=rocm,gfx=gfx942",
        "fleet build model.onnx:'fused_conv2d1_*' --target jetson-orin -o conv.so",
        """fleet build module.json --target '{"kind": "rocm", "mcpu": "gfx90a"}' --linker 'ld.lld'""",
    ],
    "needs several machines: tests/system/test_relay.py": [
        "fleet relay serve --tracker 10.0.0.5:9290 --allow-network",
    ],
    "needs another account or machine, with keys of its own: tests/system/test_joining.py": [
        "fleet tracker token revoke 3f9a0c12b7de",
        "fleet tracker revoke 0a1b2c3d4e5f --reason 'laptop lost'",
        "fleet login --tracker 10.0.0.5:9290",
        "fleet agent join --tracker 10.0.0.5:9290",
        "fleet agent join --tracker 10.0.0.5:9290 --token-file board.token",
        "ssh alice@10.0.0.5 fleet tracker token create --role user | fleet login --tracker 10.0.0.5:9290",
        "fleet agent serve --tracker 10.0.0.5:9290 --allow-network",
    ],
    "needs a cluster: tests/system/test_builders.py": [
        "fleet builder scheduler",
        "fleet builder serve --dask tls://127.0.0.1:8786",
        "fleet optimizer serve --dask tls://127.0.0.1:8786 --tracker boards:9290 --library postgresql://db/fleet",
        "fleet builder scheduler --host 10.0.0.5",
        "scp -pr ~/.local/state/tvm-fleet/credentials/builders builder1:.local/state/tvm-fleet/credentials/",
        "fleet builder serve --dask tls://10.0.0.5:8786",
        "fleet optimizer serve --dask tls://10.0.0.5:8786 --tracker boards:9290 --library postgresql://db/fleet",
        "fleet builder serve --dask tls://10.0.0.5:8786 --build-cache /nfs/builds",
    ],
    "needs a database on a host db, and boards: tests/system/test_optimizers.py, test_jobs_on_boards.py": [
        "fleet tracker serve --allow-network --state-dir /var/lib/tvm-fleet",
        "fleet optimizer serve --tracker boards:9290 --library postgresql://db/fleet",
        "export FLEET_TRACKER=boards:9290 FLEET_LIBRARY=postgresql://db/fleet",
        "fleet jobs submit resnet50.onnx --on model=pi4 --on model=pi5 --trials 1000 --priority background",
        "fleet tune squeezenet.onnx --top 5",
        "fleet jobs watch JOB",
        "fleet jobs show JOB",
        "fleet jobs why JOB",
        "fleet jobs cancel JOB",
        "fleet jobs resume JOB",
        "fleet jobs revert JOB",
    ],
    "needs a systemd of the user: tests/unit/test_systemd.py has systemd's verifier read the unit": [
        "systemctl --user enable --now fleet-tracker",
        "loginctl enable-linger",
    ],
    "needs boards, and a stock TVM script: tests/system/test_tvm_gateway.py": [
        "fleet gateway serve --tracker boards:9290",
        "fleet gateway serve --tracker boards:9290 --registrations 127.0.0.1:9191",
        "fleet gateway key create --account team-a",
        "fleet gateway serve --tracker boards:9290 --allow-network",
        'config = ms.runner.RPCConfig(tracker_host="127.0.0.1", tracker_port=9190, tracker_key="rpi4")',
    ],
    "installs an example into the environment: tests/contract/test_search_strategies.py": [
        "pip install ./examples/strategy",
        "fleet tune model.onnx --strategy spread",
    ],
    "a piece of the reader's own program; the tutorials have it whole": [
        "from fleet.metaschedule import FleetBuilder, FleetRunner",
        'timing = module.time("main", args, repeat=9, cool_below_c=55)',
        'job = fleet.tune("model.onnx", trials=64)',
    ],
}
"""Commands, and first lines of Python, that no test types as they stand: by their requirement, with the test that
covers them.
"""


def steps(page: str) -> list[Step]:
    """Return the steps of a page, in order."""
    return [step for block in _BLOCK.finditer(page) for step in _steps_of(block)]


def output_blocks(page: str) -> list[str]:
    """Return the blocks without steps."""
    return [block["body"] for block in _BLOCK.finditer(page) if block["language"] in ("", "text")]


def can_run(step: Step) -> bool:
    """Return whether a reader's step is possible on this machine."""
    return all(step.name not in names for names in NOT_RUN.values())


def on_this_machine(command: str) -> str:
    """Return a command with the page's placeholders filled in."""
    for placeholder, value in PLACEHOLDERS.items():
        command = command.replace(placeholder, value)
    return command


def _steps_of(block: re.Match[str]) -> Iterator[Step]:
    if block["indented"]:
        yield Step(command=_REMARK.sub("", block["indented"]))
    elif block["title"]:
        yield Step(file_name=block["title"], text=block["body"])
    elif block["language"] == "console":
        for line in re.sub(r"\\\n\s*", "", block["body"]).splitlines():
            if line.startswith("$ "):
                yield Step(command=_REMARK.sub("", line.removeprefix("$ ")))
    elif block["language"] == "python":
        yield Step(text=block["body"])
