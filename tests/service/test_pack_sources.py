"""Packs on web servers and in installed Python packages: the same checks as for a folder."""

from __future__ import annotations

import ipaddress
import json
import ssl
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from fleet.errors import FleetError, NotFound, RegistryError
from fleet.packs import web
from fleet.packs.packaged import packaged_folder, packaged_names
from fleet.packs.shelf import Shelf
from fleet.packs.web import Web
from tests.packs import ANYONE, Draft, make_key
from tests.registries import Handler, served
from tests.service.test_packs import Fleet, allow, fleet, make

__all__ = ["fleet"]


def test_pythons_web_server_serves_a_pack(fleet: Fleet, tmp_path: Path) -> None:
    """A folder of files is enough. packs.lock has the address for updates."""
    key = make_key(tmp_path)
    make(fleet, "pi4.pack", "--sign", str(key))
    allow(key)
    (tmp_path / "served" / "pi4").mkdir(parents=True)
    subprocess.run(["tar", "-xf", "pi4.pack", "-C", str(tmp_path / "served" / "pi4")], check=True)
    handler = partial(_Quiet, directory=str(tmp_path / "served"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,), name="server")
        thread.start()
        address = f"http://127.0.0.1:{server.server_port}/pi4/"
        added = fleet("add", address, "--json")
        updated = fleet("update")
        missing = fleet("add", f"http://127.0.0.1:{server.server_port}/none")
        server.shutdown()
        thread.join()
    [pack] = json.loads(added[1])["packs"]
    assert (pack["name"], pack["source"], pack["signer"]) == ("pi4", address, "ann@lab")
    assert updated[0] == 0
    assert (missing[0], "/none/oci-layout answers with status 404" in missing[2]) == (1, True)
    assert "does not answer: Connection refused" in fleet("update")[2]


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Write no log."""


def folder_server(folder: Path, change: Callable[[Handler], bool]) -> Callable[[Handler], None]:
    """Serve the files of a folder, but for requests that `change` answers."""

    def answer(request: Handler) -> None:
        if not change(request):
            file = folder / request.path.removeprefix("/pi4/")
            request.answer(200, file.read_bytes()) if file.is_file() else request.answer(404)

    return answer


def on(word: str, act: Callable[[Handler], object]) -> Callable[[Handler], bool]:
    """Act on requests with a word in their path."""

    def change(request: Handler) -> bool:
        if word in request.path:
            act(request)
        return word in request.path

    return change


def redirect(place: str, status: int = 302) -> Callable[[Handler], object]:
    return lambda request: request.answer(status, Location=place)


def without_end(request: Handler) -> None:
    """Send bytes until the client leaves."""
    request.send_response(200)
    request.end_headers()
    while True:
        request.wfile.write(b" " * 65536)


def cut_short(request: Handler) -> None:
    """Promise the length of a blob, and send less."""
    request.send_response(200)
    request.send_header("Content-Length", "1000")
    request.end_headers()
    request.wfile.write(b"{}")


def large(request: Handler) -> None:
    """Claim more bytes than any pack may have."""
    request.answer(200, b"x", Content_Length=str(2**40))


HOSTILE: dict[str, tuple[Callable[[Handler], bool], str]] = {
    "index without end": (on("index.json", without_end), "more than 1,048,576"),
    "layout file without end": (on("oci-layout", without_end), "more than 4,096"),
    "huge index": (on("index.json", large), "more than 1,048,576"),
    "blob without end": (on("blobs/", without_end), "another digest"),
    "huge blob": (on("blobs/", large), "instead of"),
    "index cut short": (on("index.json", cut_short), "truncated"),
    "blob cut short": (on("blobs/", cut_short), "instead of"),
    "another blob": (on("blobs/", lambda request: request.answer(200, b"{}")), "instead of"),
    "file instead": (on("index.json", redirect("file:///etc/passwd")), "neither https nor the same server"),
    "ftp instead": (on("index.json", redirect("ftp://127.0.0.1/x")), "neither https nor the same server"),
    "another port": (on("index.json", redirect("http://127.0.0.1:22/")), "neither https nor the same server"),
    "another machine": (on("blobs/", redirect("http://192.0.2.1/")), "neither https nor the same server"),
    "no address": (on("index.json", redirect("http://[::1/")), "no address"),
    "in a circle": (on("index.json", redirect("/pi4/index.json", 308)), "redirects more than 5 times"),
    "500": (on("index.json", lambda request: request.answer(500)), "status 500"),
    "204": (on("index.json", lambda request: request.answer(204)), "status 204"),
    "no HTTP": (on("index.json", lambda request: request.wfile.write(b"SSH-2.0\r\n")), "does not answer"),
    "silence": (on("index.json", lambda request: request.connection.close()), "does not answer"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_server_is_refused_and_nothing_is_kept(tmp_path: Path, name: str) -> None:
    """Each is refused in one printable line with the reason."""
    change, reason = HOSTILE[name]
    folder = Draft().write(tmp_path / "draft")
    with served(folder_server(folder, change)) as host, pytest.raises(FleetError) as refused:
        Shelf(tmp_path / "packs").add(f"http://{host}/pi4", ANYONE)
    assert reason in str(refused.value)
    assert str(refused.value).isprintable()
    assert {".changing"} == {entry.name for entry in (tmp_path / "packs").iterdir()}


def test_a_server_without_lengths_is_read_to_the_manifests_sizes(tmp_path: Path) -> None:
    """Content-Length is not needed, since sizes and digests are the manifest's."""
    folder = Draft().write(tmp_path / "draft")

    def answer(request: Handler) -> None:
        request.send_response(200)
        request.end_headers()
        request.wfile.write((folder / request.path.removeprefix("/pi4/")).read_bytes())

    with served(answer) as host:
        assert Shelf(tmp_path / "packs").add(f"http://{host}/pi4", ANYONE).records == 2


def test_a_slow_server_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes that come, but too slowly, do not hold a command for ever."""
    monkeypatch.setattr(web, "_GRACE_SEC", -1e9)
    folder = Draft().write(tmp_path / "draft")
    with (
        served(folder_server(folder, lambda _: False)) as host,
        pytest.raises(RegistryError, match="slower than 1024 bytes/s"),
    ):
        Shelf(tmp_path / "packs").add(f"http://{host}/pi4", ANYONE)


def test_a_silent_server_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that accepts and says nothing is an error."""
    monkeypatch.setattr(web, "_TIMEOUT_SEC", 0.05)
    with (
        served(lambda request: request.rfile.read(1)) as host,
        pytest.raises(RegistryError, match=r"nothing came for 0\.05 s"),
    ):
        Shelf(tmp_path / "packs").add(f"http://{host}/pi4", ANYONE)


def certificate(folder: Path) -> Path:
    """Make a certificate for 127.0.0.1, in one file with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name, now = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")]), datetime.now(UTC)
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    built = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    built = built.serial_number(1).not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
    signed = built.add_extension(address, critical=False).sign(key, SHA256())
    file = folder / "server.pem"
    file.write_bytes(
        signed.public_bytes(Encoding.PEM) + key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    )
    return file


def test_a_redirect_to_another_server_loses_the_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Registries keep blobs elsewhere. The certificate of that place is checked."""
    file, seen = certificate(tmp_path), []

    def storage(request: Handler) -> None:
        seen.append(request.headers.get("Authorization"))
        request.answer(200, b"content")

    def registry(request: Handler) -> None:
        seen.append(request.headers.get("Authorization"))
        request.answer(307, Location=f"https://{place}/blob?signature=x") if len(seen) > 1 else request.answer(
            307, Location="/again"
        )

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    headers = {"Authorization": "Bearer secret"}
    with served(storage, context) as place, served(registry) as host:
        with pytest.raises(RegistryError, match="certificate"):
            Web().send("GET", f"http://{host}/blob", headers)
        seen.clear()
        monkeypatch.setenv("SSL_CERT_FILE", str(file))
        answer = Web().send("GET", f"http://{host}/blob", headers)
        content = answer.body.read(100)
        answer.close()
    assert (content, seen) == (b"content", ["Bearer secret", "Bearer secret", None])


def install(site: Path, folder: str = "lab_packs/pi4", value: str = "lab_packs.pi4") -> None:
    """Install a package with a pack, as pip does. Its code must not run."""
    Draft().write(site / folder)
    (site / "lab_packs").mkdir(exist_ok=True)
    (site / "lab_packs" / "__init__.py").write_text("raise SystemExit('imported')\n")
    found = site / "lab_packs-1.0.dist-info"
    found.mkdir()
    (found / "METADATA").write_text("Metadata-Version: 2.1\nName: lab-packs\nVersion: 1.0\n")
    (found / "entry_points.txt").write_text(f"[fleet.packs]\npi4-lab = {value}\n")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of installed packages."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    return folder


def test_an_installed_package_brings_a_pack(fleet: Fleet, site: Path) -> None:
    """It is listed, added by its name, and its package's code never runs."""
    install(site)
    listed = fleet("list")
    added = fleet("add", "pi4-lab", "--allow-unsigned", "--json")
    again = fleet("list")
    updated = fleet("update", "--allow-unsigned")
    [pack] = json.loads(added[1])["packs"]
    assert (pack["name"], pack["source"]) == ("pi4-lab", "package:pi4-lab")
    assert "in installed packages: pi4-lab; 'fleet pack add NAME' adds one" in listed[2]
    assert (again[2], updated[0]) == ("", 0)
    assert json.loads(fleet("list", "--json")[1])["packaged"] == ["pi4-lab"]
    assert "lab_packs" not in sys.modules


def test_a_file_comes_before_a_package_of_its_name(fleet: Fleet, site: Path) -> None:
    """A name in the present folder means that."""
    install(site)
    Draft(config={**Draft().config, "title": "here"}).write(Path("pi4-lab"))
    [pack] = json.loads(fleet("add", "pi4-lab", "--allow-unsigned", "--json")[1])["packs"]
    assert (pack["title"], pack["source"]) == ("here", str(Path("pi4-lab").absolute()))


@pytest.mark.parametrize(
    "value", ["lab_packs.none", "lab_packs:none", "none.pi4", "lab_packs.__init__", "lab_packs..pi4"]
)
def test_an_entry_point_has_to_name_a_folder(site: Path, value: str) -> None:
    """The message has the entry point, for the owner of the package."""
    install(site, value=value)
    with pytest.raises(NotFound, match="names no folder"):
        packaged_folder("pi4-lab")


def test_an_unknown_pack_of_a_package_is_named_with_the_nearest(site: Path) -> None:
    """A package that was removed leaves its name in packs.lock."""
    with pytest.raises(NotFound, match=r"no installed package has a pack 'pi4'$"):
        packaged_folder("pi4")
    install(site)
    assert packaged_names() == ["pi4-lab"]
    with pytest.raises(NotFound, match="did you mean 'pi4-lab'"):
        packaged_folder("pi4-la")
