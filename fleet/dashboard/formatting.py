"""Numbers and names as people read them."""

from __future__ import annotations

import re

NaturalKey = tuple[tuple[str, int], ...]

_ENGINES = {"onnxruntime": "ONNX Runtime", "torch": "PyTorch", "ai_edge_litert": "LiteRT", "onnx": "the package onnx"}
_MINUTE_SEC, _HOUR_SEC, _DAY_SEC = 60, 3600, 86400


def duration(sec: float) -> str:
    """Return "12 s", "3 min", "2 h 05 min" or "4 d 3 h"."""
    sec = max(0, int(sec))
    if sec < _MINUTE_SEC:
        return f"{sec} s"
    if sec < _HOUR_SEC:
        return f"{sec // _MINUTE_SEC} min"
    if sec < _DAY_SEC:
        return f"{sec // _HOUR_SEC} h {sec % _HOUR_SEC // _MINUTE_SEC:02} min"
    return f"{sec // _DAY_SEC} d {sec % _DAY_SEC // _HOUR_SEC} h"


def latency(us: float) -> str:
    """Return "0.85 us", "12.3 us", "4.56 ms" or "1.20 s"."""
    for factor, unit in ((1e6, "s"), (1e3, "ms"), (1.0, "us")):
        if us >= factor:
            return f"{us / factor:.3g} {unit}"
    return f"{us:.2g} us" if us > 0 else "-"


def engine_name(reference: str) -> str:
    """Return what people call whoever computed a reference: an engine by its package, or the untuned program."""
    return _ENGINES.get(reference, f"the {reference} program" if reference else "")


def size(bytes_count: int) -> str:
    """Return "512 MB" or "3.8 GB"."""
    if not bytes_count:
        return "-"
    return f"{bytes_count / 1e9:.1f} GB" if bytes_count >= 1e9 else f"{bytes_count / 1e6:.0f} MB"


def age(since_sec: float | None, now_sec: float) -> str:
    """Return how long ago something was, "-" when it never was."""
    return duration(now_sec - since_sec) if since_sec else "-"


def short_name(name: str) -> str:
    """Return a resource name without its collection: "devices/pi4-03" -> "pi4-03"."""
    return name.partition("/")[2] or name


def natural_key(name: str) -> NaturalKey:
    """Return a key that sorts numbers in names as numbers: "pi-2" before "pi-10"."""
    return tuple((text, int(digits or -1)) for text, digits in re.findall(r"(\D*)(\d*)", name))
