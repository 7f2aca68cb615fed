"""A private PostgreSQL server for the contract tests, on a Unix socket in a directory of its own."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.needs import is_promised


def find_binaries() -> Path | None:
    """The newest installed server's programs, or None."""
    on_path = shutil.which("postgres")
    if on_path:
        return Path(on_path).parent
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
    return found[-1] if found else None


class PostgresServer:
    """A server in a directory of its own, which can be stopped and started again."""

    def __init__(self, binaries: Path, home: Path) -> None:
        """Make its cluster; run nothing yet."""
        self._binaries, self._home, self._user = binaries, home, _unprivileged_user()
        self.url = sa.URL.create("postgresql+psycopg", username="fleet", database="postgres", query={"host": str(home)})
        """URL of its administrator."""

        if self._user is not None:
            os.chown(home, pwd.getpwnam(self._user).pw_uid, -1)
        initdb = [binaries / "initdb", "-D", home / "cluster", "-U", "fleet", "-A", "trust", "-E", "UTF8", "--no-sync"]
        subprocess.run(initdb, check=True, user=self._user, cwd=home, capture_output=True)

    def start(self) -> None:
        """Run it, and wait until it answers."""
        home = self._home
        options = ["-c", "listen_addresses=", "-c", f"unix_socket_directories={home}", "-c", "fsync=off"]
        with (home / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._binaries / "postgres", "-D", home / "cluster", *options],
                user=self._user,
                cwd=home,
                stdout=log,
                stderr=log,
            )
        _wait_until_ready(self.url, self._process, home / "log")

    def stop(self) -> None:
        """End its sessions, then stop."""
        self._process.send_signal(signal.SIGINT)
        self._process.wait(20)


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """Run a server while the block lasts. Skips the test if none is installed, unless this run promises one."""
    binaries = find_binaries()
    if binaries is None:
        if is_promised("postgres"):
            pytest.fail("no PostgreSQL server installed")
        pytest.skip("no PostgreSQL server installed")
    home = Path(tempfile.mkdtemp(prefix="fleet-pg-"))
    try:
        server = PostgresServer(binaries, home)
        try:
            server.start()
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(home)


def empty_database(admin_url: sa.URL) -> str:
    """Empty the server's database, which takes milliseconds; a new one takes 300 files. Return its URL in a user's
    form.
    """
    engine = sa.create_engine(admin_url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    with engine.connect() as connection:
        connection.exec_driver_sql("DROP SCHEMA public CASCADE")
        connection.exec_driver_sql("CREATE SCHEMA public")
    return admin_url.set(drivername="postgresql").render_as_string(hide_password=False)


def _unprivileged_user() -> str | None:
    """Account for the server, which refuses to run as root."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


def _wait_until_ready(url: sa.URL, server: subprocess.Popen[bytes], log: Path) -> None:
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    deadline = time.monotonic() + 30
    while True:
        try:
            engine.connect().close()
        except sa.exc.OperationalError as error:
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"PostgreSQL does not start: {log.read_text()}") from error
            time.sleep(0.05)
        else:
            return
