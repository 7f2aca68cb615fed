"""Bad command lines: an exit code, one message that says what and which, no traceback, nothing left behind."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from fleet.cli.main import app

NO_TRACKER = ("--tracker", "127.0.0.1:1", "--connect-timeout", "0.1")

USAGE = [
    (("acquire", "cpu", "--ttl", "nan", "--", "true"), "nan is not in the range"),
    (("acquire", "cpu", "--ttl", "inf", "--", "true"), "inf is not in the range"),
    (("acquire", "cpu", "--ttl", "1e30", "--", "true"), "1e30 is not in the range"),
    (("acquire", "cpu", "--ttl", "0", "--", "true"), "0 is not above zero"),
    (("acquire", "cpu", "--ttl", "soon", "--", "true"), "'soon' is not a number"),
    (("acquire", "cpu", "--max", "-1", "--", "true"), "-1 is not in the range"),
    (("acquire", "cpu", "--wait-timeout", "-1", "--", "true"), "-1 is not in the range"),
    (("acquire", "cpu", "--wait-timeout", "nan", "--", "true"), "nan is not in the range"),
    (("acquire", "cpu", "--connect-timeout", "-3", "--", "true"), "-3 is not in the range"),
    (("acquire", "cpu", "--priority", "1e14", "--", "true"), "--priority"),
    (("acquire",), "selector"),
    (("time", "a.so", "--timeout", "1e20"), "1e20 is not in the range"),
    (("time", "a.so", "--timeout", "0"), "0 is not above zero"),
    (("time", "a.so", "--number", "1e11"), "--number"),
    (("time", "a.so", "--repeat", "0"), "--repeat"),
    (("run", "a.so", "--wait-timeout", "-1"), "-1 is not in the range"),
    (("program", "a.bit", "--timeout", "inf"), "inf is not in the range"),
    (("tune", "a.onnx", "--seed", "-1"), "--seed"),
    (("tune", "a.onnx", "--trials", "-1"), "--trials"),
    (("tune", "a.onnx", "--batch-size", "0"), "--batch-size"),
    (("tune", "a.onnx", "--wait-timeout", "x"), "'x' is not a number"),
    (("export", "a.onnx", "--seed", "-1"), "--seed"),
    (("status", "--interval", "0"), "--interval"),
    (("tracker", "serve", "--port", "70000"), "--port"),
    (("library", "best", "--top", "0"), "--top"),
    (("tune", "nowhere.onnx", "--top", "0"), "Invalid value for '--top'"),
    (("tune", "nowhere.onnx", "--top", "-1"), "Invalid value for '--top'"),
    (("tune", "nowhere.onnx", "--batch", "0"), "Invalid value for '--batch'"),
    (("tune", "nowhere.onnx", "--devices", "0"), "Invalid value for '--devices'"),
    (("tune", "nowhere.onnx", "--enough", "-1"), "Invalid value for '--enough'"),
    (("tune", "nowhere.onnx", "--workers", "0"), "Invalid value for '--workers'"),
    (("tune", "nowhere.onnx", "--deadline", "soon"), "Invalid value for '--deadline'"),
    (("tune", "nowhere.onnx", "--cooldown-ms", "-1"), "Invalid value for '--cooldown-ms'"),
    (
        ("tune", "nowhere.onnx", "--cool-below", "nan"),
        "No such option: --cool-below (Possible options: --cool-below-c, --cooldown-ms)",
    ),
    (("tune", "nowhere.onnx", "--nope"), "No such option: --nope (Possible options: --no-model, --shape, --top)"),
    (("tune", "nowhere.onnx", "second"), "Got unexpected extra argument(s) (second)"),
    (("jobs", "list", "--limit", "0"), "Invalid value for '--limit'"),
    (("jobs", "frobnicate"), "No such command 'frobnicate'"),
    (("library", "best", "--top", "-1"), "Invalid value for '--top'"),
    (("library", "import", "nowhere"), "Missing option '--device-model'"),
    (("library", "prune", "--keep", "-1"), "Invalid value for '--keep'"),
    (("library", "prune", "--days", "nan"), "Invalid value for '--days'"),
    (("library", "migrate"), "Missing option '--to'"),
    (("time", "bad.so", "--repeat", "-1"), "Invalid value for '--repeat'"),
    (("time", "bad.so", "--min-repeat-ms", "-1"), "Invalid value for '--min-repeat-ms'"),
    (("explain", "nowhere.onnx", "--bandwidth-gbs", "-1"), "Invalid value for '--bandwidth-gbs'"),
    (("explain", "nowhere.onnx", "--peak-gflops", "nan"), "Invalid value for '--peak-gflops'"),
    (("export", "nowhere.onnx", "--threads", "0"), "Invalid value for '--threads'"),
    (("export", "nowhere.onnx", "--affinity", "all"), "Invalid value for '--affinity'"),
    (("profile", "nowhere.onnx", "--runs", "0"), "Invalid value for '--runs'"),
    (("devices", "show"), "Missing argument 'name'"),
    (("devices", "--connect-timeout", "x"), "Invalid value for '--connect-timeout': 'x' is not a number of seconds"),
    (("leases", "revoke"), "Missing argument 'name'"),
    (("status", "--interval", "-1"), "Invalid value for '--interval'"),
    (("status", "--interval", "nan"), "Invalid value for '--interval'"),
    (("agent", "serve", "--port", "-1"), "Invalid value for '--port'"),
    (("agent", "bundle"), "Missing option '--board'"),
    (("agent", "deploy"), "Missing argument 'USER@BOARD'"),
    (("agent", "join"), "Missing argument 'token'"),
    (("tracker", "serve", "--port", "x"), "Invalid value for '--port'"),
    (("nonsense",), "nonsense"),
    (("--format", "xml", "devices"), "xml"),
    (("tune",), "Missing argument 'model'"),
    (("tune", "a.onnx", "--trials", "many"), "Invalid value for '--trials'"),
    (("tune", "a.onnx", "--trials", "1.5"), "Invalid value for '--trials'"),
    (("tune", "a.onnx", "--seed", "x"), "Invalid value for '--seed'"),
    (("tune", "a.onnx", "--tracker"), "--tracker"),
    (("tune", "--trials"), "--trials"),
    (("build",), "Missing argument"),
    (("build", "matmul-64", "a.so"), "Got unexpected extra argument"),
    (("build", "matmul-64", "--nope"), "No such option: --nope"),
    (("export",), "Missing argument"),
    (("export", "a.onnx", "--threads", "-1"), "Invalid value for '--threads'"),
    (("export", "a.onnx", "--threads", "two"), "Invalid value for '--threads'"),
    (("explain",), "Missing argument"),
    (("profile",), "Missing argument"),
    (("profile", "a.onnx", "--runs", "-1"), "Invalid value for '--runs'"),
    (("serve-check",), "Missing argument"),
    (("time",), "Missing argument"),
    (("time", "a.so", "--max-repeat", "-1"), "Invalid value for '--max-repeat'"),
    (("time", "a.so", "--spread-target", "-1"), "Invalid value for '--spread-target'"),
    (("time", "a.so", "--cooldown-ms", "x"), "Invalid value for '--cooldown-ms'"),
    (("time", "a.so", "--flush-bytes", "-1"), "Invalid value for '--flush-bytes'"),
    (("time", "a.so", "--timeout", "nan"), "nan is not in the range"),
    (("run",), "Missing argument"),
    (("run", "a.so", "--timeout", "-1"), "-1 is not in the range"),
    (("program",), "Missing argument"),
    (("acquire", "cpu", "--nope", "--", "true"), "No such option: --nope"),
    (("acquire", "cpu", "--ttl"), "--ttl"),
    (("devices", "--nope"), "No such option: --nope"),
    (("devices", "show", "a", "b"), "Got unexpected extra argument"),
    (("leases", "revoke", "a", "b"), "Got unexpected extra argument"),
    (("leases", "--nope"), "No such option: --nope"),
    (("request", "cancel"), "Missing argument"),
    (("request", "frobnicate"), "No such command 'frobnicate'"),
    (("jobs", "submit"), "Missing argument"),
    (("jobs", "show"), "Missing argument"),
    (("jobs", "cancel"), "Missing argument"),
    (("jobs", "list", "--limit", "all"), "Invalid value for '--limit'"),
    (("library", "frobnicate"), "No such command 'frobnicate'"),
    (("library", "export"), "Missing"),
    (("library", "migrate", "--to", "x"), "Invalid value for '--to'"),
    (("targets", "show"), "Missing argument"),
    (("tracker", "frobnicate"), "No such command 'frobnicate'"),
    (("tracker", "serve", "--port", "-1"), "Invalid value for '--port'"),
    (("tracker", "token", "create", "--ttl", "soon"), "'soon' is not a length of time"),
    (("tracker", "token", "create", "--role", "king"), "Invalid value for '--role'"),
    (("tracker", "token", "revoke"), "Missing argument"),
    (("tracker", "unbind"), "Missing argument"),
    (("login",), "Missing argument"),
    (("agent", "frobnicate"), "No such command 'frobnicate'"),
    (("agent", "serve", "--port", "70000"), "Invalid value for '--port'"),
    (("builder", "serve"), "Missing option '--dask'"),
    (("optimizer", "serve", "--jobs", "0"), "Invalid value for '--jobs'"),
    (("status", "--interval", "x"), "Invalid value for '--interval'"),
    (("up", "--port", "x"), "Invalid value for '--port'"),
    (("doctor", "now"), "Got unexpected extra argument"),
    (("audit", "-n", "0"), "-n"),
    (("--log-level", "loud", "devices"), "loud"),
    (("--nope",), "No such option: --nope"),
]

REFUSED = [
    (("tune", "nowhere.onnx"), 2, "nowhere.onnx"),
    (("tune", "nowhere.onnx", "--priority", "high"), 2, "there is no priority 'high'"),
    (("tune", "nowhere.onnx", "--priority", "99999999999999999999"), 2, "out of bounds"),
    (("tune", "nowhere.onnx", "--target-ms", "nan"), 2, "a target latency of nan ms"),
    (("tune", "nowhere.onnx", "--target-ms", "-1"), 2, "a target latency of -1 ms"),
    (("tune", "nowhere.onnx", "--trials", "99999999999999999999"), 2, "trials cannot be made"),
    (("tune", "nowhere.onnx", "--seed", "99999999999999999999"), 2, "out of bounds"),
    (("tune", "nowhere.onnx", "--deadline", "2020-01-01"), 2, "is past"),
    (("tune", "nowhere.onnx", "--strategy", "xgbrank"), 2, "did you mean 'xgb'"),
    (("tune", "nowhere.json"), 2, "nowhere.json"),
    (("tune", "matmul-0"), 2, "SIZE goes from 1"),
    (("tune", "matmul-64", "--shape", "a=1"), 2, "its shapes are in it"),
    (("tune", "no_such_module:f"), 2, "cannot import no_such_module"),
    (("tune", "nowhere.py:f"), 2, "nowhere.py"),
    (("tune", "model.onnx:conv"), 2, "is of no known type"),
    (("export", "nowhere.json"), 2, "is one program"),
    (("profile", "nowhere.json"), 2, "is one program"),
    (("jobs", "submit", "matmul-0"), 2, "SIZE goes from 1"),
    (("jobs", "submit", "nowhere.json"), 2, "nowhere.json"),
    (("build", "no_such_module:f"), 2, "cannot import no_such_module"),
    (("tune", "nowhere.onnx", "--dask", "tcp://10.0.0.5:8786"), 2, "takes TLS"),
    (("builder", "serve", "--dask", "tls://10.0.0.5:8786", "--dask-certs", "nowhere"), 2, "nowhere lacks ca.pem"),
    (("builder", "scheduler", "--host", "0.0.0.0"), 2, "takes TLS"),
    (("jobs", "submit", "nowhere.onnx"), 2, "nowhere.onnx"),
    (("jobs", "show", "none", "--library", "nowhere.sqlite"), 2, "nowhere.sqlite"),
    (("time", "nowhere.so"), 2, "nowhere.so"),
    (("run", "nowhere.so"), 2, "nowhere.so"),
    (("export", "nowhere.onnx"), 2, "nowhere.onnx"),
    (("explain", "nowhere.onnx"), 2, "nowhere.onnx"),
    (("program", "nowhere.bit"), 2, "nowhere.bit"),
    (("build", "nothing-known"), 2, "nothing-known"),
    (("build", "matmul-0"), 2, "SIZE goes from 1"),
    (("build", "matmul-99999999"), 2, "SIZE goes from 1"),
    (("build", "matmul-64", "-o", "nowhere/a.so"), 2, "there is no folder"),
    (("build", "matmul-64", "-o", "/proc/a.so"), 2, "cannot write /proc/a.so"),
    (("build", "matmul-64", "--target", "rpi9"), 2, "rpi9"),
    (("targets", "show", "rpi9"), 2, "rpi9"),
    (("library", "best", "--library", "nowhere.sqlite"), 2, "nowhere.sqlite"),
    (("jobs", "list", "--library", "nowhere.sqlite"), 2, "nowhere.sqlite"),
    (("up", "--state-dir", "/proc/here"), 2, "cannot keep state in /proc/here"),
    (("up", "--config", "nowhere.yaml"), 2, "nowhere.yaml"),
    (("agent", "serve", "--config", "nowhere.yaml"), 2, "nowhere.yaml"),
    (("agent", "serve", "--state-dir", "/proc/here", "--driver", "simulated"), 2, "cannot keep state in /proc/here"),
    (("devices", *NO_TRACKER), 1, "127.0.0.1:1"),
    (("leases", *NO_TRACKER), 1, "127.0.0.1:1"),
    (("status", "--once", *NO_TRACKER), 1, "127.0.0.1:1"),
    (("acquire", "cpu", *NO_TRACKER, "--", "true"), 1, "127.0.0.1:1"),
    (("devices", "--tracker", "no address"), 2, "no address"),
    (("acquire", "=!", *NO_TRACKER, "--", "true"), 2, "=!"),
    (("login", "no-token"), 2, "this is no join token"),
    (("agent", "join", "no-token"), 2, "this is no join token"),
    (("report", "--library", "nowhere.sqlite"), 2, "nowhere.sqlite"),
    (("serve-check", "nowhere.fleet"), 2, "nowhere.fleet"),
    (("tune", "nowhere.onnx", "--shape", "x"), 2, "--shape 'x'"),
    (("explain", "nowhere.onnx", "--target", "rpi9"), 2, "rpi9"),
    (("export", "nowhere.onnx", "--target", "rpi9"), 2, "rpi9"),
    (("time", "nowhere.so", "--on", "=!"), 2, "nowhere.so"),
    (("request", "list", *NO_TRACKER), 1, "127.0.0.1:1"),
    (("tracker", "token", "create", *NO_TRACKER[:2]), 2, "127.0.0.1:1"),
    (("audit", *NO_TRACKER[:2]), 2, "127.0.0.1:1"),
    (("jobs", "submit", "nowhere.onnx", "--priority", "high"), 2, "high"),
]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLEET_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.delenv("FLEET_TRACKER", raising=False)


BAD = [*((words, 2, said) for words, said in USAGE), *REFUSED]


@pytest.mark.slow
def test_a_bad_command_line_gets_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    """Exit code, one line on stderr that says what, which and what to do, nothing on stdout, no file."""
    for words, code, said in BAD:
        done = CliRunner().invoke(app, words)

        assert done.exit_code == code, (words, done.output, done.exception)
        assert isinstance(done.exception, SystemExit), (words, "what is not refused on purpose would be a traceback")
        *progress, message = done.stderr.splitlines()
        assert message.startswith("error: "), (words, done.stderr)
        assert said in message, (words, message)
        assert [line for line in progress if "rror" in line or "Traceback" in line] == [], words
        assert done.stdout == "", words
        assert [path for path in tmp_path.iterdir() if path.name != "data"] == [], words
