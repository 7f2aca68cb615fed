"""Run an agent: `python -m device_agents --tracker HOST:PORT`. Plain argparse, because boards have no typer."""

from __future__ import annotations

import sys

from device_agents.options import AgentOptions
from device_agents.run import run_agent
from fleet.base import command_line


def main() -> int:
    """Serve until a signal; return the exit code."""
    return command_line.run(AgentOptions, run_agent, command="python -m device_agents")


if __name__ == "__main__":
    sys.exit(main())
