"""The databases that a library lives in: one URL for each, to an empty one; and stock MetaSchedule."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from types import ModuleType

import pytest
import sqlalchemy as sa

from tests.contract.library_postgres import empty_database, postgres_server


@pytest.fixture(scope="session")
def postgres() -> Iterator[sa.URL]:
    """A server of the test run's own."""
    with postgres_server() as server:
        yield server.url


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The URL of a new library, in each kind of database."""
    if request.param == "sqlite":
        return str(tmp_path_factory.mktemp("library") / "library.sqlite")
    return str(request.getfixturevalue("url_of_postgres"))


@pytest.fixture
def url_of_postgres(postgres: sa.URL) -> str:
    """The URL of an empty database in PostgreSQL."""
    return empty_database(postgres)


@pytest.fixture(scope="session")
def ms() -> ModuleType:
    """MetaSchedule, without its package's libraries for GPUs."""
    from cross.targets.intrinsics import keep_package_light

    keep_package_light()
    return importlib.import_module("tvm.s_tir.meta_schedule")
