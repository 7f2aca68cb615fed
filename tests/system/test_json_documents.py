"""Every command's --json against the shape that the reference shows, with a real fleet."""

from __future__ import annotations

import asyncio
import json
import platform
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from queue import Queue
from typing import Any, get_type_hints

import pytest
from google.protobuf import descriptor_pool
from google.protobuf.duration_pb2 import Duration
from pydantic import ConfigDict, TypeAdapter
from typer.testing import CliRunner
from typing_extensions import is_typeddict

from fleet.cli.json_out import SCHEMA
from fleet.cli.json_schema import BY_COMMAND, MODULES
from fleet.cli.json_schema.common import Message
from fleet.cli.main import app, load_command
from fleet.client.sync import connect
from fleet.identity.certificates import make_key
from fleet.library.schema import SCHEMA_VERSION
from fleet.testing import eventually_sync
from fleet.tracker.journal.file import Journal
from fleet.wire.approval import ask_to_join
from fleet.wire.joining import shown_authority
from tests.registries import Registry, served
from tests.system.fleet_processes import Fleet, running_fleet

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

_UNTESTED = {
    "builder list": "tests/system/test_builders.py has a cluster",
    "request cancel": "tests/service/test_cli_processes.py has somebody who waits",
    "agent deploy": "tests/system/test_agent_deploy.py has a board",
    "agent bundle": "tests/unit/test_bundle.py makes bundles, which take a minute",
    "program": "tests/system/test_program_cli.py has a fabric",
    "poison forget": "tests/service/test_poison.py has poison",
    "jobs watch": "tests/system/test_optimizers.py runs an optimizer",
}

for _shape in [value for module in MODULES for value in vars(module).values()]:
    if is_typeddict(_shape):
        _shape.__pydantic_config__ = ConfigDict(extra="forbid", strict=True)


@pytest.fixture(scope="module")
def fleet(folder: Path) -> Iterator[Fleet]:
    with running_fleet(folder, "devices: [{driver: cpu, name: bench, facts: {rack: {unit: 3}}}]\n") as found:
        yield found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("documents")


@pytest.fixture(scope="module")
def documents(fleet: Fleet, folder: Path, two_products: Path) -> dict[str, dict[str, Any]]:
    """Return the JSON output of each command, by command."""
    at, library = ("--tracker", fleet.address), ("--library", str(folder / "library.sqlite"))
    kernel, package = str(folder / "kernel.so"), str(folder / "two.fleet")
    found: dict[str, dict[str, Any]] = {}

    def run(command: str, *words: str, stdin: str = "") -> dict[str, Any]:
        done = CliRunner().invoke(app, [*command.split(), *words, "--json"], input=stdin)
        assert done.exit_code in (0, 1), (command, done.output, done.exception)
        found[command] = json.loads(done.stdout)
        return found[command]

    run("build", "matmul-32", "-o", kernel, *library)
    run("time", kernel, *at)
    run("run", kernel, "--random", "0", *at)
    tuned = run("tune", str(two_products), *at, *library, "--trials", "2", "--batch", "2", "--top", "1")
    run("profile", str(two_products), "--on", "cpu", *at, *library, "--runs", "3", "--no-alone")
    run("export", str(two_products), "-o", package, *library)
    run("serve-check", package, "--on", "cpu", *at)
    run("explain", str(two_products))
    run("workloads extract", str(two_products), "-o", f"{package}.yaml")
    (folder / "rules.yaml").write_text("- {match: '*', set: {M: [v, v * 2], N: 7}}")
    run("workloads mutate", f"{package}.yaml", str(folder / "rules.yaml"), "-o", f"{package}.more.yaml")
    run("library best", *library)
    pack = str(folder / "cpu.pack")
    run("pack make", pack, "--device-model", tuned["device_model"], *library)
    run("pack show", pack)
    with served(Registry()) as host:
        run("pack push", pack, f"oci://{host}/lab/pi4:1")
    run("pack add", pack, "--allow-unsigned")
    run("pack list")
    run("pack verify")
    run("pack update", "--allow-unsigned")
    run("pack remove", "cpu")
    run("library coverage", str(two_products), "--on", "cpu", *at, *library)
    run("library stale", *library, "--rebuild")
    run("library refresh", "--on", "cpu", *at, *library, "--minutes", "0", "--workers", "1")
    run("jobs list", *library)
    run("jobs show", tuned["job"], *library)
    run("jobs why", tuned["job"], *library)
    run("report", tuned["job"], *library)
    run("report --library", *library)
    run("jobs submit", str(two_products), *library)
    run("optimizer list", *library)
    with_lease = CliRunner().invoke(app, ["status", *at, "--json"])
    found["status"] = json.loads(with_lease.stdout)
    run("devices", *at)
    run("devices show", "bench", *at)
    run("leases", *at)
    run("usage", *at)
    with connect(fleet.address) as client, client.acquire("cpu") as device:
        waiting = subprocess.Popen([sys.executable, "-m", "fleet", "acquire", "cpu", *at, "--", "true"])
        found["request list"] = eventually_sync(lambda: (shown := run("request list", *at))["requests"] and shown)
        run("request why", found["request list"]["requests"][0]["request_id"], *at)
        waiting.terminate()
        waiting.wait(30)
        run("leases revoke", device.lease.name, *at)
    acquired = CliRunner().invoke(app, ["acquire", "cpu", *at, "--json", "--", "sh", "-c", "echo said; exit 0"])
    found["acquire"] = json.loads(acquired.stdout)
    booking = run("book", "cpu", "--from", "2h", "--for", "1h", *at)["bookings"][0]["name"]
    run("bookings", *at)
    run("bookings cancel", booking, *at)
    run("poison list", *at)
    for word in ("drain", "maintain", "quarantine", "retire", "resume"):
        run(f"devices {word}", "bench", "--reason", "fan", *at)
    run("devices reset-epochs", "bench", *at)
    run("library export", str(folder / "records"), *library)
    run("library import", str(folder / "records"), "--device-model", "a board", *library)
    run("library migrate", "--to", str(SCHEMA_VERSION), *library)
    run("library snapshots", *library)
    run("library prune", *library, "--dry-run")
    run("tracker token create", "--role", "user", *at)
    run("tracker token list", *at)
    spare = run("tracker token create", "--role", "user", *at)
    run("tracker token revoke", spare["token_id"], *at)
    token = run("tracker token create", "--role", "agent", *at)["token"]
    run("agent join", *at, "--state-dir", str(folder / "agent"), stdin=token)
    standby = run("tracker token create", "--role", "standby", *at)["token"]
    run("tracker join", *at, "--state-dir", str(folder / "standby"), stdin=standby)
    run("tracker unbind", "bench", *at)
    with ThreadPoolExecutor() as boards:
        for word in ("approve", "refuse"):
            codes: Queue[str] = Queue()
            boards.submit(asyncio.run, ask(fleet.address, codes.put))
            code = codes.get(timeout=60)
            eventually_sync(lambda: run("agent pending", *at)["agents"])
            run(f"agent {word}", code, *at)
    run("discover", "--for", "0.5")
    at_keys = ("--state-dir", str(folder / "gateway"))
    made = run("gateway key create", "--account", "team-a", *at_keys)
    run("gateway key list", *at_keys)
    run("gateway key revoke", made["key_id"], *at_keys)
    run("login", *at, stdin=run("tracker token create", "--role", "admin", *at)["token"])
    journal = Journal(folder / "journal.sqlite")
    journal.open(0.0)
    journal.close()
    run("tracker fsck", "--state-dir", str(folder))
    run("tracker backup", str(folder / "backup.tar"), "--state-dir", str(folder / "tracker"))
    run("tracker restore", str(folder / "backup.tar"), "--state-dir", str(folder / "restored"))
    run("tracker members", *at)
    run("tracker reload", *at)
    run("tracker revoke", "0" * 40, *at)
    run("audit", *at)
    run("config show")
    run("targets")
    run("targets show", "rpi4-64")
    run("doctor", "--quick")
    return found


def test_a_tuned_operator_has_an_exact_record(documents: dict[str, dict[str, Any]]) -> None:
    """Coverage takes target and device model from the device that the model was tuned on."""
    found = documents["library coverage"]

    assert found["device_model"] == documents["tune"]["device_model"]
    assert {one["coverage"]: one["operators"] for one in found["shares"]}["exact"] >= 1
    assert sum(one["operations"] for one in found["shares"]) == pytest.approx(1)


async def ask(address: str, on_code: Callable[[str], None]) -> None:
    """Ask to join as an agent of another account."""
    authority_pem = await shown_authority(address)
    await ask_to_join(address, authority_pem, name="board", key_pem=make_key(), on_code=on_code)


@pytest.mark.parametrize("command", sorted(BY_COMMAND.keys() - _UNTESTED))
def test_json_output_matches_the_reference(documents: dict[str, dict[str, Any]], command: str) -> None:
    """Every key, its type, and no other; the version comes first."""
    document = dict(documents[command])

    assert next(iter(document)) == "schema"
    assert document.pop("schema") == SCHEMA
    if command == "devices show":
        own = {name: document.pop(name) for name in _fields(Message("Device"))}
        assert own["inventory"]["kind"] == "cpu"
    TypeAdapter(BY_COMMAND[command]).validate_python(document)
    _check_messages(BY_COMMAND[command], document)


def test_every_command_with_data_is_in_the_reference() -> None:
    """Every command with --json has a shape in the reference, or is a verb of jobs with the output of `jobs submit`."""
    from fleet.cli.main import _COMMANDS

    with_data = {name for top in _COMMANDS for name in _with_json(top, load_command(top))}

    assert with_data - BY_COMMAND.keys() == {"devices list", "jobs cancel", "jobs resume", "jobs revert"}
    assert BY_COMMAND.keys() - with_data == {"report --library"}


def test_the_owners_facts_are_in_the_provenance(documents: dict[str, dict[str, Any]]) -> None:
    """The provenance has the facts as written in agent.yaml."""
    assert documents["time"]["provenance"]["facts"] == {"rack": {"unit": 3}}


def test_every_measured_record_has_an_environment(documents: dict[str, dict[str, Any]], folder: Path) -> None:
    """Records of a moment ago are fresh: the board still has the software that it measured with."""
    with closing(sqlite3.connect(folder / "library.sqlite")) as database:
        (artifacts,) = database.execute("SELECT count(*) FROM record_artifacts").fetchone()
        environments = [json.loads(facts) for (facts,) in database.execute("SELECT facts FROM environments")]
    found = documents["library stale"]

    assert 0 < artifacts <= found["all"]["records"]
    assert found["all"]["device_sec"] > 0
    assert found["unknown_environments"] == 0
    assert (found["reasons"]["code"]["records"], found["unknown_code"]) == (0, 0)
    assert {one["verdict"] for one in documents["library refresh"]["workloads"]} == {"kept"}
    assert [found["reasons"][reason]["records"] for reason in ("environment", "age")] == [0, 0]
    assert {(one["kernel"], one["owner"]["rack"]["unit"]) for one in environments} == {(platform.release(), 3)}


def _with_json(name: str, command: Any) -> Iterator[str]:
    is_run = not getattr(command, "commands", {}) or command.invoke_without_command
    if is_run and any("--json" in option.opts for option in command.params):
        yield name
    for word, part in getattr(command, "commands", {}).items():
        yield from _with_json(f"{name} {word}", part)


def _fields(message: Message) -> set[str]:
    fields = descriptor_pool.Default().FindMessageTypeByName(f"fleet.v1.{message.name}").fields
    return {_key(field) for field in fields}


def _key(field: Any) -> str:
    is_duration = field.message_type and field.message_type.full_name == Duration.DESCRIPTOR.full_name
    return f"{field.name}_sec" if is_duration else re.sub("_(us|ms)$", "_sec", field.name)


def _check_messages(shape: type, document: dict[str, Any]) -> None:
    """Objects that are messages of the protos have all of their fields."""
    for name, hint in get_type_hints(shape, include_extras=True).items():
        (part,) = getattr(hint, "__args__", (None,))[:1]
        for message in getattr(part, "__metadata__", ()):
            found = document[name] if isinstance(document[name], list) else [document[name]]
            assert [sorted(item) for item in found if item and item.keys() != _fields(message)] == []
