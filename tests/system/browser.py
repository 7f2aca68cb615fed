"""Headless Chromium, driven by its WebDriver: the calls that tests of pages need."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import axe_core_python

from fleet.testing import eventually_sync

TAB, ENTER = "\ue004", "\ue007"
_AXE = Path(axe_core_python.__file__).with_name("axe.min.js")
_OPTIONS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
_PORT = re.compile(r"successfully on port (\d+)")
_SEC = 60


class Browser:
    """A window of Chromium."""

    def __init__(self, driver: str, session: str = "") -> None:
        self._root = f"{driver}/session/{session}" if session else driver

    def call(self, method: str, path: str, **values: object) -> Any:
        """Call the driver, and return the value of its answer."""
        body = json.dumps(values).encode() if method == "POST" else None
        request = urllib.request.Request(f"{self._root}{path}", body, method=method)  # noqa: S310 - our own driver
        try:
            with urllib.request.urlopen(request, timeout=_SEC) as answer:  # noqa: S310
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{path}: {error.read().decode()[:500]}") from error

    def open(self, url: str) -> None:
        """Load a page."""
        self.call("POST", "/url", url=url)

    def run(self, script: str, *values: object) -> Any:
        """Run JavaScript in the page; return the value that it returns."""
        return self.call("POST", "/execute/sync", script=script, args=list(values))

    def type(self, *keys: str) -> None:
        """Press keys one after the other."""
        pressed = [{"type": kind, "value": key} for text in keys for key in text for kind in ("keyDown", "keyUp")]
        self.call("POST", "/actions", actions=[{"type": "key", "id": "keyboard", "actions": pressed}])

    def text(self) -> str:
        """Return the visible text of the page."""
        return str(self.run("return document.body.innerText"))

    def path(self) -> str:
        """Return the path of the page."""
        return str(self.run("return location.pathname"))

    def focused(self) -> str:
        """Return the text or the name of the focused element."""
        return str(self.run("const e = document.activeElement; return e.id || e.innerText || e.name || e.tagName"))

    def resize(self, width: int, height: int) -> None:
        """Set the size of the page, smaller than the window may be."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("POST", "/goog/cdp/execute", cmd="Emulation.setDeviceMetricsOverride", params=metrics)

    def picture(self, path: Path) -> None:
        """Write a picture of the whole page."""
        shot = {"format": "png", "captureBeyondViewport": True}
        found = self.call("POST", "/goog/cdp/execute", cmd="Page.captureScreenshot", params=shot)
        path.write_bytes(base64.b64decode(found["data"]))

    def axe(self) -> list[str]:
        """Return the findings of axe, which checks the accessibility of the page."""
        # Evaluated by the driver: the page's own policy would refuse a script from elsewhere.
        self.run(_AXE.read_text())
        script = "axe.run().then(found => arguments[0](found.violations), error => arguments[0](String(error)))"
        found = self.call("POST", "/execute/async", script=script, args=[])
        assert isinstance(found, list), found
        return [f"{one['id']}: {node['html'][:200]}" for one in found for node in one["nodes"]]

    def console(self) -> list[str]:
        """Return errors and violated policies since the last call."""
        return [
            entry["message"] for entry in self.call("POST", "/se/log", type="browser") if entry["level"] == "SEVERE"
        ]


@contextmanager
def browsing(folder: Path) -> Iterator[Browser]:
    """Run a browser with a profile of its own."""
    driver = shutil.which("chromedriver")
    assert driver is not None, "Debian's package chromium-driver is not installed"
    log = folder / "chromedriver.log"
    with log.open("w") as output:
        process = subprocess.Popen([driver, "--port=0"], stdout=output, stderr=output, env=_environment(folder))
    try:
        port = eventually_sync(lambda: _PORT.search(log.read_text()), 60)[1]
        server = Browser(f"http://127.0.0.1:{port}")
        options = {"args": [*_OPTIONS, f"--user-data-dir={folder / 'profile'}"]}
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "SEVERE"}}
        session = server.call("POST", "/session", capabilities={"alwaysMatch": wanted})["sessionId"]
        browser = Browser(f"http://127.0.0.1:{port}", session)
        try:
            yield browser
        finally:
            browser.call("DELETE", "")  # ends Chromium
    finally:
        process.terminate()
        process.wait(timeout=_SEC)


def _environment(folder: Path) -> dict[str, str]:
    """Return an environment with a home of the test's own: Chromium writes there."""
    return {**os.environ, "HOME": str(folder), "XDG_CONFIG_HOME": str(folder), "XDG_CACHE_HOME": str(folder)}
