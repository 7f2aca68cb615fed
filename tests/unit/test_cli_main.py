"""The command line's frame: lazy imports, and errors in one line."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.table import Table
from rich.text import Text
from typer.testing import CliRunner

import fleet
from cross.compile.cache import DEFAULT_MAX_BYTES
from fleet.cli.activity import working
from fleet.cli.main import _COMMANDS, app, load_command
from fleet.cli.options import DEFAULT_CACHE_GB
from fleet.cli.tables import line, make_console, make_table

PUBLIC = [
    "Artifact",
    "CompiledModel",
    "Device",
    "ErrorKind",
    "Evaluator",
    "Fleet",
    "FleetError",
    "Measurement",
    "ModuleKind",
    "RemoteModule",
    "Report",
    "TensorSpec",
    "Trial",
    "TunedJob",
    "aio",
    "compile",
    "connect",
    "design_space",
    "errors",
    "held_device",
    "pipeline",
    "report",
    "runtime",
    "schedule",
    "tir_pipeline",
    "tune",
]
HEAVY = {"tvm", "tvm_ffi", "numpy", "sqlalchemy", "textual", "zeroconf", "jinja2", "starlette", "uvicorn"}


def test_the_public_names_are_these() -> None:
    """Public names are added or removed only on purpose, and each can be used."""
    assert fleet.__all__ == PUBLIC
    assert all(getattr(fleet, name) is not None for name in PUBLIC)
    assert not hasattr(fleet, "nonsense")


_INTERRUPTED = """
import os, signal, sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
from fleet.__main__ import main
main()
"""


def test_ctrl_c_while_the_command_is_imported_is_quiet() -> None:
    """The exit code is 130 as at any other moment, without an import's traceback."""
    done = subprocess.run([sys.executable, "-c", _INTERRUPTED, "targets"], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_piped_output_is_not_truncated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other programs read whole cells, unless $COLUMNS sets a width."""
    monkeypatch.delenv("COLUMNS", raising=False)
    table = make_table("why", left=frozenset({"why"}))
    table.add_row(line("w" * 300))
    piped, narrow = StringIO(), StringIO()

    with contextlib.redirect_stdout(piped):
        make_console(is_wide=False).print(table)
    monkeypatch.setenv("COLUMNS", "40")
    with contextlib.redirect_stdout(narrow):
        make_console(is_wide=False).print(table)

    assert "w" * 300 in piped.getvalue()
    assert max(map(len, narrow.getvalue().splitlines())) <= 40


def test_words_in_brackets_are_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of inputs, devices and files may contain brackets, which are not markup."""
    monkeypatch.delenv("COLUMNS", raising=False)
    shown = Table("[red]", title="main[/b](x[1])")
    shown.add_row("A PC [rev 2]")
    out = StringIO()

    with contextlib.redirect_stdout(out), working("building [/x]"):
        make_console(is_wide=False).print(shown)

    assert all(word in out.getvalue() for word in ("[red]", "main[/b](x[1])", "A PC [rev 2]"))


@pytest.mark.slow
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_take_no_resources(closed: str) -> None:
    """Programs started in the background may have such streams."""
    script = f'exec "$0" -m fleet targets show rpi4-64 {closed}'

    done = subprocess.run(["sh", "-c", script, sys.executable], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
    assert ("rpi4-64" in done.stdout) == (">&-" not in closed.replace("2>&-", ""))


def test_the_package_is_the_command() -> None:
    """`python -m fleet` works if the script is not on the path."""
    done = subprocess.run([sys.executable, "-m", "fleet", "--version"], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


@pytest.mark.parametrize(
    "code",
    [
        "import fleet",
        "import fleet; fleet.connect, fleet.aio.connect",
        "import fleet.cli.main",
        "import fleet.cli.status, fleet.cli.devices, fleet.cli.leases",
        "import fleet.cli.acquire, fleet.cli.up, fleet.cli.doctor, fleet.cli.web",
    ],
)
@pytest.mark.slow
def test_fleet_status_imports_no_heavy_packages(code: str) -> None:
    """Client, dashboard and command line start without TVM, numpy, SQLAlchemy, and a tracker's own packages."""
    program = f"import sys\n{code}\nimport json; print(json.dumps(sorted(m.partition('.')[0] for m in sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert set() == HEAVY & set(json.loads(done.stdout))


def test_the_command_line_tells_the_size_of_a_build_cache_as_it_is() -> None:
    """The figure stands twice, so that commands which cache nothing do not load the cache."""
    assert DEFAULT_MAX_BYTES == DEFAULT_CACHE_GB * 1e9


def test_help_names_every_command() -> None:
    """The first help shows all commands without importing any."""
    result = CliRunner().invoke(app, ["--help"])
    assert result.exit_code == 0
    assert all(name in result.output for name in _COMMANDS)


def test_the_overview_fits_the_smallest_terminal() -> None:
    """The overview has 24 lines of 80 columns, including the prompt's line."""
    lines = CliRunner().invoke(app, ["--help"]).output.splitlines()
    assert len(lines) < 24
    assert max(map(len, lines)) < 80


def test_help_and_version_are_words_as_well() -> None:
    """Other tools have these forms: `fleet help jobs submit`, `fleet version`."""
    shown = CliRunner().invoke(app, ["help", "jobs", "submit"])
    assert (shown.exit_code, "--trials" in shown.output) == (0, True)
    assert CliRunner().invoke(app, ["help"]).output == CliRunner().invoke(app, ["--help"]).output
    assert CliRunner().invoke(app, ["version"]).output == CliRunner().invoke(app, ["--version"]).output
    unknown = CliRunner().invoke(app, ["help", "nope"])
    assert (unknown.exit_code, unknown.stderr) == (2, "error: No such command 'nope'; see: fleet -h\n")


@pytest.mark.slow
@pytest.mark.parametrize("words", [["--help"], ["version"], ["help", "tune"], ["targets"]])
def test_a_full_disk_behind_stdout_is_an_error_in_one_line(words: list[str]) -> None:
    """Help texts are written before a command runs; the rest is flushed after it."""
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "fleet", *words], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )

    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "No space left on device" in done.stderr


@pytest.mark.slow
def test_too_little_memory_for_the_imports_is_an_error_in_one_line() -> None:
    """Under `ulimit -v`, no failing import prints a traceback."""
    limited = f"ulimit -v 400000; exec {sys.executable} -m fleet build matmul-64"
    done = subprocess.run(["sh", "-c", limited], capture_output=True, text=True, check=False)

    assert done.returncode != 0
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", sorted(_COMMANDS))
def test_every_help_teaches_by_an_example(name: str) -> None:
    """The help of each command that does something holds an example of its use."""
    without = [path for path, command in _leaves(name, load_command(name)) if "Example: fleet" not in command.help]
    assert without == []


@pytest.mark.parametrize("name", sorted(_COMMANDS))
def test_values_are_named_in_words(name: str) -> None:
    """A programming type, as in "--trials <int range>", does not help a user to choose a value."""
    for path, command in _leaves(name, load_command(name)):
        context = typer.Context(command)
        shown = [param.make_metavar(context) for param in command.params if param.param_type_name == "option"]
        odd = [
            word
            for word in shown
            if word.startswith(("<int", "<float", "<str", "<path", "<bool", "<%", "<whole", "<number"))
        ]
        assert odd == [], path


def test_submit_help_omits_options_of_local_builds() -> None:
    """Options of `fleet tune` that choose the place of builds are up to the optimizer; "submit" does not offer them."""
    shown = CliRunner().invoke(app, ["jobs", "submit", "--help"]).output
    assert "--trials" in shown
    assert [flag for flag in ("--dask", "--workers", "--build-cache", "--snapshots", "--wide") if flag in shown] == []
    assert "--workers" in CliRunner().invoke(app, ["tune", "--help"]).output


def _leaves(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    """Yield the subcommands below one that perform an action, with the words that call them."""
    below = {name: sub for name, sub in getattr(command, "commands", {}).items() if not sub.hidden}
    if not below:
        yield path, command
    for name, sub in below.items():
        yield from _leaves(f"{path} {name}", sub)


@pytest.mark.parametrize("name", sorted(_COMMANDS))
def test_no_help_is_eaten_by_markup(name: str) -> None:
    """Text in square brackets in a help text would vanish on a terminal."""
    command = load_command(name)
    for shown in (command, *getattr(command, "commands", {}).values()):
        texts = [shown.help or "", *(getattr(param, "help", None) or "" for param in shown.params)]
        assert [Text.from_markup(text).plain for text in texts] == texts


@pytest.mark.parametrize("name", sorted(_COMMANDS))
def test_paragraphs_of_help_flow(name: str) -> None:
    """No help carries the line ends of its source."""
    command = load_command(name)
    for shown in (command, *getattr(command, "commands", {}).values()):
        assert not [part for part in (shown.help or "").split("\n\n") if "\n" in part]


@pytest.mark.parametrize(
    ("arguments", "exit_code", "message"),
    [
        (["stauts"], 2, "Did you mean"),
        (["status", "--nonsense"], 2, "No such option"),
        (["--tracker", "no address", "status"], 2, "write it like 127.0.0.1:9290"),
        (["--tracker", "127.0.0.1:9", "status", "--connect-timeout", "0.1"], 1, "no tracker answers at 127.0.0.1:9"),
        (["acquire", "cpu"], 2, "COMMAND"),
    ],
)
def test_errors_are_one_message_and_an_exit_code(arguments: list[str], exit_code: int, message: str) -> None:
    """Bad usage and absent trackers end in a message, never in a traceback."""
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == exit_code
    assert message.lower() in result.output.lower()
    assert "Traceback" not in result.output


def test_flushing_is_called_alike_on_the_command_line_and_in_python() -> None:
    """Flags and fields for flushing share their names."""
    fields = {name for name in fleet.Evaluator.__dataclass_fields__ if "flush" in name}
    flags = {
        command: {flag for param in load_command(command).params for flag in param.opts if "flush" in flag}
        for command in ("time", "tune")
    }

    assert {"time": {"--flush-bytes", "--flush-cache"}, "tune": {"--flush-cache"}} == flags
    assert {"flush_bytes", "flush_cache"} == fields


def test_the_version_is_the_distributions() -> None:
    """`fleet --version` needs no command."""
    result = CliRunner().invoke(app, ["--version"])
    assert result.exit_code == 0
    assert result.output.startswith("tvm-fleet ")
