"""What runs in the build pool: stateless functions of plain data."""

MODULES = (
    "xgboost",
    "fleet.models.model",
    "fleet.workloads.extract",
    "fleet.optimizer.tasks.propose",
    "fleet.optimizer.tasks.build",
)
"""What tasks import beside TVM: four tenths of a second of a core, for each worker that has to do it itself."""
