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
    (("jobs", "frobnicate"), "No such command 'frobnicate'."),
    (("library", "best", "--top", "-1"), "Invalid value for '--top'"),
    (("library", "import", "nowhere"), "Missing option '--device-model'."),
    (("library", "prune", "--keep", "-1"), "Invalid value for '--keep'"),
    (("library", "prune", "--days", "nan"), "Invalid value for '--days'"),
    (("library", "migrate"), "Missing option '--to'."),
    (("time", "bad.so", "--repeat", "-1"), "Invalid value for '--repeat'"),
    (("time", "bad.so", "--min-repeat-ms", "-1"), "Invalid value for '--min-repeat-ms'"),
    (("explain", "nowhere.onnx", "--bandwidth-gbs", "-1"), "Invalid value for '--bandwidth-gbs'"),
    (("explain", "nowhere.onnx", "--peak-gflops", "nan"), "Invalid value for '--peak-gflops'"),
    (("export", "nowhere.onnx", "--threads", "0"), "Invalid value for '--threads'"),
    (("export", "nowhere.onnx", "--affinity", "all"), "Invalid value for '--affinity'"),
    (("profile", "nowhere.onnx", "--runs", "0"), "Invalid value for '--runs'"),
    (("devices", "show"), "Missing argument 'name'."),
    (("devices", "--connect-timeout", "x"), "Invalid value for '--connect-timeout': 'x' is not a number of seconds"),
    (("leases", "revoke"), "Missing argument 'name'."),
    (("status", "--interval", "-1"), "Invalid value for '--interval'"),
    (("status", "--interval", "nan"), "Invalid value for '--interval'"),
    (("agent", "serve", "--port", "-1"), "Invalid value for '--port'"),
    (("agent", "bundle"), "Missing option '--board'."),
    (("agent", "deploy"), "Missing argument 'USER@BOARD'."),
    (("agent", "join"), "Missing argument 'token'."),
    (("tracker", "serve", "--port", "x"), "Invalid value for '--port'"),
    (("nonsense",), "nonsense"),
    (("--format", "xml", "devices"), "xml"),
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
]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLEET_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.delenv("FLEET_TRACKER", raising=False)


def test_what_cannot_be_read_is_a_usage_error(tmp_path: Path) -> None:
    """Exit code 2, before anything is asked or started; the option and what was given are named."""
    for words, said in USAGE:
        done = CliRunner(env={"COLUMNS": "200"}).invoke(app, words)
        assert done.exit_code == 2, (words, done.output)
        assert said in done.output, (words, done.output)
    assert [] == list(tmp_path.iterdir())


@pytest.mark.parametrize(("words", "code", "said"), REFUSED, ids=[" ".join(words) for words, _, _ in REFUSED])
def test_what_cannot_be_done_is_refused_in_one_line(
    words: tuple[str, ...], code: int, said: str, tmp_path: Path
) -> None:
    """The line says what, which and what to do; nothing is left where the command was given."""
    done = CliRunner().invoke(app, words)

    assert done.exit_code == code, (done.output, done.exception)
    assert isinstance(done.exception, SystemExit), "what is not refused on purpose would be a traceback"
    (message,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert said in message
    assert not [path for path in tmp_path.iterdir() if path.name != "data"]
