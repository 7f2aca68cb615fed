"""Exports a tuned model as an archive, and checks it on the device that will serve it."""

MODULES = (
    "fleet.workloads.extract",
    "fleet.workloads.applying",
    "fleet.workloads.concats",
    "fleet.graph.pipeline",
    "fleet.export.answers",
    "fleet.checking.spread",
)
"""Imports of tasks beside TVM: 0.3 s of a core for each worker that has to do them itself."""
