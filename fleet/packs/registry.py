"""Packs in OCI registries, by the distribution specification 1.1.

A pack is an artifact, and its signatures are its referrers. Registries without an API of referrers keep their list as
an index under a tag with the pack's digest: `sha256-<hex>`.

https://github.com/opencontainers/distribution-spec/blob/v1.1.0/spec.md
"""

from __future__ import annotations

import contextlib
import io
import urllib.parse
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

from fleet.base.text import sanitize
from fleet.errors import InvalidRequest, NotFound, RegistryError
from fleet.packs import layout, strict_json
from fleet.packs.addresses import InRegistry
from fleet.packs.credentials import Challenge, Credentials, credentials_for, parse_challenge
from fleet.packs.layout import Descriptor
from fleet.packs.sources import Readable, Source
from fleet.packs.staging import FoundPack
from fleet.packs.web import Answer, Web, is_loopback, is_same_server, resolved

_HOSTS = {"docker.io": "registry-1.docker.io"}
"""Registries that answer under another name."""

_BYTES_TYPE = "application/octet-stream"
_MOST_SAID_BYTES = 64 * 1024
_MOST_SAID_CHARS = 200
_MOST_TOKEN_BYTES = 64 * 1024


class Registry:
    """Requests about one repository of a registry."""

    def __init__(self, address: InRegistry, web: Web, *, may_push: bool = False) -> None:
        """Raises ConfigError if the user's credentials cannot be read."""
        host = _HOSTS.get(address.host, address.host)
        name = (urllib.parse.urlsplit(f"//{host}").hostname or "").lower()
        https, http = f"https://{host}", f"http://{host}"
        self._server = http if is_loopback(name) or web.allows_plain_http else https
        self._root = f"{self._server}/v2/{address.repository}"
        self._address = address
        self._web = web
        self._scope = f"repository:{address.repository}:{'pull,push' if may_push else 'pull'}"
        is_safe = self._server == https or is_loopback(name)
        self._credentials = credentials_for(address) if is_safe else Credentials(encoded="")
        self._authorization: dict[str, str] = {}

    def manifest(self, reference: str, media_type: str = layout.MANIFEST_TYPE) -> Answer:
        """Request a manifest by its digest or tag."""
        return self._send("GET", f"/manifests/{reference}", {"Accept": media_type})

    def blob(self, digest: str) -> Answer:
        """Request a blob."""
        return self._send("GET", f"/blobs/{digest}")

    def signatures(self, pack: Descriptor) -> list[Descriptor]:
        """Return the manifests of a pack's signatures.

        Raises:
            InvalidRequest: the list has another form.
            RegistryError: the registry refuses, or does not answer.
        """
        content = self._referrers(pack)
        return layout.parse_referrers(content) if content else []

    def put_blob(self, blob: Descriptor, file: Path) -> None:
        """Upload a blob that the registry lacks. Raises RegistryError."""
        with closing(self._send("HEAD", f"/blobs/{blob.digest}")) as answer:
            if answer.status == 200:
                return
        with closing(self._send("POST", "/blobs/uploads/", content=b"")) as answer:
            self.check(answer, 202)
            place = resolved(f"{self._root}/blobs/uploads/", answer.headers.get("Location", ""))
        joint = "&" if urllib.parse.urlsplit(place).query else "?"
        url = f"{place}{joint}{urllib.parse.urlencode({'digest': blob.digest})}"
        with closing(self._send("PUT", url, {"Content-Type": _BYTES_TYPE}, file)) as answer:
            self.check(answer, 201)

    def put_manifest(self, content: bytes, reference: str, media_type: str = layout.MANIFEST_TYPE) -> bool:
        """Upload a manifest, and tell whether the registry lists it among the referrers of its subject.

        Raises:
            RegistryError: the registry refuses, or does not answer.
        """
        with closing(self._send("PUT", f"/manifests/{reference}", {"Content-Type": media_type}, content)) as answer:
            self.check(answer, 201)
            return bool(answer.headers.get("OCI-Subject"))

    def list_referrer(self, signature: Descriptor, pack: Descriptor) -> None:
        """List a signature under the tag that registries without an API of referrers use. Raises RegistryError."""
        index = layout.with_referrer(self._tagged_referrers(pack), signature)
        self.put_manifest(index, _tag_of(pack), layout.INDEX_TYPE)

    def check(self, answer: Answer, expected: int = 200) -> None:
        """Raise the registry's error for a response with another status.

        Raises:
            NotFound: the registry lacks the manifest or blob.
            RegistryError: the registry refuses.
        """
        if answer.status == expected:
            return
        error = NotFound if answer.status == 404 else RegistryError
        raise error(f"the registry {self._address.host} refuses {self._address}: {_said(answer)}")

    def read(self, answer: Answer, most_bytes: int) -> bytes:
        """Return the body of a successful response. Raises as `check`, and InvalidRequest for a larger one."""
        with closing(answer):
            self.check(answer)
            content = answer.body.read(most_bytes + 1)
        if len(content) > most_bytes:
            raise InvalidRequest(f"a response of {self._address.host} has more than {most_bytes:,} bytes")
        return content

    def _referrers(self, pack: Descriptor) -> bytes:
        answer = self._send("GET", f"/referrers/{pack.digest}", {"Accept": layout.INDEX_TYPE})
        if answer.status not in (404, 405):
            return self.read(answer, layout.MOST_JSON_BYTES)
        answer.close()
        return self._tagged_referrers(pack)

    def _tagged_referrers(self, pack: Descriptor) -> bytes:
        try:
            return self.read(self.manifest(_tag_of(pack), layout.INDEX_TYPE), layout.MOST_JSON_BYTES)
        except NotFound:
            return b""

    def _send(
        self, method: str, path: str, headers: Mapping[str, str] | None = None, content: bytes | Path | None = None
    ) -> Answer:
        url = f"{self._root}{path}" if path.startswith("/") else path
        answer = self._send_once(method, url, headers or {}, content)
        if answer.status != 401 or not is_same_server(url, self._server):
            return answer
        answer.close()
        self._authorize(parse_challenge(answer.headers.get("WWW-Authenticate", "")))
        return self._send_once(method, url, headers or {}, content)

    def _send_once(self, method: str, url: str, headers: Mapping[str, str], content: bytes | Path | None) -> Answer:
        authorization = self._authorization if is_same_server(url, self._server) else {}
        return self._web.send(method, url, {**headers, **authorization}, content)

    def _authorize(self, challenge: Challenge) -> None:
        if challenge.scheme == "bearer":
            self._authorization = {"Authorization": f"Bearer {self._token(challenge)}"}
        elif challenge.scheme == "basic":
            self._authorization = self._credentials.header

    def _token(self, challenge: Challenge) -> str:
        """Request a token from the service that a registry names."""
        asked = {"service": challenge.service, "scope": challenge.scope or self._scope}
        joint = "&" if urllib.parse.urlsplit(challenge.realm).query else "?"
        url = f"{resolved(self._server, challenge.realm)}{joint}{urllib.parse.urlencode(asked)}"
        content = self.read(self._web.send("GET", url, self._credentials.header), _MOST_TOKEN_BYTES)
        found = strict_json.parse_object(content, "the token")
        token = found.get("token") or found.get("access_token")
        if not isinstance(token, str) or not token.isascii() or not token.isprintable():
            raise RegistryError(f"the registry {self._address.host} names a token service that gives no token")
        return token


@contextmanager
def open_registry(address: InRegistry, web: Web) -> Iterator[Source]:
    """Open the pack at an address as a layout.

    Raises:
        NotFound: the registry has no such pack.
        InvalidRequest: a response has another form, or another digest than the address.
        RegistryError: the registry refuses, or does not answer.
    """
    registry = Registry(address, web)
    content = registry.read(registry.manifest(address.reference), layout.MOST_JSON_BYTES)
    pack = layout.descriptor_of(content, layout.MANIFEST_TYPE)
    if address.digest not in ("", pack.digest):
        raise InvalidRequest("its manifest has another digest than its address: it was changed")
    yield _Layout(registry, pack, registry.signatures(pack))


def push(folder: Path, pack: FoundPack, address: InRegistry, web: Web) -> None:
    """Upload a pack that was copied into a folder. Its tag is set last, when all parts are there.

    Raises:
        InvalidRequest: the address names a digest, or the registry refers to another server by plain HTTP.
        RegistryError, NotFound: the registry refuses, or does not answer.
    """
    if address.digest:
        raise InvalidRequest("a pack is pushed to a tag: oci://host/name:tag")
    registry = Registry(address, web, may_push=True)
    blobs = (*pack.manifest.blobs, *(blob for signature in pack.signatures for blob in signature.blobs))
    for blob in {one.digest: one for one in blobs}.values():
        registry.put_blob(blob, folder / blob.blob_name)
    manifest = (folder / pack.descriptor.blob_name).read_bytes()
    registry.put_manifest(manifest, pack.digest)
    for signature in pack.signatures:
        one = signature.descriptor
        if not registry.put_manifest((folder / one.blob_name).read_bytes(), one.digest):
            registry.list_referrer(one, pack.descriptor)
    registry.put_manifest(manifest, address.tag)


class _Layout:
    """The files of a layout, with the index made from the list of signatures."""

    def __init__(self, registry: Registry, pack: Descriptor, signatures: list[Descriptor]) -> None:
        self._registry = registry
        self._manifests = {one.blob_name: one.digest for one in (pack, *signatures)}
        self._written = {
            layout.LAYOUT_NAME: layout.LAYOUT_CONTENT,
            layout.INDEX_NAME: layout.index_of(pack, signatures),
        }

    @contextmanager
    def open(self, name: str) -> Iterator[tuple[Readable, int | None]]:
        if name in self._written:
            yield io.BytesIO(self._written[name]), len(self._written[name])
            return
        digest = self._manifests.get(name)
        answer = self._registry.manifest(digest) if digest else self._registry.blob(f"sha256:{name[-64:]}")
        with closing(answer):
            self._registry.check(answer)
            yield answer.body, answer.size_bytes


def _tag_of(pack: Descriptor) -> str:
    return pack.digest.replace(":", "-")


def _said(answer: Answer) -> str:
    """Return the error code of a response: "MANIFEST_UNKNOWN: manifest unknown (404)"."""
    with contextlib.suppress(InvalidRequest, RegistryError, LookupError, TypeError, AttributeError):
        found = strict_json.parse_object(answer.body.read(_MOST_SAID_BYTES), "an error")["errors"][0]
        code, message = str(found["code"]), str(found.get("message") or "")
        text = f"{code}: {message}" if message else code
        return f"{sanitize(text, _MOST_SAID_CHARS)} ({answer.status})"
    return f"status {answer.status}"
