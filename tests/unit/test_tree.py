"""The tree in CONTRIBUTING.md is the tree on disk."""

from __future__ import annotations

import re
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_ROOTS = ("cross", "device_agents", "fleet")
_LINE = re.compile(r"(?P<indent> *)(?P<name>\w+)/ +(?P<words>\S.+)")


def test_the_tree_names_exactly_the_packages() -> None:
    """The tree in CONTRIBUTING.md lists exactly the packages on disk."""
    on_disk = {path.parent.relative_to(_ROOT).as_posix() for root in _ROOTS for path in _packages(root)}

    assert set(_described()) == on_disk


def test_every_folder_with_code_is_a_package() -> None:
    """A folder without __init__.py is neither in a wheel nor in a layer, without any other warning."""
    with_code = {path.parent for root in _ROOTS for path in (_ROOT / root).rglob("*.py")}

    assert [folder for folder in with_code if not (folder / "__init__.py").exists()] == [_ROOT / "cross/bundle/files"]


def test_every_package_has_words_of_its_own() -> None:
    """Each package has one line, and no two are the same."""
    words = list(_described().values())

    assert len(set(words)) == len(words)


def _packages(root: str) -> list[Path]:
    return sorted((_ROOT / root).rglob("__init__.py"))


def _described() -> dict[str, str]:
    """Return descriptions by folder, from between the markers."""
    text = (_ROOT / "CONTRIBUTING.md").read_text()
    tree = text.partition("<!-- tree")[2].partition("```\n")[2].partition("```")[0]
    parents: list[str] = []
    found = {}
    for line in tree.splitlines():
        match = _LINE.fullmatch(line)
        assert match, f"no folder with its words: {line!r}"
        del parents[len(match["indent"]) // 2 :]
        parents.append(match["name"])
        found["/".join(parents)] = match["words"]
    return found
