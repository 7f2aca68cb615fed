"""The documentation's picture of `fleet status` can be drawn anew."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

_SCRIPT = Path(__file__).parents[2] / "scripts/status_picture.py"


@pytest.mark.slow
def test_the_picture_has_all_three_panes_and_no_external_links(tmp_path: Path) -> None:
    """A reader without a network sees it, too."""
    file = tmp_path / "status.svg"

    subprocess.run([sys.executable, str(_SCRIPT), str(file)], check=True)

    picture = file.read_text().replace("&#160;", " ")
    for text in ("pi4-10", "faulted", "kind=raspberry_pi,rack=3", "bert-base.onnx", "revoke lease"):
        assert text in picture
    assert not re.search(r"@font-face|@import|url\((?!#)", picture)
