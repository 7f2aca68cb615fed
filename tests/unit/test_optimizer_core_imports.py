"""The optimizer's core loads little of this project, so that its tests start fast and its rules can be read alone."""

from __future__ import annotations

import json
import subprocess
import sys

MOST_MODULES = 30

_LOADED = """
import json, sys
import fleet.optimizer.core.state
print(json.dumps([name for name in sys.modules if name.partition(".")[0] in ("cross", "device_agents", "fleet")]))
"""


def test_the_core_loads_few_modules() -> None:
    """Values that it only carries from one edge to another are imported for type checks alone."""
    done = subprocess.run([sys.executable, "-c", _LOADED], capture_output=True, text=True, check=True)

    assert len(json.loads(done.stdout)) <= MOST_MODULES
