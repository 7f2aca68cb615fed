"""Malformed files on the command line: an exit code, one line, no traceback, no files left behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fleet.cli.main import app
from fleet.library.schema import SCHEMA_VERSION

NO_TRACKER = ("--tracker", "127.0.0.1:1", "--connect-timeout", "0.1")

AGENT_FILES = {
    "unknown_key": "device: []",
    "no_driver": "devices: [{name: a}]",
    "odd_driver": "devices: [{driver: cpuu}]",
    "dup": "devices: [{driver: simulated, name: a}, {driver: simulated, name: a}]",
    "badname": "devices: [{driver: simulated, name: 'a b'}]",
    "neg": "cache_max_bytes: -1",
    "str": "cache_max_bytes: lots",
    "emptyd": "devices: []",
    "scalar": "devices: 3",
    "label": "devices: [{driver: cpu, labels: {Arch: 1}}]",
    "tracker": "tracker: nowhere",
    "list": "- a",
    "broken": "tracker: [a",
    "often_crashing": "devices: [{driver: simulated, crash_rate: 2}]",
    "nan": "devices: [{driver: simulated, crash_rate: .nan}]",
    "odd_label": "devices: [{driver: simulated, labels: {room: 'a,b'}}]",
    "infinite_fact": "devices: [{driver: cpu, facts: {height: .inf}}]",
    "backwards": "devices: [{driver: cpu, cpus: 5-2}]",
    "endless": "devices: [{driver: cpu, cpus: 0-99999999999}]",
    "advertised": "advertise_address: nowhere",
    "unlimited": "devices: [{driver: cpu, reference_limit: .nan}]",
}
AGENT_REFUSALS = {
    "broken": "broken.yaml: line 1, column 12 is not YAML: expected ',' or ']', but got",
    "often_crashing": "devices[0]: crash_rate: expected a number from 0 to 1, found 2",
    "nan": "devices[0]: crash_rate: expected a number from 0 to 1, found nan",
    "odd_label": "devices[0]: labels: room: 'a,b' is nothing that a selector can name",
    "infinite_fact": "devices[0]: facts: cannot be written as JSON: Out of range float values",
    "backwards": "devices[0]: cpus: expected all, big, little, or numbers as [2, 3] or 2-3, found '5-2'",
    "endless": "devices[0]: cpus: expected all, big, little, or numbers as [2, 3] or 2-3, found '0-99999999999'",
    "advertised": "advertise_address: 'nowhere'; write it like 127.0.0.1:9290",
    "unlimited": "devices[0]: reference_limit: expected a number above 1, found nan",
}
"""Messages for files given to `fleet agent serve`."""

REFUSED = [
    (("tune", ""), 2, ". is of no known type; known: *.onnx, *.pt2, *.keras,"),
    (("tune", "hf:./nowhere"), 2, "there is no folder './nowhere'; write hf:./folder or"),
    (("jobs", "submit", "hf:nobody/bert"), 2, "there is no folder 'nobody/bert'; write hf:"),
    (("tune", "folder"), 2, "folder is of no known type; known: *.onnx, *.pt2,"),
    (("tune", f"{'a' * 260}.onnx"), 2, "aaa.onnx: File name too long"),
    (("report", "--library", "a" * 260), 2, "aaa: File name too long"),
    (("jobs", "list", "--library", "~nobody-of-this-name/l.sqlite"), 2, "there is no home directory of that name"),
    (("tune", "bad.txt"), 2, "bad.txt is of no known type; known: *.onnx, *.pt2,"),
    (("tune", "bad.onnx", "--trials", "0"), 2, "bad.onnx is no ONNX model: Error parsing message with"),
    (("tune", "empty.onnx"), 2, "empty.onnx is no ONNX model: its graph has no node"),
    (("tune", "nowhere.onnx", "--shape", "x"), 2, "--shape 'x': write it like --shape data=1,3,224,224"),
    (("tune", "nowhere.onnx", "--shape", "x=a"), 2, "--shape 'x=a': write it like --shape data=1,3,224,224"),
    (("tune", "nowhere.onnx", "--shape", "x=0"), 2, "--shape 'x=0': write it like --shape data=1,3,224,224"),
    (("tune", "nowhere.onnx", "--shape", "x=-1,3"), 2, "--shape 'x=-1,3': write it like --shape data=1,3,224,224"),
    (("tune", "nowhere.onnx", "--shape", "=1"), 2, "--shape '=1': write it like --shape data=1,3,224,224"),
    (("tune", "nowhere.onnx", "--target", "rpi9"), 2, "unknown board 'rpi9'; list them with: fleet targets"),
    (("tune", "nowhere.onnx", "--target", "{"), 2, "the target '{' is no JSON: Expecting property name"),
    (("tune", "nowhere.onnx", "--on", ""), 2, "selector '', character 1: a condition is missing; write it like 'cpu'"),
    (("tune", "nowhere.onnx", "--on", "a b"), 2, "selector 'a b', character 2: expected =, !=, <, <=, > or >="),
    (("tune", "nowhere.onnx", "--on", "kind="), 2, "selector 'kind=', character 6: a value is missing"),
    (
        ("jobs", "show", "nope", "--library", "bad.sqlite"),
        2,
        "sqlite:///bad.sqlite is no SQLite database; name another",
    ),
    (("jobs", "list", "--library", "folder"), 2, "the library folder is a directory; name a file in it"),
    (("jobs", "cancel", "nope"), 1, "the library has no job 'jobs/nope'; `fleet jobs list`"),
    (("jobs", "watch", "nope"), 1, "the library has no job 'jobs/nope'; `fleet jobs list`"),
    (("jobs", "resume", "nope"), 1, "the library has no job 'jobs/nope'; `fleet jobs list`"),
    (("jobs", "revert", "nope"), 1, "the library has no job 'jobs/nope'; `fleet jobs list`"),
    (("library", "best", "--target", "{"), 2, "target '{' is no JSON: Expecting property name enclosed"),
    (("library", "best", "--library", "bad.sqlite"), 2, "sqlite:///bad.sqlite is no SQLite database; name another"),
    (
        ("library", "import", "folder", "--device-model", "x"),
        2,
        "cannot read folder/database_workload.json: No such file",
    ),
    (
        ("library", "export", "folder/x", "--library", "nowhere.sqlite"),
        2,
        "there is no library nowhere.sqlite; name the one that a",
    ),
    (
        ("library", "snapshots", "--library", "nowhere.sqlite"),
        2,
        "there is no library nowhere.sqlite; name the one that a",
    ),
    (("library", "migrate", "--to", "99"), 2, f"there is no version 99; known are 1 to {SCHEMA_VERSION}"),
    (("library", "migrate", "--to", "-1"), 2, f"there is no version -1; known are 1 to {SCHEMA_VERSION}"),
    (("time", "bad.so"), 2, "the arguments of 'main' in bad.so are not known:"),
    (("time", "folder"), 2, "cannot read the artifact folder: Is a directory"),
    (("time", "bad.so", "--args", "x"), 2, "--args 'x': write a tensor like 'float32[256,256]'"),
    (("run", "bad.so"), 2, "the arguments of 'main' in bad.so are not known:"),
    (("run", "folder"), 2, "cannot read the artifact folder: Is a directory"),
    (("build", "folder"), 2, "unknown workload 'folder'; write model.onnx:OPERATOR,"),
    (("build", "bad.onnx"), 2, "bad.onnx is no ONNX model: Error parsing message with"),
    (("build", "empty.onnx:x"), 2, "empty.onnx is no ONNX model: its graph has no node"),
    (("build", "nowhere.onnx:conv"), 2, "there is no model file nowhere.onnx"),
    (("build", "matmul-64-float3"), 2, "matmul-64-float3: there is no type float3; did you mean 'float32'?"),
    (("build", "matmul-64", "-o", "folder"), 2, "folder is a folder; name a file in it"),
    (("build", "matmul-[/x]"), 2, "unknown workload 'matmul-[/x]'; write model.onnx:OPERATOR,"),
    (("build", "matmul-64", "--target", "{}"), 2, 'the target \'{}\' names no kind; write {"kind": "llvm", ...}'),
    (("build", "matmul-64", "--linker", "nolinker"), 2, "the linker 'nolinker' (from --linker) is not on PATH"),
    (("build", "matmul-x"), 2, "unknown workload 'matmul-x'; write model.onnx:OPERATOR,"),
    (("explain", "folder"), 2, "folder is of no known type; known: *.onnx, *.pt2,"),
    (("explain", "bad.onnx"), 2, "bad.onnx is no ONNX model: Error parsing message with"),
    (("run", "bad.so", "--args", "1", "--output", "folder"), 2, "folder is a folder; name a file in it"),
    (("agent", "bundle", "--board", "rpi4-64", "-o", "folder"), 2, "folder is a folder; name a file in it"),
    (("agent", "bundle", "--board", "rpi4-64", "-o", "nowhere/a.tar.xz"), 2, "nowhere/a.tar.xz: there is no folder"),
    (("export", "bad.onnx", "-o", "."), 2, ". is a folder; name a file in it"),
    (("explain", "bad.tflite"), 2, "bad.tflite is no TFLite model: it lacks the mark TFL3"),
    (("export", "bad.onnx"), 2, "bad.onnx is no ONNX model: Error parsing message with"),
    (("serve-check", "nowhere.fleet"), 2, "cannot read the model nowhere.fleet: No such file or"),
    (("serve-check", "bad.fleet"), 2, "bad.fleet is no exported model, or cut short; make one"),
    (("serve-check", "folder"), 2, "folder lacks manifest.json, or it is damaged ([Errno 2]"),
    (("profile", "nowhere.onnx"), 2, "there is no model file nowhere.onnx"),
    (("program", "bad.bit", *NO_TRACKER), 1, "no tracker answers at 127.0.0.1:1 (tried for 0.1 s): is"),
    (("devices", "=!", *NO_TRACKER), 2, "selector '=!', character 1: expected a label; write it like 'cpu'"),
    (("devices", "show", "x", *NO_TRACKER), 1, "no tracker answers at 127.0.0.1:1 (tried for 0.1 s): is"),
    (("leases", "revoke", "x", *NO_TRACKER), 1, "no tracker answers at 127.0.0.1:1 (tried for 0.1 s): is"),
    (("targets", "show", ""), 2, "unknown board ''; list them with: fleet targets"),
    (("agent", "serve", "--config", "list.yaml"), 2, "list.yaml: expected 'key: value' lines, found a list"),
    (("agent", "serve", "--config", "bin.yaml"), 2, "bin.yaml is not YAML: 'utf-8' codec can't decode byte"),
    (("agent", "serve", "--config", "folder"), 2, "cannot read folder: Is a directory"),
    (
        ("agent", "serve", "--config", "unknown_key.yaml", "--state-dir", "state"),
        2,
        "unknown_key.yaml: line 1: unknown key 'device'; did you mean",
    ),
    (
        ("agent", "serve", "--config", "no_driver.yaml", "--state-dir", "state"),
        2,
        "no_driver.yaml: line 1: devices[0]: the key 'driver' is missing",
    ),
    (
        ("agent", "serve", "--config", "odd_driver.yaml", "--state-dir", "state"),
        2,
        "odd_driver.yaml: line 1: devices[0]: unknown driver 'cpuu'; did",
    ),
    (
        ("agent", "serve", "--config", "dup.yaml", "--state-dir", "state"),
        2,
        "dup.yaml: line 1: devices[1]: two devices are named 'a'; give one of them",
    ),
    (
        ("agent", "serve", "--config", "badname.yaml", "--state-dir", "state"),
        2,
        "badname.yaml: line 1: devices[0]: 'a b' is no device name; use letters,",
    ),
    (
        ("agent", "serve", "--config", "neg.yaml", "--state-dir", "state"),
        2,
        "neg.yaml: line 1: cache_max_bytes: expected a number above zero,",
    ),
    (
        ("agent", "serve", "--config", "str.yaml", "--state-dir", "state"),
        2,
        "str.yaml: line 1: cache_max_bytes: expected a whole number, found",
    ),
    (
        ("agent", "serve", "--config", "emptyd.yaml", "--state-dir", "state"),
        2,
        "emptyd.yaml: line 1: devices: name at least one, or leave the key",
    ),
    (
        ("agent", "serve", "--config", "scalar.yaml", "--state-dir", "state"),
        2,
        "scalar.yaml: line 1: devices: expected a list, found 3",
    ),
    (
        ("agent", "serve", "--config", "label.yaml", "--state-dir", "state"),
        2,
        "label.yaml: line 1: devices[0]: labels: 'Arch' is no key; write",
    ),
    (("agent", "serve", "--driver", "nope"), 2, "agent.yaml: devices[0]: unknown driver 'nope'; did you"),
    (("agent", "bundle", "--board", "nope"), 2, "unknown board 'nope'; list them with: fleet targets; or"),
    (("agent", "join"), 2, "no join token was typed, nor is one on stdin"),
    (("agent", "join", "notatoken"), 2, "a join token is never an argument"),
    (
        ("agent", "serve", "--config", "tracker.yaml", "--state-dir", "state"),
        2,
        "cannot read tracker.yaml: line 1: tracker: 'nowhere'",
    ),
    (("agent", "serve", "--tracker", "lab", "--state-dir", "state"), 2, "cannot read the tracker's address 'lab'"),
    (("devices", "--tracker", "x:99999"), 2, "cannot read the tracker's address 'x:99999'"),
    (("devices", "--tracker", "x:0"), 2, "cannot read the tracker's address 'x:0'"),
    (("run", "bad.so", "--args", "float32[2]", "--input", "cut.npy"), 2, "cut.npy is not a .npy file of numbers"),
    (("run", "bad.so", "--args", "float32[2]", "--input", "huge.npy"), 2, "huge.npy does not fit into this machine's"),
    (
        ("run", "bad.so", "--args", "float32[99999999999999]", "--random", "1"),
        2,
        "argument 0 (float32[99999999999999]) cannot be made here: Unable to allocate",
    ),
    (("time", "bad.so", "--args", "9" * 20, *NO_TRACKER), 2, "a whole number has 64 bits at most"),
    (("build", "matmul-64", "-o", "pipe"), 2, "pipe is a device or a pipe, not a file; name a file"),
    (("export", "bad.onnx", "-o", "pipe"), 2, "pipe is a device or a pipe, not a file; name a file"),
    (("run", "bad.so", "--args", "1", "--output", "pipe"), 2, "pipe is a device or a pipe, not a file; name a file"),
    (("agent", "bundle", "--board", "rpi4-64", "-o", "pipe"), 2, "pipe is a device or a pipe, not a file; name a file"),
    (("library", "best", "--library", "pipe"), 2, "the library pipe is a device or a pipe; name a file"),
    (
        ("tracker", "serve", "--port", "0", "--state-dir", "state", "--config", "typo.yaml"),
        2,
        "typo.yaml: line 2: accounts: ci: unknown key 'weigth'; did you mean 'weight'?",
    ),
    (("tracker", "serve", "--port", "0", "--state-dir", "state", "--config", "folder"), 2, "cannot read folder: Is a"),
    (("tracker", "serve", "--port", "0", "--state-dir", "everybodys"), 2, "everybodys is everybody's, and keys need"),
    (("builder", "certs", "bad.so"), 2, "cannot write certificates to bad.so: File exists"),
    (("builder", "certs", "~nobody-of-this-name/certs"), 2, "there is no home directory of that name"),
    (("tune", "loop.onnx"), 2, "there is no model file loop.onnx"),
    *(
        (("agent", "serve", "--config", f"{name}.yaml", "--state-dir", "state"), 2, said)
        for name, said in AGENT_REFUSALS.items()
    ),
]


@pytest.fixture(autouse=True)
def _among_bad_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLEET_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.delenv("FLEET_TRACKER", raising=False)
    for name in ("bad.onnx", "bad.tflite", "bad.so", "bad.sqlite", "bad.fleet", "bad.bit"):
        Path(name).write_text("this is nothing of that kind, whatever its name says")
    Path("empty.onnx").touch()
    Path("bin.yaml").write_bytes(b"\xff\xfe\x00")
    Path("typo.yaml").write_text("accounts:\n  ci: {weigth: 3}\n")
    Path("folder").mkdir()
    os.mkfifo("pipe")
    Path("everybodys").mkdir()
    Path("everybodys").chmod(0o1777)
    Path("cut.npy").write_bytes(b"PK\x03\x04 and no more")
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000000,)}\n"
    Path("huge.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    Path("loop.onnx").symlink_to("loop.onnx")
    for name, content in AGENT_FILES.items():
        Path(f"{name}.yaml").write_text(content)


@pytest.mark.parametrize(("words", "code", "said"), REFUSED, ids=[" ".join(words) for words, _, _ in REFUSED])
def test_an_invalid_file_is_a_one_line_error(words: tuple[str, ...], code: int, said: str, tmp_path: Path) -> None:
    """The line names the problem and the file; no file is left in the working directory."""
    before = set(tmp_path.iterdir())

    done = CliRunner().invoke(app, words)

    assert done.exit_code == code, (done.output, done.exception)
    assert isinstance(done.exception, SystemExit), "what is not refused on purpose would be a traceback"
    (message,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert done.stderr.splitlines()[-1] == message
    assert said in message
    assert {path.name for path in set(tmp_path.iterdir()) - before} <= {"data"}


def test_a_data_directory_that_is_a_file_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file in place of the library's directory is reported as the caller's mistake."""
    monkeypatch.setenv("FLEET_DATA_DIR", "bad.onnx")

    done = CliRunner().invoke(app, ["library", "best"])

    assert (done.exit_code, done.stderr) == (
        2,
        "error: bad.onnx cannot be the library's directory: bad.onnx is a file\n",
    )


def test_a_missing_folder_is_reported_in_one_line(tmp_path: Path) -> None:
    """Somebody else removed the folder that the command was started in."""
    gone = tmp_path / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()

    done = CliRunner().invoke(app, ["build", "matmul-64"])

    os.chdir(tmp_path)
    assert (done.exit_code, done.stderr) == (
        2,
        "error: the folder that this was started in is gone; change to another\n",
    )


def test_a_state_directory_with_workers_of_another_kind_is_left_alone(tmp_path: Path) -> None:
    """Agents empty the folder `workers` of their state directory, so a directory with other files in it is refused."""
    source = tmp_path / "workers" / "bees.py"
    source.parent.mkdir()
    source.touch()

    done = CliRunner().invoke(app, ["agent", "serve", "--driver", "simulated", "--state-dir", str(tmp_path)])

    assert (done.exit_code, source.exists()) == (2, True), done.output
    assert "holds 'bees.py', which is no agent's; name another --state-dir" in done.stderr.splitlines()[-1]


def test_credentials_that_others_read_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are this account's mistake: "no tracker answers" would send people to look for one."""
    (tmp_path / "127.0.0.1:1.pem").write_text("a key")
    (tmp_path / "127.0.0.1:1.pem").chmod(0o644)
    monkeypatch.setenv("FLEET_CREDENTIALS_DIR", str(tmp_path))

    done = CliRunner().invoke(app, ["devices", *NO_TRACKER])

    assert done.exit_code == 2, done.output
    (message,) = done.stderr.splitlines()
    assert message.startswith("error: others can read or write ")
