"""The page in a browser: real processes, headless Chromium, the keyboard alone, and attacks."""

from __future__ import annotations

import http.client
import re
import socket
import ssl
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import pytest

import fleet
from fleet.base.config import state_dir
from fleet.identity.certificates import make_authority
from fleet.testing import eventually_sync
from fleet.web.login_file import make_link
from fleet.web.sessions import Right
from tests.needs import is_absent
from tests.system.browser import ENTER, TAB, Browser, browsing
from tests.system.fleet_processes import connect, run_fleet, running_fleet, start_fleet

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

EVIL = "<img src=x onerror=alert(1)>"
PAGES = ("/", "/queue", "/devices/pi-1", "/bookings", "/jobs", "/usage")
FORMS = ("/devices/pi-1/drain", "/devices/pi-1/resume", "/devices/pi-1/revoke", "/requests/1/cancel", "/bookings")
_CSRF = re.compile(r'name="csrf" value="([^"]+)"')


@dataclass
class Answer:
    """Answer to a request."""

    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def csrf(self) -> str:
        """Secret of its forms."""
        found = _CSRF.search(self.text)
        assert found, self.text
        return found[1]


@dataclass
class Site:
    """A page of a tracker with two simulated devices."""

    tracker: str
    url: str

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def link(self, right: Right = Right.ACT) -> str:
        """Return a link as `fleet web login` does."""
        return make_link(self.port, right, time.time())

    def ask(
        self, path: str, form: Mapping[str, str] | bytes | None = None, *, cookie: str = "", **headers: str
    ) -> Answer:
        """Send a request as a program without a browser's headers."""
        sent = {"Cookie": cookie, **({"Content-Type": "application/x-www-form-urlencoded"} if form is not None else {})}
        body = urlencode(form).encode() if isinstance(form, Mapping) else form
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request("GET" if form is None else "POST", path, body, {**sent, **headers})
            answer = connection.getresponse()
            return Answer(answer.status, dict(answer.getheaders()), answer.read().decode())
        finally:
            connection.close()

    def sign_in(self, right: Right = Right.ACT) -> str:
        """Return the cookie of a session."""
        token = urlsplit(self.link(right)).query.removeprefix("token=")
        answer = self.ask("/login", {"token": token})
        assert answer.status == 303
        return answer.headers["set-cookie"].partition(";")[0]

    def mark(self) -> str:
        """Return the health of the first device."""
        with connect(self.tracker) as client:
            return client.devices("name=pi-1")[0].mark.state


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    config = "devices: [{driver: simulated, name: pi-1}, {driver: simulated, name: pi-2}]\n"
    with running_fleet(folder, config) as served:
        process = start_fleet(
            "web", "--port", "0", "--tracker", served.address, "--library", str(folder / "library.sqlite")
        )
        try:
            assert process.stdout is not None
            yield Site(served.address, process.stdout.readline().split()[-1])
        finally:
            process.terminate()
            _, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "Traceback" not in errors


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if is_absent("chromedriver"):
        pytest.skip("no chromedriver here")
    with browsing(tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.fixture
def signed_in(site: Site, browser: Browser) -> Browser:
    """A browser that may act."""
    browser.resize(1280, 800)
    browser.open(site.link())
    shortly(lambda: browser.focused() == "Sign in")
    browser.type(ENTER)
    shortly(lambda: browser.path() == "/" and "pi-2" in browser.text())
    browser.console()
    return browser


def test_nothing_is_shown_to_a_browser_that_did_not_sign_in(site: Site) -> None:
    """Every user of a machine reaches its loopback."""
    for path in (*PAGES, "/events", "/jobs/any", "/requests/any"):
        answer = site.ask(path, cookie=f"fleet-{site.port}=forged")
        assert answer.status == 401
        assert "pi-1" not in answer.text
    for path in FORMS:
        assert site.ask(path, {"csrf": "", "reason": "x"}).status == 401


def test_a_link_works_once_and_its_secret_is_private(site: Site) -> None:
    """Looking at the link does not use it up."""
    printed = run_fleet("web", "login", "--port", str(site.port))
    link = urlsplit(printed.stdout.strip())
    form = {"token": link.query.removeprefix("token=")}

    looks = [site.ask(f"{link.path}?{link.query}") for _ in range(2)]
    first, second = (site.ask("/login", form) for _ in range(2))

    assert [look.status for look in looks] == [200, 200]
    assert not any("set-cookie" in look.headers for look in looks)
    assert (first.status, second.status) == (303, 403)
    cookie = first.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    file = state_dir() / "web" / f"{site.port}.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def test_a_form_without_the_right_to_act_changes_nothing(site: Site) -> None:
    """Neither with a link to read, nor without the form's secret, nor from another origin."""
    reader, actor = site.sign_in(Right.READ), site.sign_in()
    csrf = site.ask("/devices/pi-1", cookie=actor).csrf
    good = {"csrf": csrf, "reason": "attack"}
    attacks = [
        site.ask("/devices/pi-1/drain", {**good, "csrf": site.ask("/", cookie=reader).csrf}, cookie=reader),
        site.ask("/devices/pi-1/drain", {"reason": "attack"}, cookie=actor),
        site.ask("/devices/pi-1/drain", {**good, "csrf": csrf[:-1]}, cookie=actor),
        site.ask("/devices/pi-1/drain", good, cookie=actor, Origin="https://evil.example"),
        site.ask("/devices/pi-1/drain", good, cookie=actor, Origin="null"),
        site.ask("/devices/pi-1/drain", good, cookie=actor, Origin=f"http://127.0.0.1:{site.port + 1}"),
    ]

    assert [attack.status for attack in attacks] == [403] * len(attacks)
    assert site.ask("/devices/pi-1/drain", cookie=actor).status == 405
    assert "Drain" not in site.ask("/devices/pi-1", cookie=reader).text
    assert site.mark() == "good"


def test_a_signed_out_session_is_over(site: Site) -> None:
    """Its cookie opens nothing any more; another page cannot sign it out."""
    cookie = site.sign_in()
    csrf = site.ask("/", cookie=cookie).csrf

    assert site.ask("/logout", {"csrf": "wrong"}, cookie=cookie).status == 403
    assert site.ask("/logout", {"csrf": csrf}, cookie=cookie).status == 303
    assert site.ask("/", cookie=cookie).status == 401


@pytest.mark.parametrize("host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:{other}", ""])
def test_requests_for_other_names_are_refused(site: Site, host: str) -> None:
    """A name of an attacker's that resolves to the loopback makes the page no part of the attacker's."""
    named = host.format(port=site.port, other=site.port + 1)

    assert site.ask("/", cookie=site.sign_in(Right.READ), Host=named).status == 421


def test_every_answer_has_a_strict_policy(site: Site) -> None:
    """No scripts, styles or frames of others; also on errors."""
    for answer in (site.ask("/login"), site.ask("/none"), site.ask("/", Host="evil"), site.ask("/static/page.js")):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "server" not in answer.headers


def test_odd_requests_are_refused(site: Site) -> None:
    """Paths to other files, huge forms and bad fields."""
    cookie = site.sign_in()
    csrf = site.ask("/", cookie=cookie).csrf
    for path in ("/static/../pages.py", "/static/%2e%2e%2fpages.py", "/static//etc/passwd", "/static/none.css"):
        assert site.ask(path).status == 404
    assert site.ask("/devices/none", cookie=cookie).status == 404
    assert site.ask("/?filter==", cookie=cookie).status == 400
    assert site.ask("/bookings", b"csrf=" + b"x" * 1_000_000, cookie=cookie).status == 400
    assert site.ask("/bookings", b"\xff\x00=&&==", cookie=cookie).status == 400
    assert site.ask("/bookings", {"csrf": csrf, "selector": "=", "start": "2h"}, cookie=cookie).status == 400
    assert site.ask("/devices/pi-1/revoke", {"csrf": csrf, "lease": "leases/none"}, cookie=cookie).status == 404
    assert site.ask("/", cookie=cookie).status == 200


def test_silent_connections_are_closed(site: Site) -> None:
    """Also after a part of a request: they would take all places."""
    for sent in (b"", b"GET / HTTP/1.1\r\nHost: x"):
        with socket.create_connection(("127.0.0.1", site.port), timeout=60) as connection:
            connection.sendall(sent)
            assert connection.recv(1) == b""


def test_a_device_is_drained_by_keyboard(site: Site, signed_in: Browser) -> None:
    """Links, buttons and forms in their order, without a mouse."""
    _walk(signed_in, "Skip to content", "Fleet", "Queue", "Bookings", "Jobs", "Use", "Sign out", "filter", "Show")
    _walk_to(signed_in, "pi-1")
    signed_in.type(ENTER)
    shortly(lambda: signed_in.path() == "/devices/pi-1")
    _walk_to(signed_in, "Drain…")
    signed_in.type(ENTER, TAB, EVIL, ENTER)
    shortly(lambda: "pi-1 is drained" in signed_in.text())

    assert site.mark() == "draining"
    assert EVIL in signed_in.text()  # as text
    _walk_to(signed_in, "Resume…")
    signed_in.type(ENTER, TAB, ENTER)
    shortly(lambda: "granted to everybody" in signed_in.text())
    assert site.mark() == "good"
    assert signed_in.console() == []


def test_a_booking_is_made_and_cancelled(site: Site, signed_in: Browser) -> None:
    """It is in the week, and at the tracker."""
    signed_in.open(f"{site.url}/bookings")
    start = time.strftime("%Y-%m-%dT%H:%M", time.localtime(time.time() + 3600))
    signed_in.run("document.getElementById('start').value = arguments[0]", start)
    signed_in.run("document.getElementById('selector').focus()")
    signed_in.type("name=pi-2", ENTER)
    shortly(lambda: "booked 1 device" in signed_in.text())

    with connect(site.tracker) as client:
        assert [booking.selector for booking in client.bookings()] == ["name=pi-2"]
        assert "name=pi-2" in signed_in.text()
        _walk_to(signed_in, "Cancel…")
        signed_in.type(ENTER, TAB, ENTER)
        shortly(lambda: "cancelled the booking" in signed_in.text())
        assert client.bookings() == []


def test_pages_follow_the_fleet(site: Site, signed_in: Browser) -> None:
    """A lease is shown without a reload, and revoked; the request behind it is cancelled. Names stay text."""
    signed_in.run("window.isSame = true")
    with fleet.connect(site.tracker, connect_timeout_sec=60, holder=EVIL) as holder:
        holder.acquire_device("name=pi-1")
        shortly(lambda: EVIL in signed_in.text())
        assert signed_in.run("return window.isSame")
        waiting = start_fleet("acquire", "name=pi-1", "--tracker", site.tracker, "--", "true")
        signed_in.open(f"{site.url}/queue")
        shortly(lambda: "name=pi-1" in signed_in.text())
        signed_in.run("document.querySelector('td a').focus()")
        signed_in.type(ENTER)
        shortly(lambda: "1 device would do" in signed_in.text())
        _walk_to(signed_in, "Cancel the request…")
        signed_in.type(ENTER, TAB, "enough", ENTER)
        shortly(lambda: "waits no more" in signed_in.text())
        assert "enough" in waiting.communicate(timeout=60)[1]

        signed_in.open(f"{site.url}/devices/pi-1")
        _walk_to(signed_in, "Revoke the lease…")
        signed_in.type(ENTER, TAB, "needed", ENTER)
        shortly(lambda: "no longer holds pi-1" in signed_in.text())
    assert signed_in.console() == []


@pytest.mark.parametrize("width", [390, 1280])
def test_pages_are_accessible_and_fit_their_width(site: Site, signed_in: Browser, width: int) -> None:
    """Axe finds nothing, no page scrolls sideways, and nothing breaks the policy."""
    signed_in.resize(width, 844)
    for path in (*PAGES, "/login", "/none", "/?sort=state&filter=simulated"):
        signed_in.open(site.url + path)
        assert signed_in.axe() == [], path
        assert signed_in.run("return document.documentElement.scrollWidth") <= width, path
    found = [line for line in signed_in.console() if "/none" not in line]
    assert found == []


def test_axe_would_find_a_mistake(signed_in: Browser) -> None:
    """A check that cannot fail proves nothing."""
    signed_in.run("document.getElementById('filter').labels[0].remove()")
    signed_in.run("document.getElementById('filter').placeholder = ''")

    assert any("label" in finding for finding in signed_in.axe())


def test_the_network_gets_the_page_by_https_only(site: Site, tmp_path: Path) -> None:
    """The cookie has the attribute and the prefix that keep it from HTTP."""
    own = make_authority(datetime.now(UTC))  # any certificate will do
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    certificate.write_bytes(own.certificate_pem)
    key.write_bytes(own.key_pem)
    options = ("--certificate", str(certificate), "--key", str(key), "--url", "https://fleet.test", "--allow-network")
    process = start_fleet("web", "--host", "127.0.0.1", "--port", "0", "--tracker", site.tracker, *options)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "page listening on https://fleet.test\n"
        port = int(process.stdout.readline().split()[-1])
        token = urlsplit(make_link(port, Right.READ, time.time())).query.removeprefix("token=")
        context = ssl.create_default_context(cadata=own.certificate_pem.decode())
        context.check_hostname = False
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=60, context=context)
        kind = {"Content-Type": "application/x-www-form-urlencoded", "Host": "fleet.test"}
        connection.request("POST", "/login", urlencode({"token": token}), {**kind, "Origin": "https://fleet.test"})
        cookie = connection.getresponse().getheader("set-cookie", "")
        connection.close()
        assert cookie.startswith("__Host-fleet-")
        assert "secure" in cookie.lower()
        with socket.create_connection(("127.0.0.1", port), timeout=60) as plain:
            plain.sendall(b"GET / HTTP/1.1\r\nHost: fleet.test\r\n\r\n")
            assert not plain.recv(100).startswith(b"HTTP")
    finally:
        process.terminate()
        process.communicate(timeout=60)


def test_login_needs_a_running_page_of_this_user() -> None:
    """The error names the command that starts one."""
    done = run_fleet("web", "login", "--port", "1")

    assert done.returncode == 1
    assert "fleet web --port 1" in done.stderr


def test_a_unit_starts_the_page(site: Site) -> None:
    """With the options, checked before the unit is written."""
    done = run_fleet("web", "unit", "--tracker", site.tracker, "--", "--port", "8081")
    bad = run_fleet("web", "unit", "--", "--allow-network")

    assert f"web --tracker {site.tracker} --port 8081" in done.stdout
    assert bad.returncode == 2
    assert "--behind-proxy" in bad.stderr


def shortly(is_so: Callable[[], object]) -> None:
    """Wait for a condition, as long as a busy machine may take."""
    eventually_sync(is_so, 60)


def _walk(browser: Browser, *stops: str) -> None:
    """Press tab for each stop, and expect it."""
    for stop in stops:
        browser.type(TAB)
        assert browser.focused() == stop


def _walk_to(browser: Browser, stop: str) -> None:
    """Press tab until an element has the focus."""
    for _ in range(60):
        browser.type(TAB)
        if browser.focused() == stop:
            return
    raise AssertionError(f"no way by tab to {stop!r}: {browser.text()}")
