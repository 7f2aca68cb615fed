"""The option --shape of several commands."""

from __future__ import annotations

from collections.abc import Sequence

from fleet.errors import ConfigError
from fleet.models.importing.shapes import Shapes


def parse_shapes(texts: Sequence[str]) -> tuple[Shapes, ...]:
    """Parse all --shape options: the n-th shapes of all inputs form a set; an input with a single shape has it in all
    sets.

    Raises:
        ConfigError: an option is malformed, or inputs have different numbers of shapes.
    """
    found: dict[str, list[tuple[int, ...]]] = {}
    for name, shape in map(parse_shape, texts):
        found.setdefault(name, []).append(shape)
    counts = {name: len(shapes) for name, shapes in found.items() if len(shapes) > 1}
    if len(set(counts.values())) > 1:
        counted = ", ".join(f"{name} has {count}" for name, count in counts.items())
        raise ConfigError(
            f"--shape: {counted}; give each input as many shapes as there are sets of them, or one for all"
        )
    sets = max(counts.values(), default=1)
    return tuple({name: shapes[index % len(shapes)] for name, shapes in found.items()} for index in range(sets))


def parse_one_shape(texts: Sequence[str]) -> Shapes:
    """Parse all --shape options of a command that takes one set of shapes.

    Raises:
        ConfigError: one is something else, or there are several sets.
    """
    shapes = parse_shapes(texts)
    if len(shapes) > 1:
        raise ConfigError(f"--shape gives {len(shapes)} sets of shapes; this command looks at one")
    return shapes[0]


def parse_shape(text: str) -> tuple[str, tuple[int, ...]]:
    """Parse "name=1,3,224,224".

    Raises:
        ConfigError: `text` is something else.
    """
    name, _, numbers = text.rpartition("=")
    try:
        shape = tuple(int(number) for number in numbers.split(","))
    except ValueError:
        shape = ()
    if not name or not shape or min(shape) < 1:
        raise ConfigError(f"--shape {text!r}: write it like --shape data=1,3,224,224")
    return name, shape
