"""Forecasts of requests that wait for a booking of their account."""

from __future__ import annotations

from fleet.domain.leases import LeaseClass, LeaseTerms
from fleet.domain.waits import Forecast
from fleet.testing import FakeClock
from fleet.tracker.core import events as ev
from fleet.tracker.core.outlook import make_outlook
from fleet.tracker.core.queries import Queries
from fleet.tracker.core.share_policy import EVERY_ACCOUNT, Quota, SharePolicy
from fleet.tracker.forecaster import Forecaster
from fleet.tracker.pace import Pace
from fleet.tracker.portions import finished
from tests.unit.test_tracker_forecast import row
from tests.unit.tracker_bench import Bench

HOUR_SEC = 3600.0


def booked_bench(*request_ids: str, starts_in_sec: float = HOUR_SEC, count: int = 1) -> Bench:
    """Boards that alice has booked for an hour, with requests of hers for the booking. Bob holds one of them."""
    bench = Bench()
    bench.attach("a", "b")
    bench.connect("alice", "bob")
    bench.grant("bob", "held", "name=a", max_sec=600.0)
    bench.apply(
        ev.Book(
            selector="cpu",
            device_count=count,
            starts_at_sec=bench.now + starts_in_sec,
            ends_at_sec=bench.now + starts_in_sec + HOUR_SEC,
            holder="alice@host",
            account="alice@host",
        )
    )
    (name,) = bench.state.bookings.entries
    for request_id in request_ids:
        bench.apply(ev.Acquire("alice", request_id, LeaseTerms(selector="", booking=name, ttl_sec=300.0)))
    return bench


async def forecasts(bench: Bench, *lengths_sec: float) -> dict[str, Forecast | None]:
    """Return forecasts by request, after leases of these lengths have ended. Times begin with now."""
    clock = FakeClock()
    forecaster = Forecaster(Queries(bench.state), clock, Pace())
    forecaster.learn([row(sec) for sec in lengths_sec])
    await forecaster.refresh()
    now = clock.now_sec()
    found = {request.request_id: forecaster.of(request) for request in bench.state.clients["alice"].requests.values()}
    return {name: each and _from(each, now) for name, each in found.items()}


def _from(forecast: Forecast, now: float) -> Forecast:
    times = forecast.from_sec, forecast.expected_sec, forecast.by_sec
    low, middle, high = (sec - now for sec in times)
    return Forecast(from_sec=low, expected_sec=middle, by_sec=high)


def at(sec: float) -> Forecast:
    return Forecast(from_sec=sec, expected_sec=sec, by_sec=sec)


async def test_a_request_starts_with_its_booking_without_any_history() -> None:
    """Before, it had no forecast: too few leases have ended."""
    assert await forecasts(booked_bench("r")) == {"r": at(HOUR_SEC)}


async def test_further_requests_follow_as_leases_of_the_booking_end() -> None:
    """Two boards serve the first two requests, and the third after the first lease; without history nobody knows."""
    bench = booked_bench("r1", "r2", "r3", count=2)
    assert await forecasts(bench) == {"r1": at(HOUR_SEC), "r2": at(HOUR_SEC), "r3": None}
    assert (await forecasts(bench, *[20.0] * 5))["r3"] == at(HOUR_SEC + 20.0)


async def test_a_request_that_the_booking_ends_before_has_no_forecast() -> None:
    bench = booked_bench("r1", "r2")
    assert (await forecasts(bench, *[2 * HOUR_SEC] * 5))["r2"] is None


async def test_leases_of_the_booking_count_after_its_start() -> None:
    """The live lease is 30 s old, of 100 s."""
    bench = booked_bench("r1", "r2", starts_in_sec=60.0)
    for _ in range(9):
        bench.tick(10.0)
    (held,) = (lease for lease in bench.state.leases.values() if lease.terms.booking)
    assert held.request_id == "r1"
    assert await forecasts(bench) == {"r2": None}
    assert await forecasts(bench, *[100.0] * 5) == {"r2": at(70.0)}


async def test_the_history_has_the_forecast_of_a_booked_request() -> None:
    """Forecasts of bookings do not calibrate those of others."""
    bench, clock = booked_bench("r", starts_in_sec=60.0), FakeClock()
    forecaster = Forecaster(Queries(bench.state), clock, Pace())
    await forecaster.refresh()
    effects = [effect for _ in range(7) for effect in bench.tick(10.0)]
    for effect in effects:
        forecaster.on_effect(effect)
    (granted,) = (lease for lease in bench.state.leases.values() if lease.terms.booking)
    assert forecaster.said_sec(granted.name) is not None


def test_a_quota_holds_requests_of_a_booking_out_of_the_outlook() -> None:
    bench = booked_bench("r1", "r2")
    quotas = {EVERY_ACCOUNT: {LeaseClass.NORMAL: Quota(leases=1)}}
    bench.grant("alice", "other", "name=b")
    bench.apply(ev.PolicyChanged(SharePolicy(class_quotas=quotas)))
    (lane,) = finished(make_outlook(bench.state, lambda device: device.kind)).booked_lanes
    assert not lane.requests
