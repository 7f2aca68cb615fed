"""Renders pages from templates. Texts of others are escaped; pictures are made here."""

from __future__ import annotations

from importlib import resources

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.responses import HTMLResponse, Response

from fleet.reports.plot import Svg
from fleet.web.sessions import Session

MENU = {"/": "Fleet", "/queue": "Queue", "/bookings": "Bookings", "/jobs": "Jobs", "/usage": "Use"}
STATIC = {"page.css": "text/css", "page.js": "text/javascript", "icon.svg": "image/svg+xml"}
"""Types of all files that are served as they are."""


class Pages:
    """Templates of one server."""

    def __init__(self, address: str) -> None:
        """Prepare the templates. `address`: the tracker's, for the head of each page."""
        self._environment = Environment(
            loader=PackageLoader("fleet.web"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.globals |= {"menu": MENU, "address": address}
        self._environment.filters["picture"] = _picture

    def part(self, name: str, **values: object) -> str:
        """Return a part of a page that changes with the fleet."""
        return self._environment.get_template(f"parts/{name}.html").render(values)

    def page(
        self, name: str, session: Session | None, *, status: int = 200, live: str = "", **values: object
    ) -> HTMLResponse:
        """Return a whole page.

        Args:
            session: of its viewer; None: not signed in.
            live: the part of the page that changes with the fleet.
        """
        notice = ""
        if session is not None:
            notice, session.notice = session.notice, ""
        template = self._environment.get_template(f"{name}.html")
        text = template.render(values, session=session, notice=notice, live=Markup(live))  # noqa: S704 - our own part
        return HTMLResponse(text, status)


def static_file(name: str) -> Response | None:
    """Return one of our files; None for any other name."""
    if name not in STATIC:
        return None
    content = resources.files("fleet.web").joinpath("static", name).read_bytes()
    return Response(content, media_type=STATIC[name])


def _picture(svg: Svg) -> Markup:
    """Return a picture that was made here; its texts are escaped."""
    return Markup(svg)  # noqa: S704
