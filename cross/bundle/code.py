"""Lists our own files that an agent needs: device_agents, and its imports from `fleet` and `cross`."""

from __future__ import annotations

import ast
import gc
import importlib.util
from collections.abc import Iterator
from pathlib import Path

from fleet.errors import ConfigError

_AGENT = "device_agents"
_OURS = ("device_agents", "fleet", "cross")


def code_files() -> dict[str, bytes]:
    """Return the content of the agent's files by path below the library folder."""
    folder = _folder_of(_AGENT)
    agent = {path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    files = {path.relative_to(folder.parent).as_posix(): path.read_bytes() for path in sorted(agent)}
    waiting = [name for path in agent if path.suffix == ".py" for name in _imported(path.read_bytes(), path)]
    seen: set[str] = set()
    while waiting:
        module = waiting.pop()
        if module in seen or module.partition(".")[0] not in _OURS:
            continue
        seen.add(module)
        path = _file_of(module)
        if path is None:
            continue
        parent = module.rpartition(".")[0]
        if parent:
            waiting.append(parent)
        content = path.read_bytes()
        files[_bundled_path(module, path)] = content
        waiting += _imported(content, path)
        files.update(_data_beside(module, path))
    return dict(sorted(files.items()))


def _data_beside(module: str, path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the board descriptions, which no import refers to."""
    if module == "cross.targets.boards":
        for board_file in sorted(path.with_name("board_files").glob("*.yaml")):
            yield f"cross/targets/board_files/{board_file.name}", board_file.read_bytes()


def _imported(content: bytes, path: Path) -> Iterator[str]:
    """Yield the modules that a file imports anywhere. "from a import b" gives both a and a.b, which may be a module."""
    for node in _run_nodes(_parse(content, path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _parse(content: bytes, path: Path) -> ast.AST:
    """Parse a file while the garbage collector is off.

    A finalizer that prints a traceback parses, too. Python before 3.11.5 then fails with a SystemError.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(content, str(path))
    finally:
        if was_enabled:
            gc.enable()


def _run_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes except those below `if TYPE_CHECKING`, which are never executed."""
    yield tree
    is_for_types = isinstance(tree, ast.If) and isinstance(tree.test, ast.Name) and tree.test.id == "TYPE_CHECKING"
    if not is_for_types:
        for child in ast.iter_child_nodes(tree):
            yield from _run_nodes(child)


def _file_of(module: str) -> Path | None:
    first, *rest = module.split(".")
    base = _folder_of(first).joinpath(*rest)
    for path in (base / "__init__.py", base.with_suffix(".py")):
        if path.is_file():
            return path
    return None


def _bundled_path(module: str, path: Path) -> str:
    return "/".join(module.split(".")) + ("/__init__.py" if path.name == "__init__.py" else ".py")


def _folder_of(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(f"the package {package} is not installed completely; install tvm-fleet again")
    return Path(next(iter(spec.submodule_search_locations)))
