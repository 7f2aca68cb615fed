"""Device names that two agents want."""

from __future__ import annotations

from fleet.testing import FakeClock
from fleet.tracker.contested import ContestedNames


def test_that_a_name_is_wanted_is_news_every_ten_minutes() -> None:
    """A refused agent retries every few seconds, which would flood the log; warnings are limited for each name."""
    clock = FakeClock()
    names = ContestedNames(clock)

    assert [names.is_news("devices/a"), names.is_news("devices/a"), names.is_news("devices/b")] == [True, False, True]
    clock.advance(599.0)
    assert not names.is_news("devices/a")
    clock.advance(1.0)
    assert [names.is_news("devices/a"), names.is_news("devices/a")] == [True, False]
