"""Routes of the pages: reading for signed-in browsers, and forms for those with the right to act."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from fleet.base.quantities import count_text
from fleet.client.aio import Fleet
from fleet.dashboard.formatting import short_name
from fleet.domain.bookings import booking_id
from fleet.domain.devices import Telemetry
from fleet.domain.health import HealthState
from fleet.domain.usage import UsageKey
from fleet.errors import FleetError, InvalidRequest, LibraryError, NotAllowed, NotFound
from fleet.web import forms, views
from fleet.web.feed import Feed
from fleet.web.forms import Form
from fleet.web.pages import Pages, static_file
from fleet.web.sessions import Session, Sessions
from fleet.web.tables import Grid, View

if TYPE_CHECKING:
    from fleet.web.job_pages import JobPages

Endpoint = Callable[[Request], Awaitable[Response]]
Reader = Callable[[Request, Session], Awaitable[Response]]
Actor = Callable[[Request, Form], Awaitable[tuple[str, str]]]
"""Performs the action of a form; returns a notice, and the address of the page to show it on."""

_MOST_STREAMS = 100
_KEPT_SEC = 1.0
"""Time for which a rendered part serves all viewers of a snapshot."""
_HISTORY_SEC = 10.0
_MOST_HISTORIES = 100
_PERIODS = {"1": 86_400.0, "7": 7 * 86_400.0, "30": 30 * 86_400.0, "90": 90 * 86_400.0}
"""Periods of the page of uses, by days."""
_STATUS: tuple[tuple[type[FleetError], int], ...] = (
    (NotAllowed, 403),
    (NotFound, 404),
    (InvalidRequest, 400),
    (FleetError, 409),
)
_LIVE = "x-fleet-live"
"""Header of requests for the part of a page that changes."""


class Site:
    """Pages of one fleet."""

    def __init__(self, client: Fleet, feed: Feed, sessions: Sessions, jobs: JobPages, *, cookie: str) -> None:
        """Keep the sources. `cookie`: name of the cookie; with the prefix __Host- it is sent by HTTPS only."""
        self._client = client
        self._feed = feed
        self._sessions = sessions
        self._jobs = jobs
        self._cookie = cookie
        self._pages = Pages(client.address)
        self._kept: dict[str, tuple[int, float, str]] = {}
        self._histories: dict[str, tuple[float, list[Telemetry]]] = {}
        self._streams = 0

    def app(self) -> Starlette:
        """Return the application."""
        readers: dict[str, Reader] = {
            "/": self._fleet,
            "/queue": self._queue,
            "/requests/{id}": self._request,
            "/devices/{name}": self._device,
            "/bookings": self._bookings,
            "/jobs": self._all_jobs,
            "/jobs/{name}": self._job,
            "/usage": self._usage,
            "/events": self._events,
        }
        actors: dict[str, Actor] = {
            "/devices/{name}/drain": self._drain,
            "/devices/{name}/resume": self._resume,
            "/devices/{name}/revoke": self._revoke,
            "/requests/{id}/cancel": self._cancel_request,
            "/bookings": self._book,
            "/bookings/{id}/cancel": self._cancel_booking,
        }
        routes = [
            Route("/static/{name}", self._static),
            Route("/login", self._show_login),
            Route("/login", self._login, methods=["POST"]),
            Route("/logout", self._logout, methods=["POST"]),
            *(Route(path, self._reading(reader)) for path, reader in readers.items()),
            *(Route(path, self._acting(actor), methods=["POST"]) for path, actor in actors.items()),
        ]
        handlers = {FleetError: self._refuse, HTTPException: self._refuse_request}
        return Starlette(routes=routes, exception_handlers=handlers)

    # Signing in

    def _session(self, request: Request) -> Session | None:
        return self._sessions.find(request.cookies.get(self._cookie, ""), time.time())

    def _reading(self, reader: Reader) -> Endpoint:
        async def endpoint(request: Request) -> Response:
            session = self._session(request)
            if session is None:
                return self._pages.page("login", None, status=401, token="")
            return await reader(request, session)

        return endpoint

    def _acting(self, actor: Actor) -> Endpoint:
        async def endpoint(request: Request) -> Response:
            session = self._session(request)
            if session is None:
                return self._pages.page("login", None, status=401, token="")
            form = await _form(request)
            session.check_form(form.get("csrf", ""))
            session.notice, href = await actor(request, form)
            await self._feed.refresh()
            return RedirectResponse(href, 303)

        return endpoint

    async def _show_login(self, request: Request) -> Response:
        """Show a button: programs that only look at a link must not use it up."""
        return self._pages.page("login", None, token=request.query_params.get("token", ""))

    async def _login(self, request: Request) -> Response:
        cookie, session = self._sessions.open((await _form(request)).get("token", ""), time.time())
        self._sessions.close(request.cookies.get(self._cookie, ""))
        answer = RedirectResponse("/", 303)
        age_sec = int(session.ends_at_sec - time.time())
        is_secure = self._cookie.startswith("__Host-")
        answer.set_cookie(self._cookie, cookie, max_age=age_sec, httponly=True, samesite="strict", secure=is_secure)
        return answer

    async def _logout(self, request: Request) -> Response:
        session = self._session(request)
        if session is not None:
            session.check_csrf((await _form(request)).get("csrf", ""))
            self._sessions.close(request.cookies.get(self._cookie, ""))
        return RedirectResponse("/login", 303)

    async def _static(self, request: Request) -> Response:
        found = static_file(request.path_params["name"])
        if found is None:
            raise HTTPException(404)
        return found

    async def _refuse(self, request: Request, error: Exception) -> Response:
        """Answer an error of the fleet with a page."""
        known = error if isinstance(error, FleetError) else FleetError(str(error))
        code = 503 if known.is_retryable else next(code for kind, code in _STATUS if isinstance(known, kind))
        return self._error(request, code, str(error))

    async def _refuse_request(self, request: Request, error: Exception) -> Response:
        """Answer a request that no page takes."""
        known = error if isinstance(error, HTTPException) else HTTPException(500)
        return self._error(request, known.status_code, known.detail)

    def _error(self, request: Request, status: int, text: str) -> Response:
        return self._pages.page("error", self._session(request), status=status, title="Error", text=text)

    # Pages

    def _show(
        self,
        request: Request,
        session: Session,
        title: str,
        live: str,
        *,
        template: str = "live",
        filter_text: str | None = None,
    ) -> Response:
        """Return a page, or only its changing part.

        Args:
            filter_text: filter in use; None for a page without one.
        """
        if _LIVE in request.headers:
            return HTMLResponse(live)
        return self._pages.page(template, session, live=live, title=title, path=request.url.path, filter=filter_text)

    def _kept_part(self, name: str, grid: Callable[[View], Grid], view: View, **values: object) -> str:
        """Return a table: without a filter, the same text serves all viewers."""
        version, at_sec, text = self._kept.get(name, (-1, 0.0, ""))
        is_plain = view == View()
        if is_plain and version == self._feed.version and time.monotonic() - at_sec < _KEPT_SEC:
            return text
        text = self._pages.part(name, grid=grid(view), is_away=not self._client.is_connected, **values)
        if is_plain:
            self._kept[name] = (self._feed.version, time.monotonic(), text)
        return text

    async def _fleet(self, request: Request, session: Session) -> Response:
        snapshot, now_sec, view = self._feed.snapshot, self._feed.now_sec, _view(request)
        part = self._kept_part(
            "fleet", lambda view: views.fleet_grid(snapshot, view, now_sec), view, counts=views.counts(snapshot)
        )
        return self._show(request, session, "Fleet", part, filter_text=view.filter)

    async def _queue(self, request: Request, session: Session) -> Response:
        snapshot, now_sec, view = self._feed.snapshot, self._feed.now_sec, _view(request)
        part = self._kept_part("queue", lambda view: views.queue_grid(snapshot, view, now_sec), view)
        return self._show(request, session, "Queue", part, filter_text=view.filter)

    async def _device(self, request: Request, session: Session) -> Response:
        page = views.device_page(self._feed.snapshot, request.path_params["name"], self._feed.now_sec)
        plots = views.history_plots(await self._history(f"devices/{page.name}"))
        return self._show(
            request, session, page.name, self._pages.part("device", page=page, plots=plots, session=session)
        )

    async def _history(self, name: str) -> list[Telemetry]:
        """Return the last hour of a device, asked for at most every ten seconds."""
        asked_sec, samples = self._histories.get(name, (-_HISTORY_SEC, []))
        if time.monotonic() - asked_sec >= _HISTORY_SEC:
            samples = await self._client.history(name)
            if len(self._histories) >= _MOST_HISTORIES:
                self._histories.clear()
            self._histories[name] = (time.monotonic(), samples)
        return samples

    async def _request(self, request: Request, session: Session) -> Response:
        page = views.request_page(await self._client.explain_request(request.path_params["id"]))
        return self._show(request, session, "Request", self._pages.part("request", page=page, session=session))

    async def _bookings(self, request: Request, session: Session) -> Response:
        number = _week(request.query_params.get("week", "0"))
        days = views.week(self._feed.snapshot.bookings, self._feed.now_sec, number)
        part = self._pages.part("bookings", days=days, number=number, weeks=views.WEEKS, session=session)
        return self._show(request, session, "Bookings", part, template="bookings")

    async def _all_jobs(self, request: Request, session: Session) -> Response:
        snapshot, now_sec, view = self._feed.snapshot, self._feed.now_sec, _view(request)
        stored, problem = await self._stored_jobs()
        part = self._pages.part("jobs", grid=views.jobs_grid(snapshot, view, now_sec), stored=stored, problem=problem)
        return self._show(request, session, "Jobs", part, filter_text=view.filter)

    async def _stored_jobs(self) -> tuple[Grid | None, str]:
        try:
            return await asyncio.to_thread(self._jobs.newest), ""
        except LibraryError as error:
            return None, str(error)

    async def _job(self, request: Request, session: Session) -> Response:
        name = request.path_params["name"]
        status, problem, page = views.job_status(self._feed.snapshot, name), "", None
        try:
            page = await asyncio.to_thread(self._jobs.job, name)
        except (LibraryError, NotFound) as error:
            if status is None:
                raise
            problem = str(error)
        facts = views.status_facts(status, self._feed.now_sec)
        return self._show(request, session, name, self._pages.part("job", page=page, facts=facts, problem=problem))

    async def _usage(self, request: Request, session: Session) -> Response:
        days = request.query_params.get("days", "7")
        usage = await self._client.usage(UsageKey.ACCOUNT, _PERIODS.get(days, _PERIODS["7"]))
        part = self._pages.part("usage", grid=views.usage_grid(usage), days=days, periods=list(_PERIODS))
        return self._show(request, session, "Use by account", part)

    async def _events(self, request: Request, session: Session) -> Response:
        if self._streams >= _MOST_STREAMS:
            raise HTTPException(503, "too many browsers follow this page; close some")
        return StreamingResponse(self._stream(request), media_type="text/event-stream")

    async def _stream(self, request: Request) -> AsyncIterator[str]:
        """Yield an event after each change, until the session ends."""
        self._streams += 1
        try:
            yield "retry: 2000\n\n"
            async for version in self._feed.versions():
                if self._session(request) is None:
                    return
                yield ": \n\n" if version is None else f"data: {version}\n\n"
        finally:
            self._streams -= 1

    # Forms

    def _reason(self, form: Form) -> str:
        return forms.reason_in(form) or f"{self._client.holder}, in fleet web"

    async def _drain(self, request: Request, form: Form) -> tuple[str, str]:
        return await self._mark(request, form, HealthState.DRAINING, "is drained: its lease ends, no new one begins")

    async def _resume(self, request: Request, form: Form) -> tuple[str, str]:
        return await self._mark(request, form, HealthState.GOOD, "is granted to everybody again")

    async def _mark(self, request: Request, form: Form, state: HealthState, result: str) -> tuple[str, str]:
        name = request.path_params["name"]
        views.find_device(self._feed.snapshot, name)
        await self._client.set_health(f"name={name}", state, self._reason(form))
        return f"{name} {result}", views.device_href(name)

    async def _revoke(self, request: Request, form: Form) -> tuple[str, str]:
        lease = await self._client.revoke(form.get("lease", ""), self._reason(form))
        return f"{lease.held_by} no longer holds {short_name(lease.device_name)}", views.device_href(lease.device_name)

    async def _cancel_request(self, request: Request, form: Form) -> tuple[str, str]:
        done = await self._client.cancel_request(request.path_params["id"], self._reason(form))
        return f"{done.asked_by} waits no more for {done.terms.wanted}", "/queue"

    async def _book(self, request: Request, form: Form) -> tuple[str, str]:
        selector, starts_at_sec, length_sec, count = forms.booking_in(form, time.time())
        done = await self._client.book(selector, starts_at_sec, length_sec, count=count)
        return f"booked {count_text(done.device_count, 'device')}: {booking_id(done.name)}", "/bookings"

    async def _cancel_booking(self, request: Request, form: Form) -> tuple[str, str]:
        done = await self._client.cancel_booking(request.path_params["id"])
        return f"cancelled the booking {booking_id(done.name)} of {done.booked_by}", "/bookings"


async def _form(request: Request) -> Form:
    return await forms.read_form(request.headers.get("content-type", ""), request.stream())


def _view(request: Request) -> View:
    query = request.query_params
    return View(filter=query.get("filter", ""), sort=query.get("sort", ""), is_turned=bool(query.get("turned")))


def _week(text: str) -> int:
    """Return the number of a week in an address; that of this week for other texts."""
    return int(text) if text.isdecimal() and len(text) == 1 and int(text) < views.WEEKS else 0
