"""The rules of commit messages, and the hook that applies them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.commit_message import problems_of

_ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "message",
    [
        "Cap spill slots at 64 bytes",
        "Cap spill slots at 64 bytes\n\nLLVM aligned them to 4 KB.\n",
        "\n# Please enter the commit message\nCap spill slots at 64 bytes\n# On branch main\n",
        "Cap spill slots\n# ------------------------ >8 ------------------------\ndiff --git a b\n",
        "fixup! Cap spill slots at 64 bytes",
        'Revert "' + "x" * 80 + '"',
        "Merge branch 'spilling' into main",
        "x".upper() * 72,
    ],
)
def test_a_good_message_has_no_problem(message: str) -> None:
    """Template comments, autosquash prefixes and messages written by git pass."""
    assert problems_of(message) == []


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        ("", "0 characters"),
        ("Fix it", "6 characters"),
        ("X" * 73, "73 characters"),
        ("cap spill slots", "upper-case"),
        ("Cap spill slots.", "period"),
        ("Cap spill slots\nat 64 bytes", "second line"),
    ],
)
def test_a_bad_message_is_explained(message: str, problem: str) -> None:
    """The broken rule is explained in one sentence."""
    (found,) = problems_of(message)

    assert problem in found


@pytest.mark.slow
def test_git_refuses_a_bad_message_after_pre_commit_install(tmp_path: Path) -> None:
    """The installed hook stops the commit, prints the problem, and lets a corrected message pass."""
    (tmp_path / "scripts").mkdir()
    for name in (".pre-commit-config.yaml", "scripts/commit_message.py"):
        shutil.copy(_ROOT / name, tmp_path / name)
    own = dict.fromkeys(("GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL"), "tests")
    outer = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment = {**outer, **own, "PRE_COMMIT_HOME": str(tmp_path / "home")}

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    run("git", "init", "--quiet")
    assert run(sys.executable, "-m", "pre_commit", "install").returncode == 0

    refused = run("git", "commit", "--allow-empty", "--message", "cap spill slots at 64 bytes")
    passed = run("git", "commit", "--allow-empty", "--message", "Cap spill slots at 64 bytes")

    assert refused.returncode == 1
    assert "upper-case" in refused.stderr + refused.stdout
    assert passed.returncode == 0, passed.stderr
