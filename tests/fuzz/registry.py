"""All targets, by name."""

from __future__ import annotations

from collections.abc import Mapping

from tests.fuzz.target import Target
from tests.fuzz.targets.agent import AGENT
from tests.fuzz.targets.answers import ANSWERS
from tests.fuzz.targets.binaries import BINARIES
from tests.fuzz.targets.journals import JOURNALS
from tests.fuzz.targets.models import MODELS
from tests.fuzz.targets.optimizer import OPTIMIZER
from tests.fuzz.targets.packs import PACKS
from tests.fuzz.targets.ports import PORTS
from tests.fuzz.targets.proofs import PROOFS
from tests.fuzz.targets.registrations import REGISTRATIONS
from tests.fuzz.targets.relay import RELAY
from tests.fuzz.targets.texts import TEXTS
from tests.fuzz.targets.tracker import TRACKER
from tests.fuzz.targets.views import VIEWS
from tests.fuzz.targets.workers import WORKERS
from tests.fuzz.targets.workloads import WORKLOADS

TARGETS: Mapping[str, Target] = {
    target.name: target
    for group in (
        TRACKER,
        AGENT,
        OPTIMIZER,
        PORTS,
        WORKERS,
        PROOFS,
        TEXTS,
        BINARIES,
        JOURNALS,
        MODELS,
        ANSWERS,
        VIEWS,
        REGISTRATIONS,
        RELAY,
        WORKLOADS,
        PACKS,
    )
    for target in group
}
