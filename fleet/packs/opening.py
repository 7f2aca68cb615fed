"""Opens packs wherever they are: every source gives the files of a layout, which pass the same checks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

from fleet.errors import NotFound, RegistryError
from fleet.packs.addresses import Address, InPackage, InRegistry, OnWeb, parse_address
from fleet.packs.packaged import packaged_folder, packaged_names
from fleet.packs.registry import open_registry
from fleet.packs.sources import Readable, Source, open_source
from fleet.packs.web import Web, shown


def find_address(text: str) -> Address:
    """Return the address that a user gave: a name without a file is that of an installed package's pack.

    Raises:
        InvalidRequest: an address of a registry or web server has another form.
    """
    found = parse_address(text)
    is_name = isinstance(found, Path) and "/" not in text and not found.exists()
    return InPackage(name=text) if is_name and text in packaged_names() else found


def open_address(address: Address, web: Web) -> AbstractContextManager[Source]:
    """Open the pack at an address.

    Raises:
        NotFound: there is no pack.
        InvalidRequest: the address is of something else.
        RegistryError: a server refuses, or does not answer.
    """
    if isinstance(address, InRegistry):
        return open_registry(address, web)
    if isinstance(address, OnWeb):
        return _open_web(address, web)
    return open_source(packaged_folder(address.name) if isinstance(address, InPackage) else address)


@contextmanager
def _open_web(address: OnWeb, web: Web) -> Iterator[Source]:
    yield _WebFolder(address.url, web)


class _WebFolder:
    def __init__(self, url: str, web: Web) -> None:
        self._url = url
        self._web = web

    @contextmanager
    def open(self, name: str) -> Iterator[tuple[Readable, int | None]]:
        url = f"{self._url}{name}"
        with closing(self._web.send("GET", url)) as answer:
            if answer.status != 200:
                error = NotFound if answer.status == 404 else RegistryError
                raise error(f"{shown(url)} answers with status {answer.status}")
            yield answer.body, answer.size_bytes
