"""An agent with the devices of `tests.chaos.board` beside its own: `python -m tests.chaos.agent`."""

from __future__ import annotations

import sys

from device_agents.__main__ import main
from device_agents.registry import BUILT_IN
from tests.chaos.board import DRIVERS

if __name__ == "__main__":
    BUILT_IN.update(DRIVERS)
    sys.exit(main())
