"""A fuzz target: a function of bytes, and its seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A reader of foreign input."""

    name: str
    run: Callable[[bytes], float]
    """Reads an input and raises nothing. Catches only documented errors. Returns the longest turn of an event loop [s
    of CPU]; 0 without a loop.
    """

    seeds: Callable[[], Sequence[bytes]]
    """Inputs that are well formed; the same each time."""

    words: tuple[bytes, ...] = ()
    """Parts of such inputs, to be inserted anywhere."""

    most_bytes: int = 4096
    """Size of most inputs."""

    large_bytes: int = 1024 * 1024
    """Size of the largest: a part of a smaller one again and again."""

    quick_inputs: int = 300
    """Number of inputs that the tests try; 0: none, since a library in C may end the process."""

    close: Callable[[], object] = lambda: None
    """Ends everything that `run` has started."""

    def corpus(self) -> list[Path]:
        """Return the inputs that once caused a finding."""
        return sorted((CORPUS / self.name).glob("*"))

    def starts(self) -> list[bytes]:
        """Return all inputs to begin with."""
        return [*self.seeds(), *(path.read_bytes() for path in self.corpus())]


def no_loop(read: Callable[[bytes], object]) -> Callable[[bytes], float]:
    """Make a target's `run` of a function that has no event loop."""

    def run(content: bytes) -> float:
        read(content)
        return 0.0

    return run
