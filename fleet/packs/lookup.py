"""Looks up records in the user's packs, for workloads that the user's own library has no record of.

Times of a pack never compete with those of the library, or of another pack: the first pack with a record serves it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from fleet.base.text import sanitize
from fleet.domain.scope import RecordScope, ScopeFilter
from fleet.library import Library, Record
from fleet.packs.shelf import KeptPack, Shelf


@dataclass(frozen=True, slots=True, kw_only=True)
class PackRecord:
    """A record of a pack."""

    pack: KeptPack
    record: Record


class Packs:
    """Packs that are open for reading."""

    def __init__(self, opened: Sequence[tuple[KeptPack, Library]] = ()) -> None:
        """Use `open_packs`."""
        self._opened = opened

    @property
    def libraries(self) -> list[Library]:
        """The records of each pack."""
        return [library for _, library in self._opened]

    def scopes(self, workloads: Iterable[str], within: ScopeFilter) -> list[RecordScope]:
        """Return the scopes in which any of the workloads has a record, in the order of the packs."""
        wanted = list(workloads)
        return list(dict.fromkeys(scope for one in self.libraries for scope in one.scopes(wanted, within)))

    def best(self, workloads: Iterable[str], within: ScopeFilter) -> dict[str, PackRecord]:
        """Return the fastest record of each workload that its signer checked, of the first pack and its first scope."""
        wanted = list(workloads)
        found: dict[str, PackRecord] = {}
        for pack, library in self._opened:
            for scope in library.scopes(wanted, within) if wanted else ():
                for shash, records in library.best_of(wanted, within.of(scope), checked_only=True).items():
                    found.setdefault(shash, PackRecord(pack=pack, record=records[0]))
        return found


NO_PACKS = Packs()


@contextmanager
def open_packs(shelf: Shelf | None = None) -> Iterator[Packs]:
    """Open the packs of a shelf; None: the user's.

    Raises:
        ConfigError, LibraryError, InvalidRequest: one cannot be read, or was changed.
    """
    found = shelf or Shelf()
    with ExitStack() as stack:
        yield Packs(
            [(pack, stack.enter_context(Library.open_to_read(str(found.database(pack))))) for pack in found.kept()]
        )


def sources_line(used: Mapping[str, PackRecord]) -> str:
    """Return a line that names the packs behind schedules: "3 schedules are from the pack rpi4, signed by lab"; empty
    without any.
    """
    counts: dict[str, int] = {}
    for one in used.values():
        said = f"signed by {sanitize(one.pack.signer)}" if one.pack.is_trusted else "UNSIGNED"
        label = f"the pack {one.pack.name}, {said}"
        counts[label] = counts.get(label, 0) + 1
    parts = [f"{count} schedule{'s' if count > 1 else ''} from {label}" for label, count in counts.items()]
    return "; ".join(parts) + ": measured and checked by their word alone" if parts else ""
