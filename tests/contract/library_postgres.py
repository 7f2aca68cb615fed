"""A private PostgreSQL server for the contract tests, on a Unix socket in a directory of its own."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa


def find_binaries() -> Path | None:
    """The newest installed server's programs, or None."""
    on_path = shutil.which("postgres")
    if on_path:
        return Path(on_path).parent
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
    return found[-1] if found else None


@contextmanager
def serve_postgres(binaries: Path) -> Iterator[sa.URL]:
    """Run a server while the block lasts; yield the URL of its administrator."""
    home = Path(tempfile.mkdtemp(prefix="fleet-pg-"))
    user = _unprivileged_user()
    if user is not None:
        os.chown(home, pwd.getpwnam(user).pw_uid, -1)
    try:
        cluster = home / "cluster"
        initdb = [binaries / "initdb", "-D", cluster, "-U", "fleet", "-A", "trust", "-E", "UTF8", "--no-sync"]
        subprocess.run(initdb, check=True, user=user, cwd=home, capture_output=True)
        options = ["-c", "listen_addresses=", "-c", f"unix_socket_directories={home}", "-c", "fsync=off"]
        with (home / "log").open("wb") as log:
            server = subprocess.Popen(
                [binaries / "postgres", "-D", cluster, *options], user=user, cwd=home, stdout=log, stderr=log
            )
        try:
            url = sa.URL.create("postgresql+psycopg", username="fleet", database="postgres", query={"host": str(home)})
            _wait_until_ready(url, server, home / "log")
            yield url
        finally:
            server.send_signal(2)  # SIGINT: end the sessions, then stop
            server.wait(20)
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
