"""Names in the documentation exist."""

from __future__ import annotations

import ast
import json
import pkgutil
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest
import yaml

from device_agents.config import known_keys, parse_config
from device_agents.owner_labels import OwnerLabels
from fleet.base.config import keys_of
from fleet.cli.man import _CODES
from fleet.tracker.policy_file import parse_policy

_MULTILINE = re.MULTILINE | re.DOTALL
_ROOT = Path(__file__).parents[2]
_PAGES = sorted([*_ROOT.glob("*.md"), *(path for path in _ROOT.glob("docs/**/*.md") if "decisions" not in path.parts)])
_FILE = re.compile(
    r"`((?:fleet|device_agents|cross|tests|benchmarks|examples|scripts|protos|docs)/[\w./-]+)(?:::(\w+))?`"
)
_STATUS = re.compile(
    r"# (\d+)\. (.+)\n\nStatus: (?:accepted|superseded by \[\d+\]\(\d{4}-[\w-]+\.md\))(?:; .+)?\n\n## Context\n"
)
_BARE_TEST = re.compile(r"`test_\w+`")
_DIRECTIVE = re.compile(r"^::: ([\w.]+)$", flags=re.MULTILINE)
_LINK = re.compile(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)")
_MODULE = re.compile(r"`((?:fleet|device_agents|cross)(?:\.(?!py`)\w+)+)`")


def name(page: Path) -> str:
    return page.relative_to(_ROOT).as_posix()


@pytest.mark.parametrize("page", _PAGES, ids=name)
def test_a_page_names_files_and_tests_that_exist(page: Path) -> None:
    """Files move with the code; a page that still names the old place leads nowhere."""
    found = _FILE.findall(page.read_text())

    assert [path for path, _ in found if not (_ROOT / path).exists()] == []
    assert [(path, test) for path, test in found if test and test not in functions(path)] == []


def test_every_attack_has_a_test() -> None:
    """Each row of the threat model names one with its file, or the invariant that has some."""
    lines = (_ROOT / "docs/explanation/threat-model.md").read_text().splitlines()
    rows = [line for line in lines if line.startswith("| ") and not line.endswith("| test |")]

    assert len(rows) > 40
    assert [row for row in rows if not _FILE.search(row) and "invariants.md" not in row] == []
    assert [row for row in rows if _BARE_TEST.search(row)] == []


@pytest.mark.parametrize("page", _PAGES, ids=name)
def test_a_page_names_modules_that_exist(page: Path) -> None:
    """At least the first two parts are a package or module; a class and its method may follow."""
    names = _MODULE.findall(page.read_text())

    assert [dotted for dotted in names if not leads_somewhere(dotted)] == []


@pytest.mark.parametrize(
    "diff", re.findall(r"^```diff\n(.*?)^```", (_ROOT / "docs/how-to/first-change.md").read_text(), _MULTILINE)
)
def test_the_diffs_of_a_first_change_apply(diff: str) -> None:
    """A reader can try them on the present code."""
    command = ["git", "apply", "--check", "--unidiff-zero", "-"]
    done = subprocess.run(command, cwd=_ROOT, input=diff, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")


def test_each_decision_has_a_status_and_a_line_in_the_index() -> None:
    """Readers find records by topic, see which still hold, and know that a missing number is no lost file."""
    index = (_ROOT / "docs/decisions/index.md").read_text()
    records = {path: path.read_text() for path in sorted(_ROOT.glob("docs/decisions/0*.md"))}
    heads = {path: _STATUS.match(text) for path, text in records.items()}
    withdrawn = {int(number) for number in re.findall(r"\d+", index.partition("## Withdrawn")[2])}

    assert [path.name for path, head in heads.items() if head is None or int(head[1]) != int(path.name[:4])] == []
    lines = [f"- [{head[1]}. {head[2]}]({path.name})" for path, head in heads.items() if head]
    assert sorted(re.findall(r"^- \[.*", index, flags=re.MULTILINE)) == sorted(lines)
    numbers = {int(path.name[:4]) for path in records}
    assert withdrawn == set(range(1, max(numbers))) - numbers
    links = {path.name: _LINK.findall(text) for path, text in {**records, Path("index.md"): index}.items()}
    assert {
        name: lost
        for name, found in links.items()
        if (lost := [x for x in found if not (_ROOT / "docs/decisions" / x).exists()])
    } == {}


def test_kept_figures_name_their_benchmark_and_fill_their_columns() -> None:
    """Each entry of `benchmarks/results` says when, where and by which command its rows were measured."""
    page = (_ROOT / "docs/reference/benchmarks.md").read_text()
    results = {path.stem: json.loads(path.read_text()) for path in _ROOT.glob("benchmarks/results/*.json")}

    pages = {path.stem for path in _ROOT.glob("docs/explanation/*.md")}
    assert [name for name in results if f"## {name}\n" not in page and name not in pages] == []
    for entry in (entry for entries in results.values() for entry in entries):
        assert {"date", "machine", "commit", "command", "columns", "rows"} <= entry.keys()
        assert {len(entry["columns"])} == {len(row) for row in entry["rows"]}


def test_the_api_reference_lists_existing_names_only() -> None:
    """A renamed class would break the site."""
    names = _DIRECTIVE.findall((_ROOT / "docs/reference/api.md").read_text())

    assert names
    for dotted in names:
        pkgutil.resolve_name(dotted)


@pytest.mark.parametrize("page", _PAGES, ids=name)
def test_links_lead_to_files(page: Path) -> None:
    """Links work in the repository, too, without the site."""
    links = _LINK.findall(page.read_text())

    assert [link for link in links if not (page.parent / link).exists()] == []


def agent_files() -> list[str]:
    blocks = [block for page in _PAGES for block in re.findall(r"^```yaml.*?\n(.*?)^```", page.read_text(), _MULTILINE)]
    contents = {block: yaml.safe_load(block) for block in blocks}
    keys = {block: {*content} if isinstance(content, dict) else set() for block, content in contents.items()}
    return [
        block
        for block in blocks
        if keys[block] & {"devices", "tracker", "memory_limit_bytes"} and "selector" not in keys[block]
    ]


@pytest.mark.parametrize("text", agent_files())
def test_examples_of_agent_yaml_have_keys_that_the_code_knows(text: str) -> None:
    """Every key in an example is known to the code."""
    content = yaml.safe_load(text)
    keys = keys_by_driver()

    parse_config(content)
    for entry in content.get("devices", []):
        assert entry.keys() - {"driver"} <= keys[entry["driver"]]


def test_examples_of_tracker_yaml_are_valid() -> None:
    """Every example of shares and quotas is read, with an account of its own rules."""
    blocks = [block for page in _PAGES for block in re.findall(r"^```yaml.*?\n(.*?)^```", page.read_text(), _MULTILINE)]
    found = [parse_policy(block, where="an example") for block in blocks if "accounts" in yaml.safe_load(block)]

    assert found
    assert all(policy.weights for policy in found)


def test_the_exit_codes_match_those_of_the_command_line() -> None:
    """A script that branches on a code finds it in the table."""
    said = re.findall(r"^\| ([\d, ]+) \|", (_ROOT / "docs/reference/exit-codes.md").read_text(), flags=re.MULTILINE)
    trees = [ast.parse(path.read_text()) for path in _ROOT.glob("fleet/**/*.py")]

    found = {code for tree in trees for node in ast.walk(tree) for code in exit_codes(node)}

    assert {0} | found == {int(code) for cell in said for code in cell.split(", ")}
    assert set(_CODES) - {"others"} == set(said), "the manual page has other codes"


def exit_codes(node: ast.AST) -> set[int]:
    """Return the numbers in a call that ends a program, and in an assignment to an exit code."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) in ("typer.Exit", "sys.exit", "SystemExit"):
        values: list[ast.AST] = list(node.args)
    elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
        names = node.targets if isinstance(node, ast.Assign) else [node.target]
        values = [node.value] if any(ast.unparse(name).lower().endswith("exit_code") for name in names) else []
    else:
        return set()
    constants = [part for value in values for part in ast.walk(value) if isinstance(part, ast.Constant)]
    return {part.value for part in constants if isinstance(part.value, int)}


def test_all_environment_variables_are_documented() -> None:
    """The reference names all variables that are read, and no others."""
    sources = [
        path.read_text() for package in ("fleet", "device_agents", "cross") for path in _ROOT.glob(f"{package}/**/*.py")
    ]
    read = {name for source in sources for name in re.findall(r"\bFLEET_[A-Z_]+[A-Z]\b", source)}
    told = set(re.findall(r"`(FLEET_\w+)`", (_ROOT / "docs/reference/environment.md").read_text()))

    assert {name for name in read if not name.startswith("FLEET_LINKER_")} == {
        name for name in told if not name.startswith("FLEET_LINKER_")
    }


@cache
def keys_by_driver() -> dict[str, set[str]]:
    given = {key.name for key in keys_of(OwnerLabels)}
    return {driver: given | {key.name for key in known} for driver, known in known_keys().items()}


@cache
def functions(path: str) -> set[str]:
    tree = ast.parse((_ROOT / path).read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def leads_somewhere(dotted: str) -> bool:
    """Tell whether a dotted name is a package or module, or a name that its file contains."""
    path, words = _ROOT, dotted.split(".")
    while words and (path / words[0]).is_dir():
        path /= words.pop(0)
    if words and (path / f"{words[0]}.py").is_file():
        path /= f"{words.pop(0)}.py"
    elif words:
        path /= "__init__.py"
    return not words or (path.is_file() and re.search(rf"\b{words[0]}\b", path.read_text()) is not None)
