"""Builds candidates in worker processes, locally or on builders of a cluster, and schedules the machine's cores."""

MODULES = (
    "xgboost",
    "fleet.models.model",
    "fleet.fragments.extracted",
    "fleet.fragments.lowering",
    "fleet.workloads.extract",
    "fleet.workloads.applying",
    "fleet.workloads.concats",
    "fleet.graph.pipeline",
    "fleet.optimizer.tasks.propose",
    "fleet.building.build_candidate",
)
"""Imports of tasks beside TVM: 0.4 s of a core for each worker that has to do them itself."""
