"""Updates of waiting requests: clients get them when a position, a reason or a forecast has changed.

All waiting requests of all clients are looked at in rounds, in portions of less than a millisecond. A pause in
proportion to the work follows each round, so that very many requests get updates less often instead of slowing grants
down.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence

from fleet.domain.waits import Forecast
from fleet.tracker.core.queries import Queries
from fleet.tracker.core.records import RequestEntry
from fleet.tracker.messages import ClientOutbox, queued_event
from fleet.tracker.pace import Pace, portions

_LEAST_PAUSE_SEC = 1.0
_PAUSE_RATIO = 50.0
"""The pause after a round, in times of its work: updates take 2 % of a processor at most."""
_FORECAST_SEC = 30.0
"""A forecast is sent again when it has changed by about this much."""
_MOST_REQUESTS = 64
"""Maximum requests of each client with updates."""
_PORTION = 16


class WaitUpdates:
    """State of each waiting request as its client was last told."""

    def __init__(self, queries: Queries, forecast_of: Callable[[RequestEntry], Forecast | None], pace: Pace) -> None:
        self._queries = queries
        self._forecast_of = forecast_of
        self._pace = pace
        self._told: dict[str, dict[str, tuple[object, ...]]] = {}
        """Position and reason last told, by client and request."""

    def tell_queued(self, client_id: str, request: RequestEntry, outbox: ClientOutbox) -> None:
        """Send a client the standing of its new or repeated request, and record it."""
        standing, forecast = self._queries.standing(request), self._forecast_of(request)
        told = self._told.setdefault(client_id, {})
        if len(told) < _MOST_REQUESTS or request.request_id in told:
            told[request.request_id] = *standing.gist, _coarse(forecast)
        outbox.put(queued_event(request, standing, forecast))

    def forget(self, client_id: str) -> None:
        """Forget a client that has left."""
        self._told.pop(client_id, None)

    async def run(self, outboxes: Mapping[str, ClientOutbox]) -> None:
        """Send updates until cancelled."""
        while True:
            used_sec = await self.refresh(outboxes)
            await asyncio.sleep(max(_LEAST_PAUSE_SEC, _PAUSE_RATIO * used_sec))

    async def refresh(self, outboxes: Mapping[str, ClientOutbox]) -> float:
        """Send one round of updates, and return the processor time that it took [s]."""
        used_sec = 0.0
        for client_id in list(self._told):
            outbox = outboxes.get(client_id)
            if outbox is None or len(outbox):
                continue
            waiting = self._queries.requests_of(client_id, _MOST_REQUESTS)
            self._keep_only(client_id, waiting)
            for portion in portions(waiting, _PORTION):
                await self._pace.turn()
                if outboxes.get(client_id) is not outbox or outbox.is_closed:
                    break
                started_sec = time.thread_time()
                self._update(client_id, portion, outbox)
                used_sec += time.thread_time() - started_sec
        return used_sec

    def _keep_only(self, client_id: str, waiting: Sequence[RequestEntry]) -> None:
        told, ids = self._told[client_id], {request.request_id for request in waiting}
        kept = {request_id: gist for request_id, gist in told.items() if request_id in ids}
        if kept or waiting:
            self._told[client_id] = kept
        else:
            del self._told[client_id]

    def _update(self, client_id: str, portion: Sequence[RequestEntry], outbox: ClientOutbox) -> None:
        told = self._told.setdefault(client_id, {})
        for request in portion:
            if not self._queries.is_waiting(request):
                continue
            standing, forecast = self._queries.standing(request), self._forecast_of(request)
            gist = *standing.gist, _coarse(forecast)
            if told.get(request.request_id) != gist:
                told[request.request_id] = gist
                outbox.put(queued_event(request, standing, forecast))


def _coarse(forecast: Forecast | None) -> int | None:
    """Return a forecast in half minutes, so that small changes are not sent."""
    return None if forecast is None else round(forecast.expected_sec / _FORECAST_SEC)
