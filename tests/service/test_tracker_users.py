"""A tracker identifies its users by their keys, regardless of the names that clients send."""

from __future__ import annotations

import datetime as dt

import fleet.aio
from fleet.client.identity_calls import IdentityCalls
from fleet.identity.certificates import issue_own, make_key, own_key_id
from fleet.identity.credentials import Credentials
from fleet.identity.roles import Role
from fleet.testing import LeaseStream, SimulatedAgent, eventually, serve_tracker
from fleet.testing.identity import authority
from fleet.v1 import job_pb2, lease_service_pb2


def _member(name: str, role: Role = Role.USER) -> Credentials:
    return issue_own(authority(), make_key(), name=name, role=role, now=dt.datetime.now(dt.UTC))


def _job(stream: LeaseStream, name: str, title: str, state: job_pb2.JobState = job_pb2.JOB_STATE_RUNNING) -> None:
    job = job_pb2.Job(name=name, title=title, holder="ann@lab", state=state)
    stream.say(lease_service_pb2.ClientEvent(job=job))


async def test_a_bid_under_anothers_name_takes_none_of_its_turns() -> None:
    """A second key with a user's name gets a turn of its own account, whatever it bids and however urgent it is."""
    ann, mallory = _member("ann@lab"), _member("mallory@lab")
    async with (
        serve_tracker() as served,
        SimulatedAgent(served.address, ["devices/a"]),
        LeaseStream(served.address, "0", proof=_member("bob@lab")) as holder,
        LeaseStream(served.address, "0", holder="ann@lab", proof=ann) as first,
        LeaseStream(served.address, "0", holder="ann@lab", proof=mallory) as other,
    ):
        lease_name = (await holder.grant("held", "simulated")).lease.name
        for stream, name, terms in ((first, "ann", {}), (other, "mallory", {"bid": 1e6, "priority": 100})):
            for number in (1, 2):
                stream.acquire(f"{name}{number}", "simulated", **terms)
                await eventually(lambda s=stream, r=f"{name}{number}": r in s.queued)
        turns = ((holder, first, "ann1"), (first, other, "mallory1"))
        for releasing, served_next, request_id in turns:
            releasing.release(lease_name)
            await eventually(lambda s=served_next, r=request_id: r in s.granted)
            lease_name = served_next.granted[request_id].lease.name

    assert "ann2" not in first.granted


async def test_a_lease_is_shown_under_the_name_of_the_certificate() -> None:
    """The client's own name is shown beside it: in snapshots, for a waiting request, and in the audit log."""
    mallory = _member("mallory@lab")
    async with (
        serve_tracker() as served,
        SimulatedAgent(served.address, ["devices/a"]),
        LeaseStream(served.address, "0", holder="ann@lab", proof=mallory) as stream,
        fleet.aio.connect(served.address) as client,
    ):
        await stream.grant("1", "simulated")
        stream.acquire("2", "simulated")
        await eventually(lambda: "2" in stream.queued)
        snapshot = await client.snapshot()
        async with IdentityCalls(served.address) as calls:
            (entry,) = (each for each in await calls.audit_entries(20) if each.name == "mallory@lab")

    (device,), (lease,), (request,) = snapshot.devices, snapshot.leases, snapshot.requests
    expected = ("mallory@lab", "ann@lab")
    assert [(each.holder, each.holder_note) for each in (device, lease, request)] == 3 * [expected]
    assert [device.held_by, lease.held_by, request.asked_by] == 3 * ["mallory@lab (ann@lab)"]
    assert (entry.action, entry.subject) == ("LeaseService.OpenLeases", '{"note": "ann@lab"}')


async def test_a_duplicate_user_name_is_displayed_with_its_key() -> None:
    """Members choose the names in their certificates, so the later one is shown with the beginning of its key."""
    ann, mallory = _member("ann@lab"), _member("ann@lab")
    async with (
        serve_tracker() as served,
        SimulatedAgent(served.address, ["devices/a", "devices/b"]),
        LeaseStream(served.address, "0", holder="ann@lab", proof=ann) as first,
        LeaseStream(served.address, "0", holder="ann@lab", proof=mallory) as other,
    ):
        genuine = (await first.grant("1", "simulated")).lease
        false = (await other.grant("1", "simulated")).lease

    key_id = own_key_id(mallory.key_pem)
    assert [genuine.holder, false.holder] == ["ann@lab", f"ann@lab#{key_id[:8]}"]


async def test_job_names_are_separate_for_each_user() -> None:
    """Before, a job under another user's name, and 1,100 others, evicted all of that user's jobs from the status."""
    async with (
        serve_tracker() as served,
        LeaseStream(served.address, "0", proof=_member("ann@lab")) as ann,
        LeaseStream(served.address, "0", proof=_member("mallory@lab")) as mallory,
        fleet.aio.connect(served.address) as client,
    ):
        _job(ann, "jobs/resnet", "resnet50")
        ann.acquire("first", "name=none")
        await eventually(lambda: ann.refused)
        _job(mallory, "jobs/resnet", "not yours", job_pb2.JOB_STATE_FAILED)
        for number in range(1_100):
            _job(mallory, f"jobs/{number}", "flood")
        mallory.acquire("last", "name=none")
        await eventually(lambda: mallory.refused)  # events are taken in order
        jobs = (await client.snapshot()).jobs

    (genuine,) = (job for job in jobs if job.holder == "ann@lab")
    assert (genuine.title, str(genuine.state)) == ("resnet50", "RUNNING")
    assert len(jobs) == 1 + 200
    assert {job.held_by for job in jobs} == {"ann@lab", "mallory@lab (ann@lab)"}
