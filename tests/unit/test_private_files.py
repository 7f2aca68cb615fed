"""Files that only their owner may read."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fleet.base.private_files import read_private, write_private


def test_threads_that_write_one_file_at_once_leave_one_of_theirs(tmp_path: Path) -> None:
    """Two clients of one process may renew the same credentials at the same moment."""
    path, contents = tmp_path / "identity.pem", [bytes([number]) * 10_000 for number in range(100)]

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda content: write_private(path, content), contents))

    assert read_private(path) in contents
    assert [path] == list(tmp_path.iterdir())
