"""Registries and web servers for tests: Debian's docker-registry, and small servers, also hostile ones."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO, Any

USER, PASSWORD = "ann", "secret"
_HTPASSWD = f"{USER}:$2b$04$abcdefghijklmnopqrstuu2r9OfJnfCsdneAXAGHnS4UpFFP8WIrW\n"
"""Of this password, by bcrypt."""

_LISTENING = re.compile(r"listening on (127\.0\.0\.1:\d+)")


@contextmanager
def docker_registry(folder: Path, *, needs_password: bool = False) -> Iterator[str]:
    """Run Debian's docker-registry, and yield its host."""
    folder.mkdir()
    (folder / "htpasswd").write_text(_HTPASSWD)
    auth = f"auth:\n  htpasswd:\n    realm: test\n    path: {folder}/htpasswd\n" if needs_password else ""
    config = (
        "version: 0.1\nlog:\n  level: info\n"
        f"storage:\n  filesystem:\n    rootdirectory: {folder}/storage\nhttp:\n  addr: 127.0.0.1:0\n{auth}"
    )
    (folder / "config.yml").write_text(config)
    command = ["docker-registry", "serve", str(folder / "config.yml")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as server:
        assert server.stderr is not None
        try:
            yield _host(server.stderr)
        finally:
            server.terminate()


def _host(log: IO[str]) -> str:
    """Return the address in a log, and read the rest of it, so that the server never waits for a reader."""
    for line in log:
        if found := _LISTENING.search(line):
            threading.Thread(target=lambda: list(log), name="log", daemon=True).start()
            return found[1]
    raise AssertionError("docker-registry does not start")


class Handler(BaseHTTPRequestHandler):
    """A request, with a short way to answer."""

    def answer(self, status: int, content: bytes = b"", **headers: str) -> None:
        """Send a response. Underscores in names of headers mean dashes."""
        self.send_response(status)
        for name, value in {"Content_Length": str(len(content)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Write no log."""


@contextmanager
def served(answer: Callable[[Handler], object], tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """Run a web server with one function for all requests, and yield its host."""

    class _Handler(Handler):
        def handle_any(self) -> None:
            with contextlib.suppress(ConnectionError):  # a client that has read enough
                answer(self)

        do_GET = do_HEAD = do_PUT = do_POST = handle_any  # noqa: N815 - names of http.server

    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), name="server")
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@dataclass
class Registry:
    """A registry by specification 1.1: with tokens, and with an API of referrers."""

    blobs: dict[str, bytes] = field(default_factory=dict)
    manifests: dict[str, bytes] = field(default_factory=dict)
    """By digest and by tag."""

    requests: list[str] = field(default_factory=list)
    basic: list[str] = field(default_factory=list)
    """Credentials that the token service saw."""

    token: str = "a-token"  # noqa: S105 - of nobody

    def __call__(self, request: Handler) -> None:
        """Answer a request."""
        path, _, query = request.path.partition("?")
        self.requests.append(f"{request.command} {path}")
        content = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        if path == "/token":
            self.basic.append(request.headers.get("Authorization", ""))
            request.answer(200, json.dumps({"token": self.token, "scope": query}).encode())
        elif request.headers.get("Authorization") != f"Bearer {self.token}":
            host = request.headers["Host"]
            challenge = f'Bearer realm="http://{host}/token",service="test",scope="repository:lab/pi4:pull"'
            request.answer(401, b'{"errors":[{"code":"UNAUTHORIZED"}]}', WWW_Authenticate=challenge)
        else:
            self._answer(request, path.removeprefix("/v2/lab/pi4/"), query, content)

    def _answer(self, request: Handler, path: str, query: str, content: bytes) -> None:
        kind, _, name = path.partition("/")
        if request.command == "POST":
            request.answer(202, Location="/v2/lab/pi4/blobs/uploads/1?state=x")
        elif request.command == "PUT":
            self._put(request, kind, name, query, content)
        elif kind == "referrers":
            request.answer(200, json.dumps({"manifests": self._referrers(name)}).encode())
        elif (found := (self.blobs if kind == "blobs" else self.manifests).get(name)) is None:
            request.answer(404, b'{"errors":[{"code":"NAME_UNKNOWN","message":"no\\u001b[2Jsuch"}]}')
        else:
            request.answer(200, found)

    def _put(self, request: Handler, kind: str, name: str, query: str, content: bytes) -> None:
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        if kind == "blobs":
            assert query == f"state=x&digest={digest.replace(':', '%3A')}"
            self.blobs[digest] = content
            request.answer(201)
            return
        self.manifests[digest] = self.manifests[name] = content
        subject = json.loads(content).get("subject", {}).get("digest", "")
        request.answer(201, **({"OCI_Subject": subject} if subject else {}))

    def _referrers(self, subject: str) -> list[dict[str, Any]]:
        parsed = {
            digest: (json.loads(text), len(text)) for digest, text in self.manifests.items() if digest.startswith("sha")
        }
        return [
            {"mediaType": one["mediaType"], "digest": digest, "size": size, "artifactType": one["artifactType"]}
            for digest, (one, size) in parsed.items()
            if one.get("subject", {}).get("digest") == subject
        ]
