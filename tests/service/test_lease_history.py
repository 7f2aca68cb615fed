"""history.sqlite: ended leases, written by a thread; no lease depends on the file."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import fleet.aio
from fleet.cli.main import app
from fleet.domain.leases import LeaseClass, LeaseTerms
from fleet.domain.usage import LONGEST_SEC, UsageKey
from fleet.errors import InvalidRequest, NotAllowed
from fleet.identity.policy import check_role
from fleet.identity.roles import Identity, Role
from fleet.testing import FakeClock, LeaseStream, SimulatedAgent, eventually, eventually_sync, serve_tracker
from fleet.tracker.core import events as ev
from fleet.tracker.core.queries import Queries
from fleet.tracker.core.state import TrackerState
from fleet.tracker.history_file import HistoryFile, LeaseRow, read_latest, read_usage
from fleet.tracker.lease_history import LeaseHistory
from tests.full_disk import full_disk
from tests.unit.tracker_bench import offer

DAY_SEC = 86_400.0


class Bench:
    """A tracker's state that records ended leases in a history."""

    def __init__(self, path: Path) -> None:
        self.clock = FakeClock()
        self.path = path
        self.state = TrackerState(boot=1)
        self.history = LeaseHistory(path, Queries(self.state), self.clock)
        self.history.open()
        self.apply(ev.AgentAttached("agent", "h:1", (offer("a"),)))
        self.apply(ev.ClientConnected("alice", "alice@here", "team-a"))

    def apply(self, event: ev.Event) -> list[ev.Effect]:
        effects = self.state.apply(event, self.clock.now_sec())
        for effect in effects:
            self.history.on_effect(effect)
        return effects

    def lease(self, sec: float, lease_class: LeaseClass = LeaseClass.NORMAL) -> None:
        terms = LeaseTerms(selector="cpu", lease_class=lease_class, ttl_sec=300.0)
        granted = self.apply(ev.Acquire("alice", "r", terms))[0]
        assert isinstance(granted, ev.Granted)
        self.clock.advance(sec)
        self.apply(ev.Release("alice", granted.lease.name))

    def rows(self) -> list[tuple[object, ...]]:
        """Return class, number, length and end of each row, once all are written."""
        self.history.close()
        with closing(sqlite3.connect(self.path)) as connection:
            query = "SELECT lease_class, leases, length_sec, wait_sec, end FROM leases ORDER BY rowid"
            return connection.execute(query).fetchall()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path / "history.sqlite")
    yield bench
    bench.history.close()


def row(ended_sec: float, **changed: object) -> LeaseRow:
    typical = LeaseRow(
        ended_sec=ended_sec,
        account="team-a",
        holder="ann",
        device="devices/a",
        model="rpi4",
        lease_class="batch",
        end="released",
        leases=1,
        length_sec=60.0,
        wait_sec=5.0,
        forecast_sec=None,
    )
    return replace(typical, **changed)  # type: ignore[arg-type]


def test_a_lease_is_one_row_and_short_ones_are_a_sum(bench: Bench) -> None:
    """A thousand leases of a second in one minute are one row."""
    bench.clock.advance(60 - bench.clock.now_sec() % 60)
    bench.lease(60.0, LeaseClass.BATCH)
    for _ in range(10):
        bench.lease(1.0)

    assert bench.rows() == [("batch", 1, 60.0, 0.0, "released"), ("normal", 10, 10.0, 0.0, "released")]


def test_a_revoked_lease_and_an_unknown_one(bench: Bench) -> None:
    """An answer about a lease that ended before adds no row."""
    bench.apply(ev.Acquire("alice", "r", LeaseTerms(selector="cpu", ttl_sec=300.0)))
    (name,) = bench.state.leases
    bench.clock.advance(20.0)
    bench.apply(ev.Revoke(name, "needed"))
    bench.apply(ev.Release("alice", name))

    assert bench.rows() == [("normal", 1, 20.0, 0.0, "revoked")]


def test_use_by_each_subject(tmp_path: Path) -> None:
    """Rows are sorted by device time; waits that nobody knows do not count."""
    file = HistoryFile(tmp_path / "history.sqlite")
    file.write([row(100.0), row(200.0, account="team-b", length_sec=600.0, wait_sec=None), row(300.0, leases=3)])
    file.close()

    by_account = read_usage(file.path, UsageKey.ACCOUNT, 0.0)
    assert [(each.key, each.lease_count, each.device_sec, each.wait_sec) for each in by_account] == [
        ("team-b", 1, 600.0, None),
        ("team-a", 4, 120.0, 2.5),
    ]
    assert [each.key for each in read_usage(file.path, UsageKey.DEVICE, 0.0)] == ["devices/a"]
    assert [each.lease_count for each in read_usage(file.path, UsageKey.CLASS, 150.0)] == [4]
    assert read_usage(tmp_path / "missing.sqlite", UsageKey.CLASS, 0.0) == []


def test_rows_that_no_tracker_wrote_are_left_out(tmp_path: Path) -> None:
    """Texts in place of times, times without end, negative numbers: neither forecasts nor the use read them."""
    file = HistoryFile(tmp_path / "history.sqlite")
    odd = ({"length_sec": "soon"}, {"length_sec": math.inf}, {"leases": -1}, {"holder": b"\xff"}, {"wait_sec": -1.0})
    file.write([row(100.0), *(row(200.0, account=f"odd-{n}", **each) for n, each in enumerate(odd))])
    file.close()

    assert read_latest(file.path, 9) == [row(100.0)]
    assert "team-a" in {each.key for each in read_usage(file.path, UsageKey.ACCOUNT, 0.0)}


def test_old_leases_and_those_of_a_large_file_go(tmp_path: Path) -> None:
    """The newest stay."""
    file = HistoryFile(tmp_path / "history.sqlite", max_bytes=200_000)
    file.write([row(0.0), row(50 * DAY_SEC)])
    file.prune(100 * DAY_SEC)
    assert [each.lease_count for each in read_usage(file.path, UsageKey.CLASS, 0.0)] == [1]

    file.write([row(100 * DAY_SEC + number) for number in range(5_000)])
    file.prune(100 * DAY_SEC)
    (left,) = read_usage(file.path, UsageKey.CLASS, 0.0)
    assert 500 < left.lease_count < 4_000
    assert read_usage(file.path, UsageKey.CLASS, 100 * DAY_SEC + 4_999)[0].lease_count == 1
    file.close()


@pytest.mark.slow
def test_a_full_disk_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Leases go on, and the tracker closes in time."""
    bench = Bench(tmp_path / "history.sqlite")
    eventually_sync(lambda: bench.path.exists() and bench.path.stat().st_size)

    def said(text: str) -> int:
        return sum(text in record.message for record in caplog.records)

    with full_disk(bench.path, free_bytes=0):
        bench.lease(20.0)
        eventually_sync(lambda: said("cannot be written"))
        bench.lease(20.0)
        bench.history.close()
    assert said("cannot be written") == 1


@pytest.mark.slow
def test_a_damaged_file_is_moved_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Leases that end later are in a new file."""
    path = tmp_path / "history.sqlite"
    path.write_bytes(b"no database" * 1_000)
    bench = Bench(path)
    bench.lease(20.0)
    eventually_sync((tmp_path / "history.sqlite.damaged").exists)

    assert len(bench.rows()) == 1
    assert (tmp_path / "history.sqlite.damaged").read_bytes().startswith(b"no database")
    assert len([record for record in caplog.records if "damaged" in record.message]) == 1


@pytest.mark.slow
def test_a_deleted_file_is_made_again(tmp_path: Path) -> None:
    """The use before is lost, and no lease."""
    path = tmp_path / "history.sqlite"
    bench = Bench(path)
    eventually_sync(lambda: path.exists() and read_usage(path, UsageKey.CLASS, 0.0) == [])
    path.unlink()
    bench.lease(20.0)

    assert len(bench.rows()) == 1


async def test_fleet_usage_shows_accounts_with_their_shares(tmp_path: Path) -> None:
    """The restart of a tracker keeps the history; the table is served by RPC."""
    async with serve_tracker(state_dir=tmp_path) as served:
        async with SimulatedAgent(served.address, ["devices/a"]), LeaseStream(served.address, "c") as client:
            lease = (await client.grant("r", "simulated")).lease
            client.release(lease.name)
            await eventually(lambda: client.ended)
        await served.restart()
        async with fleet.aio.connect(served.address) as client:
            usage = await client.usage(UsageKey.ACCOUNT, DAY_SEC)
            assert [(each.holder, each.lease_count) for each in usage.rows] == [(lease.holder, 1)]
            with pytest.raises(InvalidRequest, match="the last 90 days"):
                await client.usage(UsageKey.DEVICE, LONGEST_SEC + 1)
        words = ["--tracker", served.address, "usage", "--by", "device"]

        import asyncio

        shown = await asyncio.to_thread(CliRunner().invoke, app, [*words, "--since", "1d", "--json"])
        (found,) = json.loads(shown.stdout)["rows"]
        assert (found["key"], found["lease_count"], found["share"]) == ("devices/a", 1, 1.0)
        table = await asyncio.to_thread(CliRunner().invoke, app, words)
        assert "mean wait" in table.stdout
        refused = await asyncio.to_thread(CliRunner().invoke, app, [*words, "--since", "a week"])
        assert refused.exit_code == 2


def test_agents_may_not_read_the_use() -> None:
    """Users and admins may."""
    with pytest.raises(NotAllowed, match="reading the use of the fleet takes the role"):
        check_role("fleet.v1.FleetService.GetUsage", Identity(name="pi", role=Role.AGENT, key_id="0" * 40))
