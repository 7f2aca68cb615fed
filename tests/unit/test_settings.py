"""One order for all settings: flag, environment, file, default."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import fleet
from fleet.base.settings import KEYS, Setting, Source, look_up
from fleet.cli.main import app
from fleet.cli.stored import naming
from fleet.errors import ConfigError, TrackerUnavailable
from fleet.library import Library

_VALUES = {
    "tracker": ("flag:1", "environment:1", "file:1"),
    "library": ("/flag", "/environment", "/file"),
    "selector": ("kind=flag", "kind=environment", "kind=file"),
    "format": ("json", "json", "json"),
}
_SOURCES = (Source.FLAG, Source.ENVIRONMENT, Source.FILE)


@pytest.fixture
def file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Path of the settings file, which does not exist yet."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for key in KEYS:
        monkeypatch.delenv(f"FLEET_{key.upper()}", raising=False)
    path = tmp_path / "tvm-fleet/config.yaml"
    path.parent.mkdir()
    return path


@pytest.mark.parametrize("key", KEYS)
def test_the_first_of_flag_environment_file_and_default_counts(
    file: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    """The order holds for every key and every combination of given values."""
    for given in itertools.product([False, True], repeat=3):
        flag, variable, line = (value if there else None for value, there in zip(_VALUES[key], given, strict=True))
        monkeypatch.delenv(f"FLEET_{key.upper()}", raising=False)
        if variable is not None:
            monkeypatch.setenv(f"FLEET_{key.upper()}", variable)
        file.write_text(f"{key}: {line}\n" if line is not None else "")

        found = look_up(key, flag)

        expected = next((source for source, there in zip(_SOURCES, given, strict=True) if there), Source.DEFAULT)
        assert found.source is expected
        assert found.asked == next((value for value in (flag, variable, line) if value is not None), None)


def test_an_empty_value_is_the_default_whatever_stands_below(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user with a tracker in the file can still tune on this machine."""
    file.write_text("tracker: lab:9290\n")

    assert Setting(key="tracker", value="127.0.0.1:9290", source=Source.DEFAULT) == look_up("tracker", "")
    monkeypatch.setenv("FLEET_TRACKER", "")
    assert look_up("tracker").asked is None


def test_a_librarys_path_is_seen_from_the_file(file: Path) -> None:
    """A relative path starts at the settings file, not at the working directory; ~ is home."""
    file.write_text("library: lib.sqlite\n")
    assert str(file.parent / "lib.sqlite") == look_up("library").value

    file.write_text("library: ~/lib.sqlite\n")
    assert str(Path.home() / "lib.sqlite") == look_up("library").value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("trackr: lab:9290", "{file}: line 1: unknown key 'trackr'; did you mean 'tracker'?"),
        ("tracker: 9290", "{file}: line 1: tracker: expected text, found 9290"),
        (
            "# mine\ntracker: lab",
            "cannot read the tracker's address in {file}: line 2: 'lab'; write it like 127.0.0.1:9290",
        ),
        ("library: ~nobody-here/l", "{file}: line 1: ~nobody-here/l: there is no home directory of that name"),
        ("format: jsn", "{file}: line 1: format: there is no 'jsn'; did you mean 'json'?"),
        ("- tracker", "{file}: expected 'key: value' lines, found a list"),
        ("format: table\nselector: kind==", "{file}: line 2: selector 'kind==', character 7: a value is missing"),
    ],
)
def test_a_wrong_file_is_refused_in_one_sentence(file: Path, text: str, message: str) -> None:
    """The error names the file, the line and the nearest key; the exit code is 2, as for any configuration."""
    file.write_text(text)

    done = CliRunner().invoke(app, ["config", "show"])

    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {message.format(file=file)}")
    assert len(done.stderr.splitlines()) == 1


def test_a_file_that_was_named_must_be_there(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default file may be missing."""
    assert look_up("tracker").source is Source.DEFAULT

    monkeypatch.setenv("FLEET_CONFIG", str(file))
    with pytest.raises(ConfigError, match="No such file"):
        look_up("tracker")


def test_config_show_tells_where_each_value_came_from(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values and sources are shown as a table and as data, with passwords masked."""
    file.write_text("library: postgresql://me:s3cret@db/fleet\nformat: json\n")
    monkeypatch.setenv("FLEET_SELECTOR", "kind=cuda")

    found = json.loads(CliRunner().invoke(app, ["config", "show", "--tracker", "lab:1"]).stdout)["settings"]
    table = CliRunner().invoke(app, ["--format", "table", "config", "show"], env={"COLUMNS": "300"}).stdout

    assert [(each["value"], each["source"], each["where"]) for each in found] == [
        ("lab:1", "flag", "--tracker"),
        ("postgresql://me:***@db/fleet", "file", f"{file}: line 1"),
        ("kind=cuda", "environment", "$FLEET_SELECTOR"),
        ("json", "file", f"{file}: line 2"),
    ]
    assert "s3cret" not in table
    assert "environment, $FLEET_SELECTOR" in table


def test_python_calls_use_the_same_settings_as_commands(file: Path, tmp_path: Path) -> None:
    """`fleet.connect()` and `Library.open()` use the settings without arguments."""
    file.write_text(f"tracker: 127.0.0.1:1\nlibrary: {tmp_path}/of_the_file.sqlite\n")

    with pytest.raises(TrackerUnavailable, match=r"127\.0\.0\.1:1"):
        fleet.connect(connect_timeout_sec=0.1)
    with Library.open() as library:
        assert f"{tmp_path}/of_the_file.sqlite" == library.url


def test_a_hint_names_the_library_where_that_is_needed(file: Path, tmp_path: Path) -> None:
    """The hint matters if `fleet library best` would read another library, the configured one."""
    file.write_text(f"library: {tmp_path}/mine.sqlite\n")

    assert "" == naming(f"{tmp_path}/mine.sqlite")
    assert " --library 'of others.sqlite'" == naming("of others.sqlite")


def test_the_doctor_finds_a_file_that_cannot_be_read(file: Path) -> None:
    """The doctor reports a problem with its remedy instead of failing itself."""
    file.write_text("trackr: x")

    done = CliRunner().invoke(app, ["doctor", "--quick", "--json"])

    assert done.exit_code == 1
    assert [each["state"] for each in json.loads(done.stdout)["findings"] if each["name"] == "configuration"] == [
        "problem"
    ]
