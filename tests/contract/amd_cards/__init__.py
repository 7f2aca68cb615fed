"""AMD cards for tests, as the kernel shows them; README.md has the source of each figure."""

from __future__ import annotations

from pathlib import Path


def put_card(root: Path, name: str) -> Path:
    """Write the tree of one card below `root`."""
    for part in Path(__file__).with_name(f"{name}.txt").read_text().split("== ")[1:]:
        path, _, content = part.partition("\n")
        file = root / path.strip()
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    return root
