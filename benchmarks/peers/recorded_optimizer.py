"""`fleet optimizer serve` with recorded candidates instead of a search and a build; leases, plans and records are real.

python -m benchmarks.peers.recorded_optimizer --tracker HOST:PORT --library FILE
"""

from __future__ import annotations

import sys

from benchmarks import live_tasks
from fleet.__main__ import main
from fleet.optimizer import searcher

if __name__ == "__main__":
    vars(searcher).update(propose=live_tasks.propose, build_candidate=live_tasks.build_candidate)
    sys.argv[1:1] = ["optimizer", "serve"]
    main()
