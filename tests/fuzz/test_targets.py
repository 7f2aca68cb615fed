"""The short form of fuzzing: every target with the inputs that once did harm, and some hundreds of others.

They are the same each time. Longer, and guided by coverage: `python -m tests.fuzz`.
"""

from __future__ import annotations

import pytest

from fleet.identity.policy import RULES
from tests.fuzz.engine import inputs_of
from tests.fuzz.registry import TARGETS
from tests.fuzz.target import CORPUS, Target
from tests.fuzz.targets.agent import AGENT_RPCS
from tests.fuzz.targets.tracker import TRACKER_RPCS
from tests.fuzz.watch import LAX, check

# Libraries warn about inputs that they accept; that says nothing about the program.
pytestmark = pytest.mark.filterwarnings("default")
QUICK = [target for target in TARGETS.values() if target.quick_inputs]


@pytest.mark.slow
@pytest.mark.parametrize("target", QUICK, ids=[target.name for target in QUICK])
def test_only_documented_errors_are_raised(target: Target) -> None:
    """Whatever bytes come, they are read or refused: no traceback, no hang, no memory without bound, no line in the
    log that would call it our own fault."""
    try:
        for content in inputs_of(target, target.quick_inputs, seed=1):
            check(target, content, LAX)
    finally:
        target.close()


def test_every_rpc_is_called() -> None:
    """A new rpc must be added to a target."""
    called = {*TRACKER_RPCS, *AGENT_RPCS, "CostModelService/WatchSnapshots", "RelayService/WatchClients"}
    former = {"SnapshotService/WatchSnapshots"}  # another name of CostModelService

    assert {rpc.replace(".", "/") for rpc in RULES} - former == called


def test_every_input_that_did_harm_belongs_to_a_target() -> None:
    """A corpus without a target would prove nothing."""
    assert {path.name for path in CORPUS.iterdir()} <= {target.name for target in QUICK}
