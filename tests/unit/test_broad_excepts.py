"""Broad handlers of exceptions give their reason."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_PACKAGES = ("fleet", "cross", "device_agents", "scripts", "examples")
_BROAD = re.compile(r"except\b.*\b(Base)?Exception\b|except:|with .*suppress\((Base)?Exception\b")


def test_a_broad_handler_gives_its_reason() -> None:
    """Each `except Exception` and `except BaseException` has a comment, on its line or the next one."""
    without = []
    for path in (path for package in _PACKAGES for path in sorted((_ROOT / package).rglob("*.py"))):
        for line, following in itertools.pairwise([*map(str.strip, path.read_text().splitlines()), ""]):
            if _BROAD.match(line) and "#" not in line and not following.startswith("#"):
                without.append(f"{path.relative_to(_ROOT)}: {line}")

    assert without == []
