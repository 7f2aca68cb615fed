"""Optional extras of this package, with the dependencies that they install."""

from __future__ import annotations

_EXTRAS = {
    "alembic": "library",
    "prometheus_client": "metrics",
    "sqlalchemy": "library",
    "psycopg": "postgres",
    "tvm_ffi": "agent",
    "tvm": "tune",
    "ml_dtypes": "tune",
    "numpy": "tune",
    "onnx": "tune",
    "scipy": "tune",
    "simpleeval": "tune",
    "xgboost": "tune",
    "onnxruntime": "compare",
    "dask": "dask",
    "distributed": "dask",
    "torch": "torch",
    "transformers": "transformers",
    "keras": "keras",
    "tflite": "tflite",
    "ai_edge_litert": "tflite",
    "jinja2": "web",
    "markupsafe": "web",
    "starlette": "web",
    "uvicorn": "web",
}
"""Extras by the import name of a package."""


def advice_for(error: ModuleNotFoundError) -> str:
    """Return the advice for a failed import; empty if no extra has the package."""
    name = (error.name or "").partition(".")[0]
    return f"install it with: pip install 'tvm-fleet[{_EXTRAS[name]}]'" if name in _EXTRAS else ""
