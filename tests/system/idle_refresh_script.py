"""An optimizer that refreshes a library of scripts in idle time.

As a process: python -m tests.system.idle_refresh_script LIBRARY TRACKER SCRIPT [SHARE]
"""

from __future__ import annotations

import asyncio
import json
import math
import sys
from pathlib import Path

from fleet.base import logs
from fleet.building.turns import Turns
from fleet.domain.scope import RecordScope
from fleet.library import Library
from fleet.optimizer.refreshing.idle import IdleRules
from fleet.optimizer.refreshing.idle_device import IdleDevice
from fleet.optimizer.refreshing.run import Refresh
from fleet.optimizer.serving.daemon import OptimizerOptions, serve
from tests.system.refresh_script import Script, ScriptedBench, ScriptedChecks

QUIET_SEC = 1.0
"""Time without requests of others before a batch."""


async def main(path: Path, address: str, script: Script, share: float) -> None:
    """Serve until terminated."""
    with Library.open(path) as library:

        def make(scope: RecordScope, device: IdleDevice, folder: Path) -> Refresh:
            return Refresh(
                library=library,
                scope=scope,
                bench=ScriptedBench(script=script, folder=folder),
                folder=folder,
                checks=ScriptedChecks(),
                device=device,
                turns=Turns(shares_cores=False),
                narrate=lambda said: print(said, flush=True),
                rounds_sec=math.inf,
            )

        options = OptimizerOptions(
            tracker=address,
            library=str(path),
            workers=1,
            connect_timeout_sec=60,
            refresh=IdleRules(share=share, quiet_sec=QUIET_SEC),
        )
        await serve(options, make_refresh=make)


if __name__ == "__main__":
    given = float(sys.argv[4]) if len(sys.argv) > 4 else 1.0
    logs.setup("info")
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]), given))
