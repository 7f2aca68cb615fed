"""`fleet status` as an application, on a real tracker: its display and its reactions to keys."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from textual.pilot import Pilot

import fleet.aio
from fleet.base.machine import account_name
from fleet.base.plain import to_plain
from fleet.cli.job_book import LibraryJobs
from fleet.dashboard.app import FleetApp
from fleet.dashboard.pane_table import PaneTable
from fleet.domain.bookings import booking_id
from fleet.domain.decisions import Motive, Reason
from fleet.domain.health import HealthState
from fleet.domain.jobs import JobStatus
from fleet.errors import Cancelled, NotAllowed
from fleet.identity.certificates import make_key
from fleet.identity.roles import Role
from fleet.identity.store import CredentialStore
from fleet.jobs.report import DecisionReport, ProgressReport
from fleet.library import JobState, Library
from fleet.optimizer.narrator import reason_text
from fleet.testing import ServedTracker, SimulatedAgent, eventually, serve_tracker
from fleet.testing.identity import credentials
from fleet.tracker.core.records import TrackerLimits

pytestmark = pytest.mark.slow

WHO = f"{account_name()} (ann@desk)"

LIMITS = TrackerLimits(grace_sec=0.3)
REASON = Reason(
    motive=Motive.GAIN,
    gain_sec=1e-6,
    spread_sec=1e-7,
    horizon=2,
    device_sec=1.0,
    builder_sec=1.0,
    weight=1.0,
    priority=1.0,
    trust=1.0,
    worth=0.1,
)
BOARDS = [f"devices/pi-{at}" for at in range(20)]


@pytest.fixture
async def served() -> AsyncIterator[ServedTracker]:
    async with serve_tracker(limits=LIMITS) as served:
        yield served


@pytest.fixture
async def agent(served: ServedTracker) -> AsyncIterator[SimulatedAgent]:
    async with SimulatedAgent(served.address, BOARDS, kind="cpu", labels={"rack": "3"}) as agent:
        yield agent


@pytest.fixture
async def client(served: ServedTracker, agent: SimulatedAgent) -> AsyncIterator[fleet.aio.Fleet]:
    async with fleet.aio.connect(served.address, holder="ann@desk") as client:
        yield client


class Screen:
    """The visible text, and key presses."""

    def __init__(self, app: FleetApp, pilot: Pilot[None]) -> None:
        self.app = app
        self.press = pilot.press
        self.resize = pilot.resize_terminal

    def lines(self) -> list[str]:
        """Return the terminal, line by line. Textual has no public way to its text but through a picture."""
        update = self.app.screen._compositor.render_strips()  # noqa: SLF001
        return ["".join(segment.text for segment in strip).rstrip() for strip in update]

    def text(self) -> str:
        return "\n".join(self.lines())

    async def shows(self, *texts: str) -> None:
        """Wait until all these texts are on the screen."""

        def missing() -> list[str]:
            return [text for text in texts if text not in self.text()]

        try:
            await eventually(lambda: not missing())
        except TimeoutError:
            raise AssertionError(f"no {missing()} in:\n{self.text()}") from None

    async def filter(self, selector: str) -> None:
        """Type a filter into an empty line, and keep it."""
        await self.press("slash")
        await self.shows("filter:")
        await self.press("ctrl+u", *selector, "enter")
        await self.shows_no("filter:")

    async def shows_no(self, text: str) -> None:
        """Wait until a text is on the screen no more."""
        await eventually(lambda: text not in self.text())


@asynccontextmanager
async def screen_of(
    source: fleet.aio.Fleet, library: Library | None = None, size: tuple[int, int] = (80, 24)
) -> AsyncIterator[Screen]:
    """Open the application on a terminal of a size, and wait for the fleet to be there."""
    app = FleetApp(source, LibraryJobs(str(library.url) if library else "no/library"), interval_sec=0.05)
    async with app.run_test(size=size) as pilot:
        screen = Screen(app, pilot)
        await screen.shows("pi-0")
        yield screen


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (40, 24)], ids=str)
async def test_queue_and_jobs_are_seen_beside_twenty_boards(client: fleet.aio.Fleet, size: tuple[int, int]) -> None:
    """They are visible on terminals of every size; the boards scroll, in natural order of their numbers."""
    client.publish(JobStatus(name="jobs/1", title="bert.onnx", trials_done=4, trials_total=9))
    async with client.acquire("name=pi-2"), screen_of(client, size=size) as screen:
        waiting = asyncio.create_task(client.acquire_device("name=pi-2", priority=3))
        await screen.shows("bert.onnx", "4/9", "next", "name=pi-2")
        lines = screen.lines()
        assert max(map(len, lines)) <= size[0]
        assert len(lines) == size[1]
        assert lines[-1].startswith("q quit")
        assert lines[4].startswith("pi-2 ")

        await screen.press("end")
        await screen.shows("pi-19", "bert.onnx", "next")
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)


async def test_a_selector_filters_while_it_is_typed(client: fleet.aio.Fleet) -> None:
    """An unreadable selector shows an error and keeps the rows; esc twice shows everything again."""
    async with client.acquire("name=pi-7"), screen_of(client) as screen:
        await screen.press("slash")
        await screen.shows("filter:")
        await screen.press(*"state=leased")
        await screen.shows("device 1/20", "pi-7")
        await screen.press("!")
        await screen.shows("'state=leased!', character 13", "device 1/20")
        await screen.press("backspace")
        await screen.shows_no("character 13")
        await screen.press("enter")
        await screen.shows_no("filter:")
        await screen.press("s", "s")
        await screen.shows("device 1/20", "state ↑")

        await screen.press("escape")
        await screen.shows("device 20")


async def test_the_cursor_stays_on_its_device(client: fleet.aio.Fleet, agent: SimulatedAgent) -> None:
    """The selection stays on its device while rows are sorted anew, and actions apply to it."""
    async with screen_of(client) as screen:
        table = screen.app.query_one("#devices", PaneTable)
        await screen.press("down", "down", "down")
        assert table.selected == "devices/pi-3"

        await screen.press(*"ssssss")
        for at, name in enumerate(BOARDS):
            agent.report(name, is_healthy=True, temp_c=40.0 + at)
        await screen.shows("temp ↓", "\npi-4 ", "\npi-3 ")
        await eventually(lambda: screen.text().index("\npi-4 ") < screen.text().index("\npi-3 "))
        assert table.selected == "devices/pi-3"

        await screen.press("S")
        await screen.shows("temp ↑", "\npi-4 ", "\npi-3 ")
        await eventually(lambda: screen.text().index("\npi-4 ") > screen.text().index("\npi-3 "))
        assert table.selected == "devices/pi-3"


async def test_a_lease_is_revoked_only_after_a_yes(client: fleet.aio.Fleet) -> None:
    """No keeps the lease; yes ends it, and its holder gets the revoker's name."""
    async with client.acquire("name=pi-0") as device, screen_of(client) as screen:
        await screen.shows("leased", "x revoke lease")
        await screen.press("x")
        await screen.shows(f"Take pi-0 from {WHO}?")
        await screen.press("n")
        await screen.shows_no("Take pi-0")
        assert device.ended is None

        await screen.press("x")
        await screen.shows(f"Take pi-0 from {WHO}?")
        await screen.press("y")
        await screen.shows(f"devices/pi-0 is no longer held by {account_name()}")
        await eventually(lambda: "ann@desk, in fleet status" in str(device.ended))


async def test_a_wait_is_ended_after_a_yes(client: fleet.aio.Fleet) -> None:
    """The waiting client gets the name of the user."""
    async with client.acquire("name=pi-0"), screen_of(client) as screen:
        waiting = asyncio.create_task(client.acquire_device("name=pi-0"))
        await screen.shows("name=pi-0")
        await screen.press("tab")
        await screen.shows("x cancel request")
        await screen.press("x")
        await screen.shows(f"Take the request of {WHO} for name=pi-0 out of the")
        await screen.press("y")
        with pytest.raises(Cancelled, match="ann@desk, in fleet status"):
            await waiting
        await screen.shows(f"{WHO} waits no more for name=pi-0", "nobody waits")


async def test_a_permission_error_is_displayed(served: ServedTracker, client: fleet.aio.Fleet) -> None:
    """A user may not revoke another's lease; the application shows the error and stays."""
    async with client.acquire("name=pi-0") as device:
        CredentialStore().save(served.address, credentials(Role.USER, make_key()), home=Path("/"))
        async with fleet.aio.connect(served.address, holder="bob@lab") as user, screen_of(user) as screen:
            with pytest.raises(NotAllowed):
                await user.revoke(device.lease.name)
            await screen.shows("x revoke lease")
            await screen.press("x")
            await screen.shows(f"Take pi-0 from {WHO}?")
            await screen.press("y")
            await screen.shows("is another's; its holder or an admin can do this")
        assert device.ended is None


async def test_a_restarted_tracker_is_awaited(served: ServedTracker, client: fleet.aio.Fleet) -> None:
    """The last known state stays, under a line with the time since the tracker is away, until it returns."""
    async with screen_of(client) as screen:
        await served.stop()
        await screen.shows("away since", "pi-0")
        await served.start()
        await screen.shows("20 leased")
        await eventually(lambda: "away since" not in screen.text())

    assert screen.app.failure is None


async def test_messages_after_exit_cause_no_error(client: fleet.aio.Fleet) -> None:
    """Snapshots and answers come while the screen is taken down, too: it failed then, once in twenty times."""
    async with screen_of(client) as screen:
        pass

    screen.app.draw()
    screen.app.say("revoked")


async def test_details_follow_the_cursor(client: fleet.aio.Fleet, agent: SimulatedAgent) -> None:
    """They are below the panes, with the device's history, if there is room, or else replace them."""
    agent.report(BOARDS[1], is_healthy=True, temp_c=47.0)
    async with screen_of(client, size=(120, 40)) as screen:
        await screen.press("enter")
        await screen.shows("devices/pi-0", "rack=3")
        await screen.press("down")
        await screen.shows("devices/pi-1", "temperature  47 °C", "60 min ago")

        await screen.resize(80, 24)
        await eventually(lambda: not screen.app.query_one("#devices").display)
        await screen.shows("devices/pi-1")
        await screen.press("escape")
        await screen.shows("pi-0 ", "nobody waits")


async def test_a_jobs_details_come_from_its_library(client: fleet.aio.Fleet, library: Library) -> None:
    """The details equal the output of `fleet jobs show`; stopping a job goes through the library, too."""
    job = library.queue.submit(title="bert.onnx", spec={"model": "bert.onnx"}, holder="ann@desk")
    library.queue.take("optimizers/1")
    decision = DecisionReport(operator="matmul", count=16, reason=REASON, sentence=reason_text(REASON))
    library.queue.tell(job.name, "optimizers/1", {"kinds": [to_plain(ProgressReport(decisions=(decision,)))]})
    client.publish(JobStatus(name=job.name, title="bert.onnx"))
    client.publish(JobStatus(name="jobs/elsewhere", title="tiny.onnx"))

    async with screen_of(client, library, size=(120, 40)) as screen:
        await screen.shows("bert.onnx", "tiny.onnx")
        await screen.press("tab", "tab")
        await screen.filter("title=bert*")
        await screen.press("enter")
        await screen.shows(f"16 candidates of matmul: {reason_text(REASON)}"[:100])

        await screen.press("x")
        await screen.shows("Stop bert.onnx?")
        await screen.press("y")
        await screen.shows(f"{job.name} is asked to stop")
        await screen.filter("title=tiny*")
        await screen.shows("jobs/elsewhere is not in this library")

    assert library.queue.get(job.name).is_stop_asked
    assert library.queue.get(job.name).state is JobState.RUNNING


async def test_one_pane_may_have_all_the_room(client: fleet.aio.Fleet) -> None:
    """All boards are seen at once on 24 lines, with the headers of the others; z again shares the room."""
    async with client.acquire("name=pi-2"), screen_of(client) as screen:
        waiting = [asyncio.create_task(client.acquire_device("name=pi-2")) for _ in range(9)]
        await screen.shows("queue 9")
        await screen.shows_no("pi-18")
        await screen.press("question_mark")
        await screen.shows("all the room for this pane")

        await screen.press("escape", "z")
        await screen.shows("pi-18", "queue 9", "esc back")
        await screen.press("z")
        await screen.shows_no("pi-18")
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def test_no_terminal_is_too_small(client: fleet.aio.Fleet) -> None:
    """On a tiny terminal the application keeps running, and the keys work again once there is room."""
    async with screen_of(client) as screen:
        for size in ((8, 3), (1, 1), (80, 2)):
            await screen.resize(*size)
            await eventually(lambda size=size: screen.app.size == size)
            await screen.press("tab", "down", "enter", "escape", "z", "z", "question_mark", "escape")

        await screen.resize(80, 24)
        await screen.shows("nobody waits", "no job runs")
        table = screen.app.query_one("#devices", PaneTable)
        screen.app.screen.set_focus(table)
        await screen.press("home", "down")
        assert table.selected == "devices/pi-1"
        await screen.shows("pi-0")


async def test_bookings_are_seen_while_there_are_any_and_cancelled_after_a_yes(client: fleet.aio.Fleet) -> None:
    """Their pane comes with the first booking and goes with the last one."""
    async with screen_of(client) as screen:
        assert "booking" not in screen.text()
        now_sec = (await client.snapshot()).taken_at_sec
        booking = await client.book("name=pi-3", now_sec + 3600.0, 3600.0)
        await screen.shows("booking 1 ", booking_id(booking.name), "kept")
        await client.set_health("name=pi-3", HealthState.RETIRED, "broken")
        await screen.shows("lacks pi-3", "cannot be kept")
        await screen.press("tab", "tab", "enter")
        await screen.shows("wants", "1 of name=pi-3")
        await screen.press("x")
        await screen.shows(f"Cancel the booking {booking_id(booking.name)} of {account_name()} for name=pi-3")
        await screen.press("y")
        await screen.shows(f"cancelled {booking.name}", "device 20", "pi-0")
        await screen.shows_no("booking 1 ")
        assert isinstance(screen.app.focused, PaneTable)


async def test_a_message_of_a_pane_after_the_end_of_the_application_is_ignored(client: fleet.aio.Fleet) -> None:
    """It may be under way when the user quits; quitting then ended with a traceback."""
    async with screen_of(client) as screen:
        app = screen.app

    app.on_pane_table_moved(PaneTable.Moved())

    assert not app.screen_stack
