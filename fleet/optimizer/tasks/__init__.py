"""What runs in the build pool: stateless functions of plain data."""

MODULES = ("xgboost",)
"""What tasks import beside TVM: a quarter of a second of a core, for each worker that has to do it itself."""
