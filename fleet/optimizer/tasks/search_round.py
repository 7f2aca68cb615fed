"""`SearchRound`: the state that a search strategy works with in one round."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from fleet.optimizer.core.candidates import Candidate
from fleet.optimizer.tasks.search_state import SearchState


class SearchRound:
    """One search round of one workload: its candidates, without those measured or chosen before."""

    def __init__(
        self,
        workload: SearchState,
        *,
        count: int,
        programs: set[int | None],
        digests: frozenset[str],
        describe: Callable[[Sequence[Candidate]], list[Candidate]],
    ) -> None:
        """Begin a round.

        Args:
            programs: hashes of measured programs.
            digests: digests of traces in flight.
        """
        self.workload = workload
        """The workload's own space; `make` describes any other schedule of it."""

        self.count = count
        """Candidates wanted."""

        self.describe = describe
        """Returns candidates with the times that the cost model expects."""

        self._programs = programs
        self._digests = digests

    def untried(self) -> Iterator[Candidate]:
        """Yield the new schedules of the workload's own space in its order. Each takes about 10 ms to make."""
        return self.of(self.workload.own_space())

    def of(self, candidates: Iterable[Candidate]) -> Iterator[Candidate]:
        """Yield each new candidate. Two traces can make one program, so programs are compared."""
        for candidate in candidates:
            if candidate.program not in self._programs and candidate.digest not in self._digests:
                self._programs.add(candidate.program)
                yield candidate
