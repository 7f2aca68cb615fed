"""Arguments in files: `fleet tune @tune.yaml`."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fleet.cli.main import app


def fleet(*words: str) -> tuple[int, str, str]:
    """Exit code, stdout, stderr."""
    result = CliRunner().invoke(app, words, prog_name="fleet")
    return result.exit_code, result.stdout, result.stderr


def expanded(*words: str) -> list[str]:
    """A command as `fleet config expand` prints it."""
    code, out, err = fleet("config", "expand", "fleet", *words)
    assert code == 0, err
    return shlex.split(out)[1:]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tune.yaml"
    path.write_text(
        "model: model.onnx\non: [kind=cpu, kind=cuda]\ntrials: 512\ndeadline: 2036-12-31 18:00\n"
        "exhaust: true\nno-model: true\nlibrary: records.sqlite\nbuild-cache: ~/built\n"
    )
    return path


def test_a_file_stands_for_its_options(file: Path) -> None:
    """Lists repeat an option, paths start at the file's folder, values are as they are written."""
    folder = file.parent

    assert expanded("tune", f"@{file}") == [
        *("tune", "--on=kind=cpu", "--on=kind=cuda", "--trials=512", "--deadline=2036-12-31 18:00", "--exhaust"),
        *("--no-model", f"--library={folder}/records.sqlite", f"--build-cache={Path('~/built').expanduser()}"),
        f"{folder}/model.onnx",
    ]


def test_the_command_line_wins_over_a_file(file: Path) -> None:
    """An option or argument of the command line, before or behind the file, replaces the file's."""
    line = expanded("tune", "other.onnx", "--on", "model=pi4", f"@{file}", "--model", "--trials=1")

    assert line == [
        *("tune", "--deadline=2036-12-31 18:00", "--exhaust", f"--library={file.parent}/records.sqlite"),
        f"--build-cache={Path('~/built').expanduser()}",
        *("other.onnx", "--on", "model=pi4", "--model", "--trials=1"),
    ]


def test_a_global_option_wins_over_a_file(tmp_path: Path) -> None:
    """A tracker named before the command is not replaced by a file's."""
    (tmp_path / "a.yaml").write_text("tracker: lab:9290\n")

    assert expanded("--tracker", "here:1", "devices", f"@{tmp_path}/a.yaml") == ["--tracker", "here:1", "devices"]
    assert expanded("devices", f"@{tmp_path}/a.yaml") == ["devices", "--tracker=lab:9290"]


def test_a_later_file_wins_over_an_earlier_one(file: Path) -> None:
    """Files may share a base."""
    (file.parent / "more.yaml").write_text("trials: 8\non: cpu\n")

    line = expanded("tune", f"@{file}", f"@{file.parent}/more.yaml")

    assert [word for word in line if word.startswith(("--on", "--trials"))] == ["--on=cpu", "--trials=8"]


def test_names_of_programs_are_no_paths(tmp_path: Path) -> None:
    """A program or class of models keeps its name; files of programs are in the file's folder."""
    (tmp_path / "bert").mkdir()
    names = {
        "matmul-64": "matmul-64",
        "package.module:name": "package.module:name",
        "mine.py:name": f"{tmp_path}/mine.py:name",
        "a.json": f"{tmp_path}/a.json",
        "hf:BertConfig:hidden_size=64": "hf:BertConfig:hidden_size=64",
        "hf:bert": f"hf:{tmp_path}/bert",
        "/there/m.onnx": "/there/m.onnx",
    }
    for name in names:
        (tmp_path / "t.yaml").write_text(f"model: '{name}'\n")
        assert expanded("tune", f"@{tmp_path}/t.yaml") == ["tune", names[name]]


def test_two_signs_are_a_plain_one_and_a_program_keeps_its_words(tmp_path: Path) -> None:
    """`@@` is a word that begins with @; behind `--` nothing changes; a group's own command takes files."""
    (tmp_path / "a.yaml").write_text("selector: cpu\nwait-timeout: 3\n")

    line = expanded("acquire", f"@{tmp_path}/a.yaml", "--", "ssh", "@there", "@@x")

    assert line == ["acquire", "--wait-timeout=3", "cpu", "--", "ssh", "@there", "@@x"]
    assert expanded("devices", "@@x") == ["devices", "@x"]


def test_commands_take_files_themselves(tmp_path: Path) -> None:
    """The parser sees a file's options, and with `json: true` its errors are JSON."""
    (tmp_path / "t.yaml").write_text("model: nowhere.onnx\njson: true\n")

    code, out, err = fleet("tune", f"@{tmp_path}/t.yaml")

    assert (code, err) == (2, f"error: there is no model file {tmp_path}/nowhere.onnx\n")
    assert '"class": "ImportFailed"' in out


REFUSED = {
    "model: a.onnx\ntrails: 3": "line 2: unknown key 'trails'; did you mean 'trials'?",
    "until_gain: 3": "line 1: unknown key 'until_gain'; did you mean 'until-gain'?",
    "trials: 3\ntrials: 4": "line 2: the key 'trials' stands in line 1 already",
    "trials: [3, 4]": "line 1: trials: takes one value, found a list",
    "on: [[cpu]]": "line 1: on: expected a value or a list of values, found ['cpu']",
    "on: {kind: cpu}": "line 1: on: expected a value or a list of values, found {'kind': 'cpu'}",
    "trials:": "line 1: trials: expected one value, found ''",
    "exhaust: yes": "line 1: exhaust: expected true or false, found 'yes'",
    "trials: 3\nmodel: !!python/object/apply:os.system [true]": "line 2, column 8 is not YAML: could not determine",
    "on: &a [cpu, *a]": "line 1: on: expected a value or a list of values, found [",
    "a: &a {model: x}\n<<: *a": "line 1: unknown key 'a'",
    "- model": "expected 'key: value' lines, found a list",
    "on: [cpu": "line 1, column 9 is not YAML",
}


@pytest.mark.parametrize("text", REFUSED)
def test_bad_files_are_refused_with_their_line(tmp_path: Path, text: str) -> None:
    """The file, the line and the nearest word are named."""
    (tmp_path / "t.yaml").write_text(text)

    code, _, err = fleet("tune", f"@{tmp_path}/t.yaml")

    assert (code, err.count("\n")) == (2, 1)
    assert f"error: {tmp_path}/t.yaml: {REFUSED[text]}" in err


def test_anchors_do_not_explode(tmp_path: Path) -> None:
    """Aliases of aliases are refused before anything is made of them."""
    lines = ["l0: &l0 [cpu]", *(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 10)}]" for n in range(1, 30)), "on: *l29"]
    (tmp_path / "t.yaml").write_text("\n".join(lines))

    assert "line 1: unknown key 'l0'" in fleet("tune", f"@{tmp_path}/t.yaml")[2]
    (tmp_path / "t.yaml").write_text("on: [&a [&b [&c [cpu, cpu], *c], *b], *a]")
    assert "on: expected a value or a list" in fleet("tune", f"@{tmp_path}/t.yaml")[2]


def test_large_and_special_files_are_refused(tmp_path: Path) -> None:
    """A file of 10 MB, a pipe and a missing file are errors in one line."""
    (tmp_path / "large.yaml").write_bytes(b"#" * 10_000_000)
    os.mkfifo(tmp_path / "pipe.yaml")

    for name, message in {"large": "larger than", "pipe": "no regular file", "gone": "No such file"}.items():
        code, _, err = fleet("tune", f"@{tmp_path}/{name}.yaml")
        assert (code, err.count("\n"), message in err) == (2, 1, True), err
