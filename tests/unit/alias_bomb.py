"""A few lines of YAML that stand for a billion values."""

from __future__ import annotations

LISTS = ("[x]", "[{}]")
MERGES = ("{{x: 1}}", "{{<<: [{}]}}")


def alias_bomb(kind: tuple[str, str], first: str = "a0") -> str:
    """Return nine levels of ten aliases each, of lists or merged mappings.

    Args:
        first: key of the innermost level.
    """
    inner, outer = kind
    lines = [f"{first}: &a0 {inner.format()}"]
    lines += [f"a{n}: &a{n} {outer.format(', '.join([f'*a{n - 1}'] * 10))}" for n in range(1, 10)]
    return "\n".join(lines)
