"""The services of a standby that only a tracker that grants has: every call is refused, with the other's address."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from fleet.errors import TrackerStandsBy
from fleet.wire.peers import CallContext, caller_of


class Refusing:
    """In place of a servicer."""

    def __init__(self, primary: str, on_caller: Callable[[str], None] = lambda key_id: None) -> None:
        """Args: on_caller: called with the key of each caller."""
        self._primary = primary
        self._on_caller = on_caller

    def check_call(self, context: CallContext) -> NoReturn:
        """Refuse a call before it is read.

        Raises:
            TrackerStandsBy: always.
        """
        self._on_caller(caller_of(context).key_id)
        raise TrackerStandsBy(
            f"this is the standby of the tracker at {self._primary}, and grants nothing; use that one, or if that is "
            "gone for good: fleet tracker promote"
        )

    def __getattr__(self, _: str) -> object:
        return self._refuse

    async def _refuse(self, _: object, context: CallContext) -> NoReturn:
        self.check_call(context)
