"""Console that sanitizes control characters: titles, holders and messages come from shared libraries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.segment import Segment

from fleet.base.text import printable


class CleanConsole(Console):
    """Rich's console with all output sanitized, also inside tables and panels.

    Rich itself drops some control characters, but not ESC.
    """

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        return _clean(super().render(renderable, options))


@dataclass(frozen=True, slots=True)
class Clean:
    """Sanitize one renderable on any console, such as Textual's."""

    content: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        return _clean(console.render(self.content, options))

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement.get(console, options, self.content)


def _clean(segments: Iterable[Segment]) -> Iterator[Segment]:
    for segment in segments:
        if segment.control or segment.text == "\n":  # Rich's own cursor moves, and line ends
            yield segment
        else:
            yield Segment(printable(segment.text), segment.style)
