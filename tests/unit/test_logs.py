"""Lines of the log are ours: no peer makes one, nor too many."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Iterator

import pytest

from fleet.base import logs

Lines = Callable[[], list[str]]


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Lines]:
    """Set the log up on a stream of the test's own, as JSON or text, and give it back afterwards."""
    root, stream = logging.getLogger(), io.StringIO()
    before = root.handlers[:], root.level
    monkeypatch.setattr("sys.stderr", stream)
    logs.setup("INFO", is_json=request.param)
    yield lambda: stream.getvalue().splitlines()
    root.handlers[:], level = before
    root.setLevel(level)


@pytest.mark.parametrize("written", [True, False], indirect=True, ids=["json", "text"])
def test_a_text_with_line_breaks_stays_one_line(written: Lines) -> None:
    """A reason that a peer gave cannot look like a line of its own."""
    forged = 'lost\n{"level": "ERROR", "event": "forged"}\x1b[31m'

    logging.getLogger("peer").warning("device lost", extra={"reason": forged})

    (line,) = written()
    assert "\x1b" not in line
    assert "device lost" in line


@pytest.mark.parametrize("written", [False], indirect=True)
def test_no_text_is_written_over_a_live_screen(written: Lines) -> None:
    """Held-back lines are written at the end, and only the newest of them."""
    with logs.held_back():
        for at in range(150):
            logging.getLogger("peer").info("event %d", at)
        assert written() == []

    logging.getLogger("peer").info("after")
    lines = written()
    assert len(lines) == 101
    assert lines[0].endswith("event 50")
    assert lines[-1].endswith("after")


def test_a_warning_that_repeats_is_counted_not_written() -> None:
    """Thirty thousand warnings about bad frames are twenty lines; the next one after a pause counts the left-out ones.

    Messages below a warning, as for a device that comes and goes, are always written.
    """
    now_sec = [100.0]
    throttle = logs.Throttle(lambda: now_sec[0])

    def passes(level: int, text: str) -> logging.LogRecord | None:
        record = logging.LogRecord("peer", level, "", 0, text, (), None)
        return record if throttle.filter(record) else None

    written = [passes(logging.WARNING, "bad frame") for _ in range(30_000)]
    now_sec[0] += 11.0
    after = passes(logging.WARNING, "bad frame")

    assert len([record for record in written if record]) == 20
    assert after is not None
    assert vars(after)["left_out"] == 29_980
    assert all(passes(logging.INFO, "device attached") for _ in range(30))
    assert passes(logging.WARNING, "another")
