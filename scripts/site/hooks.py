"""Fills in the parts of the site that come from the code, while MkDocs builds it.

A page holds its words and a marker such as `<!-- from the code: commands -->`; the marker is replaced by the result of
the function of that name below. So nothing generated is committed, and links to the page work on its file, too.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).parent))
import api
import commands
import json_documents
import keys
import proto_files

_ROOT = Path(__file__).parents[2]
_FROM_CODE: dict[str, Callable[[], str]] = {
    "agent.yaml": keys.as_markdown,
    "commands": commands.as_markdown,
    "config.yaml": keys.of_clients,
    "tracker.yaml": keys.of_trackers,
    "json": json_documents.as_markdown,
    "public API": api.public_names,
    "errors": api.error_tree,
    "protos": lambda: proto_files.as_markdown(_ROOT / "protos"),
}
_MARKER = re.compile(r"^<!-- from the code: (.+) -->$", flags=re.MULTILINE)
_DECISIONS = "decisions/index.md"
_OF_THE_ROOT = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
"""Files of the repository's root that are pages of the site as well."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the decision records into the navigation: a new one needs no line in mkdocs.yml."""
    records = sorted(Path(config.docs_dir).glob("decisions/0*.md"))
    explanation = next(entry["Explanation"] for entry in config.nav or [] if "Explanation" in entry)
    explanation.append({"Decisions": [_DECISIONS, *(f"decisions/{record.name}" for record in records)]})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that lie outside of docs/, with their links as seen from there."""
    for name, page in _OF_THE_ROOT.items():
        text = (_ROOT / name).read_text().replace("](docs/", "](")
        for other, other_page in _OF_THE_ROOT.items():
            text = text.replace(f"]({other}", f"]({other_page}")
        files.append(File.generated(config, page, content=text.replace("](README.md", "](index.md")))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Replace the markers, and point links to files of the root to their pages.

    Raises:
        OSError: a marker that nothing here fills in, and that names no file.
    """
    for name, of_the_site in _OF_THE_ROOT.items():
        markdown = re.sub(rf"\]\(((?:\.\./)+){re.escape(name)}", rf"](<up>\1{of_the_site}", markdown)
    return _MARKER.sub(lambda found: _from_code(found[1]), markdown.replace("](<up>../", "]("))


def _from_code(what: str) -> str:
    """Return the text for a marker: the output for a name above, or a file as a block."""
    if what in _FROM_CODE:
        return _FROM_CODE[what]()
    path = _ROOT / what
    return f"```{path.suffix.removeprefix('.')}\n{path.read_text()}```"
