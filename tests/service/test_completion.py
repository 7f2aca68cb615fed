"""Words completed in a real shell, with the names of a real fleet and a real library."""

from __future__ import annotations

import asyncio
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from fleet.aio import LocalFleet
from fleet.cli.completion import OF_JOBS
from fleet.cli.completion_values import parts_of_selectors
from fleet.cli.main import _COMMANDS, load_command
from fleet.library import Library, schema
from fleet.testing import eventually
from tests.contract.test_library_job_names import contents, make_with_job
from tests.programs import here

pytestmark = pytest.mark.slow

_DEVICES = """
devices:
  - {driver: simulated, name: sim-1, labels: {rack: "3"}}
  - {driver: simulated, name: sim-2, labels: {rack: "4", note: "two words"}}
"""
_BREAKS = re.compile(r"([=:])|\s+")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shell's folder, with a command `fleet`, a library with a job, and a model file."""
    made = tmp_path_factory.mktemp("completion")
    (made / "fleet").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m fleet "$@"\n')
    (made / "fleet").chmod(0o755)
    (made / "agent.yaml").write_text(_DEVICES)
    (made / "completion.bash").write_text(
        subprocess.run(
            [made / "fleet", "completion", "bash"], env=here(), check=True, capture_output=True, text=True
        ).stdout
    )
    with Library.open(made / "library.sqlite") as library:
        library.start_job(title="squeezenet")
    return made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def local(folder: Path) -> AsyncIterator[LocalFleet]:
    async with LocalFleet(agent_config=folder / "agent.yaml", state_dir=folder / "state") as running:
        yield running


async def completed(folder: Path, line: str, tracker: str, library: Path | None = None) -> list[str]:
    """Return bash's completions of a line's last word: replacements of the part behind its last break."""
    words = [word for word in _BREAKS.split(line) if word]
    if line.endswith(" "):
        words.append("")
    script = f"""
    source ./completion.bash
    [[ $(complete -p fleet) == *_fleet_completion* ]] || exit 3
    COMP_LINE={shlex.quote(line)} COMP_POINT={len(line)} COMP_WORDS=({shlex.join(words)}) COMP_CWORD={len(words) - 1}
    _fleet_completion ./fleet
    printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    environment = {**here(), "FLEET_TRACKER": tracker, "FLEET_LIBRARY": str(library or folder / "library.sqlite")}
    process = await asyncio.create_subprocess_exec(
        *("bash", "--norc", "-c", script),
        cwd=folder,
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    stdout, stderr = await process.communicate()
    assert (process.returncode, stderr) == (0, b"")
    return stdout.decode().split()


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("fleet dev", ["devices"]),
        ("fleet jobs sub", ["submit"]),
        ("fleet tune --prio", ["--priority"]),
        ("fleet devices show sim-", ["sim-1", "sim-2"]),
        ("fleet time kernel.so --on ra", ["rack="]),
        ("fleet time kernel.so --on rack=", ["3", "4"]),
        ("fleet time kernel.so --on kind=simulated,rack=4", ["4"]),
        ("fleet acquire note=", []),
        ("fleet targets show rpi4-", ["rpi4-64", "rpi4-32"]),
        ("fleet leases revoke ", []),
    ],
)
async def test_bash_completes(folder: Path, local: LocalFleet, line: str, offered: list[str]) -> None:
    """Commands, flags, devices, boards, and the keys and values of selectors, beyond the breaks that bash makes."""

    async def is_offered() -> bool:
        return offered == await completed(folder, line, local.address)

    await eventually(is_offered, 60)  # on a busy machine an answer may come too late, and then nothing is offered


@pytest.mark.asyncio(loop_scope="module")
async def test_bash_completes_jobs_of_the_library(folder: Path) -> None:
    """The first letters of a job's name after `fleet jobs show` complete it without a tracker."""
    with Library.open(folder / "library.sqlite") as library:
        name = library.jobs(1)[0].name.removeprefix("jobs/")

    async def is_offered() -> bool:
        return [name] == await completed(folder, f"fleet jobs show {name[:9]}", "127.0.0.1:1")

    await eventually(is_offered, 60)


@pytest.mark.asyncio(loop_scope="module")
async def test_a_key_has_no_effect_on_a_library(folder: Path, tmp_path: Path) -> None:
    """Completion leaves the library's bytes, version and orphaned jobs unchanged, and creates no file beside it."""
    path = tmp_path / "library.sqlite"
    name = make_with_job(str(path), schema.OLDEST_VERSION)
    before = contents(tmp_path)

    async def is_offered() -> bool:
        return [name.removeprefix("jobs/")] == await completed(folder, "fleet jobs show ", "127.0.0.1:1", library=path)

    await eventually(is_offered, 60)
    assert before == contents(tmp_path)


def test_job_names_are_completed_without_importing_the_database(tmp_path: Path) -> None:
    """Completion must be fast: importing the database's package alone takes a quarter of a second."""
    library = tmp_path / "library.sqlite"
    name = make_with_job(str(library), schema.SCHEMA_VERSION)
    code = """
import sys
from typer.completion import completion_init
from fleet.cli.completion import offer_jobs
completion_init()
try:
    offer_jobs()
except SystemExit:
    print(sorted({"sqlalchemy", "grpc", "numpy"} & set(sys.modules)))
"""
    asked = {"_FLEET_COMPLETE": "complete_fish", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    environment = here() | asked | {"_TYPER_COMPLETE_ARGS": "fleet jobs show ", "FLEET_LIBRARY": str(library)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True)

    assert [f"{name.removeprefix('jobs/')}\tsqueezenet", "[]"] == done.stdout.splitlines()


def test_all_commands_that_name_a_job_are_known() -> None:
    """A new command with a job as argument must be listed; it would otherwise be completed differently."""
    commands = {name: load_command(name) for name in _COMMANDS}
    leaves = {
        f"{name} {word}".strip(): leaf
        for name, command in commands.items()
        for word, leaf in getattr(command, "commands", {"": command}).items()
    }

    assert OF_JOBS == {
        words
        for words, leaf in leaves.items()
        if any((parameter.metavar or "").strip("[]") == "JOB" for parameter in leaf.params)
    }


@pytest.mark.asyncio(loop_scope="module")
async def test_a_silent_tracker_costs_a_moment_and_prints_no_message(folder: Path) -> None:
    """If a tracker accepts connections and never answers, completion offers and prints nothing, and the shell goes
    on.
    """
    with socket.create_server(("127.0.0.1", 0)) as silent:
        async with asyncio.timeout(60):
            offered = await completed(folder, "fleet devices show ", f"127.0.0.1:{silent.getsockname()[1]}")

    assert [] == offered


def test_a_selector_goes_on_with_keys_and_their_values() -> None:
    """Text before the last comma stays; a value that a selector cannot hold is left out."""
    labels: list[dict[str, str]] = [
        {"name": "a", "kind": "cpu", "model": "two words"},
        {"name": "b", "kind": "cuda"},
    ]

    assert ["kind=", "model=", "name="] == parts_of_selectors("", labels)
    assert ["name=a,kind=cpu", "name=a,kind=cuda"] == parts_of_selectors("name=a,kind=c", labels)
    assert ["kind!=cpu", "kind!=cuda"] == parts_of_selectors("kind!=", labels)
    assert ["kind>=cpu", "kind>=cuda"] == parts_of_selectors("kind>=", labels)
    assert [] == parts_of_selectors("model=", labels)
    assert [] == parts_of_selectors("kind=q", labels)
