"""The files of lease logs: limits, damage, and the remains of a killed agent."""

from __future__ import annotations

from pathlib import Path

import pytest

from device_agents.serving import lease_logs
from device_agents.serving.lease_logs import KEPT_SEC, LEASE_BYTES, LeaseLogs
from fleet.domain.tokens import Claims
from tests.full_disk import full_disk

NOW_SEC = 1_800_000_000.0
CUT = b"\n(later output was not kept)\n"


def claims(number: int, *, at_sec: float = NOW_SEC) -> Claims:
    return Claims(
        lease_name=f"leases/{number}", device_name="devices/a", epoch=1, issued_at_sec=at_sec, holder_key_id="key"
    )


def opened(folder: Path, now_sec: float | None = NOW_SEC) -> LeaseLogs:
    """Return the logs of an agent that starts."""
    logs = LeaseLogs(folder / "logs", lambda: now_sec)
    logs.open()
    return logs


def keep(logs: LeaseLogs, number: int, *contents: bytes, at_sec: float = NOW_SEC) -> None:
    """Keep the output of a whole session."""
    log = logs.begin(claims(number, at_sec=at_sec))
    for content in contents:
        log.write(content)
    logs.end(log)


def read(logs: LeaseLogs, number: int, position: int = 0) -> bytes:
    return b"".join(logs.chunks(f"leases/{number}", position))


def sizes(folder: Path) -> list[int]:
    return [path.stat().st_size for path in (folder / "logs").iterdir()]


def test_output_and_owner_outlive_the_agent(tmp_path: Path) -> None:
    """Neither the log nor the agent is closed, as after kill -9. A lease that goes on adds to its log."""
    opened(tmp_path).begin(claims(7)).write(b"before\n")

    logs = opened(tmp_path)
    assert read(logs, 7) == b"before\n"
    keep(logs, 7, b"after\n")

    assert read(logs, 7) == b"before\nafter\n"
    assert read(logs, 7, position=7) == b"after\n"
    owner = logs.owner("leases/7")
    assert owner is not None
    assert owner.holder_key_id == "key"
    assert not logs.is_live("leases/7")


def test_files_are_the_agents_alone(tmp_path: Path) -> None:
    """Other accounts of the machine read no output."""
    keep(opened(tmp_path), 7, b"secret")

    (path,) = (tmp_path / "logs").iterdir()
    assert (path.parent.stat().st_mode & 0o777, path.stat().st_mode & 0o777) == (0o700, 0o600)


def test_a_lease_without_output_leaves_no_file(tmp_path: Path) -> None:
    """Most leases are short and silent."""
    logs = opened(tmp_path)
    keep(logs, 7)

    assert sizes(tmp_path) == []
    assert logs.owner("leases/7") is None


def test_of_a_lease_the_first_mebibyte_is_kept(tmp_path: Path) -> None:
    """A note says that more came. A later session of the same lease adds nothing."""
    logs = opened(tmp_path)
    keep(logs, 7, b"x" * (LEASE_BYTES - 10), b"y" * 1_000, b"z")
    keep(logs, 7, b"more")

    assert read(logs, 7) == b"x" * (LEASE_BYTES - 10) + b"y" * 10 + CUT


def test_the_oldest_logs_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Live ones stay, and all others stay below the limit together with a full one to come."""
    monkeypatch.setattr(lease_logs, "TOTAL_BYTES", 4 * LEASE_BYTES)
    logs = opened(tmp_path)
    live = logs.begin(claims(1))
    live.write(b"live")
    for number in range(2, 9):
        keep(logs, number, b"x" * (LEASE_BYTES // 2))

    kept = [number for number in range(1, 9) if read(logs, number)]
    assert kept[0] == 1
    assert kept[-1] == 8
    assert 3 < len(kept) < 8
    assert kept[1:] == list(range(kept[1], 9))
    assert sum(sizes(tmp_path)) <= 4 * LEASE_BYTES
    again = opened(tmp_path)
    assert [number for number in range(1, 9) if read(again, number)] == kept


def test_logs_go_after_a_week_of_the_trackers_time(tmp_path: Path) -> None:
    """An agent that does not know the time yet removes none: boards without a battery start in 1970."""
    logs = opened(tmp_path, now_sec=None)
    keep(logs, 1, b"old", at_sec=NOW_SEC - KEPT_SEC - 10)
    keep(logs, 2, b"new", at_sec=NOW_SEC - KEPT_SEC + 10)

    assert read(opened(tmp_path, now_sec=None), 1) == b"old"
    logs = opened(tmp_path)
    assert (read(logs, 1), read(logs, 2)) == (b"", b"new")


def test_a_full_disk_ends_a_log_and_nothing_else(tmp_path: Path) -> None:
    """The part that had room is kept; a lease that begins later is logged once there is room again."""
    logs = opened(tmp_path)
    log = logs.begin(claims(1))
    log.write(b"before\n")
    (path,) = (tmp_path / "logs").iterdir()
    with full_disk(path, free_bytes=3):
        log.write(b"during\n")
        log.write(b"still\n")
        other = logs.begin(claims(2))
        other.write(b"x" * 1_000)
    log.write(b"after\n")
    logs.end(log)
    logs.end(other)
    keep(logs, 3, b"later")

    assert read(logs, 1) == b"before\ndur"
    assert read(logs, 3) == b"later"


@pytest.mark.parametrize("content", [b"", b"\n", b"{", b"[]\n", b'{"lease": "leases/8"}\n', b"\xff" * 10_000])
def test_a_damaged_header_belongs_to_nobody(tmp_path: Path, content: bytes) -> None:
    """Output without an owner is served to nobody."""
    keep(opened(tmp_path), 7, b"x")
    (path,) = (tmp_path / "logs").iterdir()
    path.write_bytes(content)

    assert opened(tmp_path).owner("leases/7") is None


def test_other_files_of_the_folder_are_left_alone(tmp_path: Path) -> None:
    """They are neither read nor removed."""
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/notes.txt").write_text("mine")
    logs = opened(tmp_path)
    keep(logs, 7, b"x")

    assert (tmp_path / "logs/notes.txt").read_text() == "mine"


def test_without_a_folder_nothing_is_kept(tmp_path: Path) -> None:
    """The agent serves leases all the same."""
    (tmp_path / "logs").write_text("a file")
    logs = opened(tmp_path)
    keep(logs, 7, b"x")

    assert logs.owner("leases/7") is None
