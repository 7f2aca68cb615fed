"""A few lines of YAML that stand for a billion values."""

from __future__ import annotations

LISTS = ("[x]", "[{}]")
MERGES = ("{{x: 1}}", "{{<<: [{}]}}")


def alias_bomb(kind: tuple[str, str]) -> str:
    """Return nine levels of ten aliases each, of lists or merged mappings."""
    inner, outer = kind
    lines = [f"a0: &a0 {inner.format()}"]
    lines += [f"a{n}: &a{n} {outer.format(', '.join([f'*a{n - 1}'] * 10))}" for n in range(1, 10)]
    return "\n".join(lines)
