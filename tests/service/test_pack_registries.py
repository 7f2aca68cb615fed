"""Packs in registries: Debian's docker-registry, one with tokens and referrers, and skopeo as another reader."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fleet.errors import FleetError, InvalidRequest, NotFound, RegistryError
from fleet.packs import layout
from fleet.packs.addresses import InRegistry, parse_address, registry_address
from fleet.packs.credentials import credentials_for
from fleet.packs.opening import open_address
from fleet.packs.registry import push
from fleet.packs.shelf import Shelf, Trust
from fleet.packs.signing import sign
from fleet.packs.sshsig import PublicKey
from fleet.packs.staging import find_pack, stage
from fleet.packs.web import Web
from tests.needs import is_absent
from tests.packs import ANYONE, Draft, make_key
from tests.registries import PASSWORD, USER, Handler, Registry, docker_registry, served
from tests.service.test_packs import Fleet, allow, fleet, make

__all__ = ["fleet"]

needs_registry = pytest.mark.skipif(is_absent("docker-registry"), reason="needs Debian's docker-registry")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user without credentials."""
    for name in ("DOCKER_AUTH_CONFIG", "REGISTRY_AUTH_FILE", "XDG_RUNTIME_DIR", "DOCKER_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def host(tmp_path: Path) -> Iterator[str]:
    with docker_registry(tmp_path / "registry") as found:
        yield found


def log_in(home: Path, host: str, password: str = PASSWORD) -> None:
    """Write the file that `docker login` writes."""
    auth = base64.b64encode(f"{USER}:{password}".encode()).decode()
    (home / ".docker").mkdir(exist_ok=True)
    (home / ".docker" / "config.json").write_text(json.dumps({"auths": {host: {"auth": auth}}}))


def pushed(folder: Path, host: str, draft: Draft | None = None) -> str:
    """Push an unsigned pack, and return its address."""
    address = registry_address(f"oci://{host}/lab/pi4:1")
    with open_address((draft or Draft()).write(folder / "draft"), Web()) as source:
        found = find_pack(source)
        (folder / "staged").mkdir()
        stage(source, found, folder / "staged")
    push(folder / "staged", found, address, Web())
    return str(address)


@needs_registry
def test_a_signed_pack_goes_through_a_registry(fleet: Fleet, tmp_path: Path, host: str) -> None:
    """The signature arrives by the tag of referrers, since this registry has no API for them."""
    key, address = make_key(tmp_path), f"oci://{host}/lab/rpi4:2026-11"
    digest = make(fleet, "pi4.pack", "--sign", str(key))
    allow(key)

    code, out, err = fleet("push", "pi4.pack", address)
    again = fleet("push", "pi4.pack", address, "--json")
    added = fleet("add", address, "--json")
    by_digest = fleet("add", f"oci://{host}/lab/rpi4@{digest}", "--name", "pinned")

    assert (code, out) == (0, f"{digest}\n"), err
    assert json.loads(again[1]) == {"address": address, "digest": digest, "signatures": 1, "schema": 1}
    [pack] = json.loads(added[1])["packs"]
    assert (pack["name"], pack["digest"], pack["signer"], pack["source"]) == ("rpi4", digest, "ann@lab", address)
    assert "signed by ann@lab" in by_digest[2]
    assert json.loads(fleet("show", address, "--json")[1])["digest"] == digest


@needs_registry
def test_an_update_follows_the_tag(fleet: Fleet, tmp_path: Path, host: str) -> None:
    """packs.lock names the address, so that a new version of the tag is found."""
    key, address = make_key(tmp_path), f"oci://{host}/lab/pi4:best"
    allow(key)
    first = make(fleet, "pi4.pack", "--sign", str(key))
    fleet("push", "pi4.pack", address)
    fleet("add", address)
    second = make(fleet, "pi4.pack", "--sign", str(key), "--title", "new")
    fleet("push", "pi4.pack", address)

    updated = fleet("update", "--json")

    assert first != second == json.loads(updated[1])["packs"][0]["digest"]


@needs_registry
def test_signatures_of_two_owners_are_both_listed(fleet: Fleet, tmp_path: Path, host: str) -> None:
    """The second signature does not replace the first one."""
    address, keys = f"oci://{host}/lab/pi4:1", [make_key(tmp_path), make_key(tmp_path, "ecdsa")]
    for key in keys:
        make(fleet, "pi4.pack", "--sign", str(key))
        assert fleet("push", "pi4.pack", address)[0] == 0
    signers = json.loads(fleet("show", address, "--json")[1])["signers"]
    lines = [key.with_suffix(".pub").read_text() for key in keys]
    assert [True, True] == [line.startswith(one["key"]) for one, line in zip(signers, lines, strict=True)]


@needs_registry
@pytest.mark.skipif(is_absent("skopeo"), reason="needs skopeo")
def test_skopeo_reads_the_pushed_manifest(fleet: Fleet, tmp_path: Path, host: str) -> None:
    """Another program sees the same bytes under the same digest."""
    digest = make(fleet)
    fleet("push", "pi4.pack", f"oci://{host}/lab/pi4:1")
    command = ["skopeo", "inspect", "--raw", "--tls-verify=false", f"docker://{host}/lab/pi4:1"]
    raw = subprocess.run(command, check=True, capture_output=True).stdout
    assert layout.descriptor_of(raw, layout.MANIFEST_TYPE).digest == digest


@needs_registry
def test_a_registry_names_its_error_in_one_sentence(fleet: Fleet, host: str) -> None:
    """The exit code is that of something that is not there."""
    code, out, err = fleet("add", f"oci://{host}/lab/none:1")
    assert (code, out) == (1, "")
    assert f"the registry {host} refuses oci://{host}/lab/none:1: MANIFEST_UNKNOWN: manifest unknown (404)" in err


@needs_registry
def test_credentials_of_docker_login_are_used_and_never_shown(fleet: Fleet, home: Path, tmp_path: Path) -> None:
    """A wrong password is the registry's error, without the password."""
    make(fleet)
    with docker_registry(tmp_path / "closed", needs_password=True) as host:
        anonymous = fleet("push", "pi4.pack", f"oci://{host}/lab/pi4:1")
        log_in(home, host, "wrong-one")
        wrong = fleet("push", "pi4.pack", f"oci://{host}/lab/pi4:1")
        log_in(home, host)
        right = fleet("push", "pi4.pack", f"oci://{host}/lab/pi4:1")
        added = fleet("add", f"oci://{host}/lab/pi4:1", "--allow-unsigned")
    assert (anonymous[0], wrong[0], right[0], added[0]) == (1, 1, 0, 0), added[2]
    assert "UNAUTHORIZED" in wrong[2]
    said = "".join(text for _, *texts in (anonymous, wrong, right, added) for text in texts)
    encoded = base64.b64encode(b"ann:wrong-one").decode()
    assert not [secret for secret in (PASSWORD, "wrong-one", encoded) if secret in said]


def test_a_registry_with_tokens_and_referrers(home: Path, tmp_path: Path) -> None:
    """The token service gets the credentials, and no list is written under a tag."""
    registry, key = Registry(), make_key(tmp_path)
    draft = Draft()
    with served(registry) as host:
        log_in(home, host)
        address = pushed(tmp_path, host, draft)
        pack = layout.descriptor_of(registry.manifests["1"], layout.MANIFEST_TYPE)
        signature = sign(registry.manifests["1"], key)
        blob = layout.descriptor_of(signature, layout.SSHSIG_TYPE)
        attached = layout.signature_manifest(blob, pack)
        registry.blobs |= {blob.digest: signature, layout.descriptor_of(b"{}", "").digest: b"{}"}
        registry.manifests[layout.descriptor_of(attached, "").digest] = attached
        line = key.with_suffix(".pub").read_text().split()
        trust = Trust(signers={base64.b64decode(line[1]): "ann"}, file=Path("allowed_signers"))
        kept = Shelf(tmp_path / "packs").add(address, trust)
    assert (kept.signer, kept.digest, kept.name) == ("ann", pack.digest, "pi4")
    assert PublicKey(base64.b64decode(line[1])).fingerprint == kept.fingerprint
    assert {f"Basic {base64.b64encode(b'ann:secret').decode()}"} == set(registry.basic)
    assert not [one for one in registry.requests if "sha256-" in one]


def test_control_characters_of_a_registry_are_not_shown() -> None:
    """Its message is a stranger's text."""
    with (
        served(Registry()) as host,
        pytest.raises(NotFound, match=r"NAME_UNKNOWN") as refused,
        open_address(registry_address(f"oci://{host}/lab/pi4:2"), Web()),
    ):
        pass
    assert str(refused.value).isprintable()


def hostile(change: Callable[[Handler, Registry], bool]) -> Callable[[Registry], Callable[[Handler], None]]:
    """Return a registry in which some requests are answered badly."""

    def wrap(registry: Registry) -> Callable[[Handler], None]:
        return lambda request: None if change(request, registry) else registry(request)

    return wrap


def on(word: str, status: int = 200, content: bytes = b"", **headers: str) -> Callable[[Handler, Registry], bool]:
    """Answer requests with a word in their path."""

    def change(request: Handler, _: Registry) -> bool:
        if word in request.path:
            request.answer(status, content, **headers)
        return word in request.path

    return change


HOSTILE: dict[str, tuple[Callable[[Handler, Registry], bool], str]] = {
    "another manifest": (on("/manifests/sha256", content=b"{}"), "instead of"),
    "no manifest": (on("/manifests/", content=b"no"), "not JSON"),
    "huge manifest": (on("/manifests/", content=b" " * (1024**2 + 2)), "more than 1,048,576"),
    "blob of others": (on("/blobs/", content=b"{}"), "truncated or changed"),
    "many signatures": (
        on(
            "/referrers/",
            content=json.dumps({"manifests": [{"artifactType": layout.SIGNATURE_TYPE}] * 17}).encode(),
        ),
        "at most 16",
    ),
    "signatures are a text": (on("/referrers/", content=b'{"manifests":"x"}'), "no index"),
    "error without a code": (on("/manifests/", 500, b"<html>"), "status 500"),
    "error of another form": (on("/manifests/", 503, b'{"errors":[]}'), "status 503"),
    "blob elsewhere by http": (on("/blobs/", 307, Location="http://192.0.2.1/x"), "neither https nor the same server"),
    "blob in a file": (on("/blobs/", 302, Location="file:///etc/passwd"), "neither https nor the same server"),
    "token service by http": (
        on("/manifests/", 401, WWW_Authenticate='Bearer realm="http://192.0.2.1/token"'),
        "neither https nor the same server",
    ),
    "token service in a file": (on("/manifests/", 401, WWW_Authenticate='Bearer realm="file:///x"'), "neither https"),
    "no token": (on("/token", content=b'{"token":1}'), "gives no token"),
    "token of two lines": (on("/token", content=b'{"token":"a\\nX-Evil: 1"}'), "gives no token"),
    "never content": (on("/manifests/", 401, WWW_Authenticate="Basic realm=x"), "status 401"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_registry_is_refused_and_nothing_is_kept(tmp_path: Path, name: str) -> None:
    """Each is refused in one printable line with the reason."""
    change, reason = HOSTILE[name]
    registry = Registry()
    with served(registry) as host:
        pushed(tmp_path, host)
    with served(hostile(change)(registry)) as host, pytest.raises(FleetError) as refused:
        Shelf(tmp_path / "packs").add(f"oci://{host}/lab/pi4:1", ANYONE)
    assert reason in str(refused.value)
    assert str(refused.value).isprintable()
    assert {".changing"} == {entry.name for entry in (tmp_path / "packs").iterdir()}


def test_a_pinned_digest_has_to_be_the_manifests(tmp_path: Path) -> None:
    """A registry that answers with another manifest is refused before anything else is read."""
    registry = Registry()
    with served(registry) as host:
        pushed(tmp_path, host)
        registry.manifests["sha256:" + "a" * 64] = registry.manifests["1"]
        with pytest.raises(InvalidRequest, match="another digest than its address"):
            Shelf(tmp_path / "packs").add(f"oci://{host}/lab/pi4@sha256:{'a' * 64}", ANYONE)


def test_uploads_go_nowhere_else(tmp_path: Path) -> None:
    """A registry cannot have a pack sent to another server without encryption."""
    change = on("/uploads/", 202, Location="http://192.0.2.1/upload")
    with (
        served(hostile(change)(Registry())) as host,
        pytest.raises(InvalidRequest, match="neither https nor the same server"),
    ):
        pushed(tmp_path, host)


def test_a_refused_upload_leaves_no_tag(tmp_path: Path) -> None:
    """The tag is set when all parts are there."""
    registry = Registry()
    change = on("/manifests/sha256", 413, b'{"errors":[{"code":"SIZE_INVALID"}]}')
    with served(hostile(change)(registry)) as host, pytest.raises(RegistryError, match=r"SIZE_INVALID \(413\)"):
        pushed(tmp_path, host)
    assert registry.manifests == {}


def test_other_machines_need_https_or_a_word(tmp_path: Path) -> None:
    """Only this machine is reached by plain HTTP without --plain-http."""
    with pytest.raises(InvalidRequest, match="--plain-http"):
        Web().send("GET", "http://192.0.2.1/v2/")
    assert Web(allows_plain_http=True).is_allowed("http://192.0.2.1/v2/")
    assert Web().is_allowed("http://[::1]:5000/v2/")
    assert not Web(allows_plain_http=True).is_allowed("file:///etc/passwd")


@pytest.mark.parametrize(
    "text",
    [
        "oci://host",
        "oci://host/Name:1",
        "oci://user:secret@host/name:1",
        "oci://host/../name:1",
        "oci://host/name:1\n",
        "oci://host/name@sha256:abc",
        "https://user:secret@host/folder/",
        "https://host/folder/?token=secret",
        "http:///folder",
    ],
)
def test_an_unfit_address_is_refused(text: str) -> None:
    """None is sent, and the message repeats no password."""
    with pytest.raises(InvalidRequest) as refused:
        parse_address(text)
    assert "secret" not in str(refused.value)


def test_an_address_has_one_form() -> None:
    """`packs.lock` has the text that a person would give."""
    digest = f"sha256:{'a' * 64}"
    assert str(registry_address("oci://host:5000/lab/pi4")) == "oci://host:5000/lab/pi4:latest"
    assert str(registry_address(f"oci://[::1]:5000/pi4:1@{digest}")) == f"oci://[::1]:5000/pi4@{digest}"
    assert str(parse_address("https://host/a/pi4")) == "https://host/a/pi4/"


@pytest.mark.parametrize(
    ("auths", "expected"),
    [
        ({"host": {"auth": "aG9zdA=="}}, "aG9zdA=="),
        ({"host": {"auth": "aG9zdA=="}, "host/lab": {"auth": "bGFi"}}, "bGFi"),
        ({"https://host/": {"auth": "aG9zdA=="}}, "aG9zdA=="),
        ({"host": {"username": "ann", "password": "b"}}, "YW5uOmI="),
        ({"host2": {"auth": "aG9zdA=="}}, ""),
        ({"host": {}}, ""),
        ({"host": "x"}, ""),
    ],
)
def test_credentials_are_those_of_the_longest_entry(home: Path, auths: object, expected: str) -> None:
    """Others' entries are never sent."""
    address = InRegistry(host="host", repository="lab/pi4")
    found = credentials_for(address, {"HOME": str(home), "DOCKER_AUTH_CONFIG": json.dumps({"auths": auths})})
    assert found.encoded == expected
    assert "bGFi" not in repr(found)


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"auths":{"host":{"auth":"a\\n"}}}'])
def test_a_damaged_file_of_credentials_is_named_without_its_content(home: Path, content: bytes) -> None:
    """A file that is not docker's is an error, and never a silent anonymous request."""
    (home / ".docker").mkdir()
    (home / ".docker" / "config.json").write_bytes(content)
    with pytest.raises(FleetError, match="credentials"):
        credentials_for(InRegistry(host="host", repository="pi4"), {"HOME": str(home)})
