"""Work that `fleet tune` and `fleet export` start before their modules are imported."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from cross.targets.target import host_target, parse_target
from fleet.cli.early_pools import likely_target

_SCRIPT = """
import json, os, signal, sys
from multiprocessing import forkserver
from fleet.cli.early_pools import start_pools

def server():
    return forkserver._forkserver._forkserver_pid

def start(arguments):
    start_pools(arguments)
    return server() is not None

def start_with(variable, value):
    os.environ[variable] = value
    try:
        return start(["tune", "m.onnx"])
    finally:
        del os.environ[variable]

settings = {"FLEET_TRACKER": "lab:9290", "FLEET_SELECTOR": "kind=cuda", "FLEET_CONFIG": "/nowhere/config.yaml"}
os.environ.pop("FLEET_TRACKER", None)
not_sure = [start(arguments) for arguments in json.loads(sys.argv[1])]
not_sure += [start_with(*setting) for setting in settings.items()]
is_started = start(json.loads(sys.argv[2]))
first = server()
start(["tune", "m.onnx"])
heavy = sorted({"tvm", "numpy", "typer", "grpc"} & set(sys.modules))
print(json.dumps([not_sure, is_started, server() == first, heavy]))
os.kill(first, signal.SIGKILL)
"""
_NOT_SURE = [
    [],
    ["status"],
    ["tune", "--help"],
    ["tune", "m.onnx", "--tracker", "lab:9290"],
    ["tune", "m.onnx", "--tracker=lab:9290"],
    ["tune", "m.onnx", "--dask", "tls://lab:8786"],
    ["tune", "m.onnx", "--on", "kind=cuda"],
    ["export", "--help"],
    ["export", "m.onnx", "--target", "cuda"],
]


def test_host_intrinsics_are_loaded_unless_another_target_is_named() -> None:
    """Loading its intrinsics for small integers takes each worker a tenth of a second; other targets do not use
    them.
    """
    assert host_target() == likely_target(["tune", "m.onnx", "--trials", "8"])
    assert parse_target('{"kind": "llvm"}') == likely_target(["tune", "m.onnx", "--target=rpi4-64"])


@pytest.mark.slow
@pytest.mark.parametrize("command", [["tune", "m.onnx", "--trials", "8"], ["export", "m.onnx", "--target", "rpi4-64"]])
def test_the_build_pools_server_starts_once_and_only_for_commands_that_are_sure_to_build_here(
    command: list[str],
) -> None:
    """It starts without heavy imports, or it would start no earlier than the pool itself does."""
    words = [sys.executable, "-c", _SCRIPT, json.dumps(_NOT_SURE), json.dumps(command)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)

    assert [[False] * (len(_NOT_SURE) + 3), True, True, []] == json.loads(done.stdout)
