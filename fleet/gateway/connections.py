"""Connections of a gateway: bounded in number, where the oldest silent one gives way to a new one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from fleet.gateway.counts import GatewayCounts
from fleet.wire.tvm_frames import BrokenMessage

logger = logging.getLogger(__name__)

_MOST_SPEAKING = 1_000
_MOST_SILENT = 200
"""Number of connections without a first message."""


class Connections:
    """The tasks of connections."""

    def __init__(self, counts: GatewayCounts) -> None:
        self._counts = counts
        self._silent: dict[asyncio.Task[Any] | None, None] = {}
        """Oldest first."""

        self._speaking: set[asyncio.Task[Any] | None] = set()

    async def serve(self, writer: asyncio.StreamWriter, work: Coroutine[Any, Any, None]) -> None:
        """Do the work of one connection in this task, and close the connection."""
        task = asyncio.current_task()
        if len(self._silent) >= _MOST_SILENT and (oldest := next(iter(self._silent))) is not None:
            del self._silent[oldest]
            oldest.cancel()
        self._silent[task] = None
        self._counts.connections += 1
        try:
            await work
        except (BrokenMessage, asyncio.IncompleteReadError, OSError) as error:
            logger.debug("connection ended", extra={"reason": str(error)})
        except asyncio.CancelledError:
            logger.debug("connection closed by the gateway")  # asyncio's own callback would log a traceback
        except Exception:  # outermost edge of a connection: it must not end the gateway
            logger.exception("connection failed")
        finally:
            self._silent.pop(task, None)
            self._speaking.discard(task)
            self._counts.connections -= 1
            writer.close()

    def note_speaking(self) -> None:
        """Count this task's connection as one with a first message.

        Raises:
            BrokenMessage: there are too many.
        """
        task = asyncio.current_task()
        if len(self._speaking) >= _MOST_SPEAKING:
            raise BrokenMessage("too many connections")
        self._silent.pop(task, None)
        self._speaking.add(task)

    async def close(self) -> None:
        """End all."""
        tasks = [task for task in (*self._silent, *self._speaking) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
