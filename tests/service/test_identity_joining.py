"""Joining a fleet: by a token, once; certificates are renewed."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import ssl
from pathlib import Path

import pytest

import fleet.aio
from device_agents.agent import Agent, Home
from device_agents.config import make_drivers, parse_config
from device_agents.serving.membership import Membership, renew_in_time
from fleet.base.machine import account_name
from fleet.base.private_files import write_private
from fleet.base.tasks import stopped
from fleet.client.connection import TrackerConnection
from fleet.client.identity_calls import IdentityCalls
from fleet.errors import (
    InvalidRequest,
    NotAllowed,
    NotFound,
    NotJoined,
    TrackerUnavailable,
    Unauthenticated,
)
from fleet.identity import stranger
from fleet.identity.certificates import (
    CERTIFICATE_LIFE,
    issue_own,
    make_authority,
    make_key,
    needs_renewal,
    own_key_id,
    read_identity,
)
from fleet.identity.credentials import Credentials
from fleet.identity.join_tokens import parse_join_token
from fleet.identity.roles import Role
from fleet.identity.store import CredentialStore
from fleet.testing import eventually, serve_tracker
from fleet.testing.identity import account_proof, authority, credentials
from fleet.wire.joining import join, renew_account
from fleet.wire.peers import server_security
from fleet.wire.rpc import bind, make_channel, make_server
from fleet.wire.stubs import add_fleet_service
from tests.service.identity_parts import CONFIG, Answering, get_fleet, nobody, user


async def test_the_public_certificate_permits_only_join() -> None:
    """The public certificate opens the port for a single rpc."""
    async with serve_tracker() as served, make_channel(served.address, nobody()) as channel:
        with pytest.raises(NotAllowed, match="fleet login"):
            await get_fleet(channel)


async def test_certificates_of_the_public_key_grant_no_role() -> None:
    """A certificate signed with the public key, or by another fleet, is refused with any claimed role."""
    now = dt.datetime.now(dt.UTC)
    forger = Credentials(
        key_pem=stranger.KEY_PEM, certificate_pem=stranger.CERTIFICATE_PEM, authority_pem=stranger.CERTIFICATE_PEM
    )
    for signer in (forger, make_authority(now)):
        forged = issue_own(signer, make_key(), name="root", role=Role.ADMIN, now=now)
        shown = [forged.certificate_pem, forged.certificate_pem + signer.authority_pem]
        for chain in shown:
            proof = Credentials(key_pem=forged.key_pem, certificate_pem=chain, authority_pem=authority().authority_pem)
            async with serve_tracker() as served, make_channel(served.address, proof) as channel:
                with pytest.raises(TrackerUnavailable):
                    await get_fleet(channel)


async def test_a_join_token_makes_a_member_once() -> None:
    """The member gets the token's role; a used or revoked token is refused."""
    async with serve_tracker() as served, IdentityCalls(served.address) as admin:
        token, invitation = await admin.invite(Role.USER, ttl_sec=60.0, note="for alice")
        revoked, other = await admin.invite(Role.ADMIN, ttl_sec=60.0)
        assert [invitation, other] == await admin.invitations()
        await admin.uninvite(other.token_id)

        member, joined = await join(served.address, token, name="alice@laptop")

        assert Role.USER is joined.role
        async with make_channel(served.address, member) as channel:
            assert 0 == await get_fleet(channel)
        assert [] == await admin.invitations()
        for useless in (token, revoked):
            with pytest.raises(Unauthenticated, match="used, revoked or expired"):
                await join(served.address, useless, name="mallory")
        with pytest.raises(NotFound):
            await admin.uninvite(other.token_id)


async def test_a_tokens_note_is_one_line_that_moves_no_cursor() -> None:
    """Notes appear in a table on admins' terminals, so they are cleaned and cut."""
    async with serve_tracker() as served, IdentityCalls(served.address) as admin:
        await admin.invite(Role.USER, ttl_sec=60.0, note="for\nalice \x1b[31m" + 1000 * "x")

        (invitation,) = await admin.invitations()

    assert invitation.note.startswith("for alice [31mxxx")
    assert len(invitation.note) == 200


@pytest.mark.parametrize(
    ("role", "wanted", "command"),
    [
        (Role.AGENT, {Role.USER, Role.ADMIN}, "fleet agent join"),
        (Role.USER, {Role.AGENT}, "fleet login"),
        (Role.ADMIN, {Role.AGENT}, "fleet login"),
    ],
)
async def test_a_token_for_another_role_is_refused_and_not_used_up(role: Role, wanted: set[Role], command: str) -> None:
    """Before, `fleet login` with a board's token joined as an agent, which cannot lease, and the board had no token."""
    async with serve_tracker() as served, IdentityCalls(served.address) as admin:
        token, invitation = await admin.invite(role, ttl_sec=60.0)

        with pytest.raises(InvalidRequest, match=f"for the role {role}, and was not used up.*{command}"):
            await join(served.address, token, name="alice", roles=frozenset(wanted))

        assert [invitation] == await admin.invitations()
        _, member = await join(served.address, token, name="alice", roles=frozenset({role}))
        assert role is member.role


async def test_a_user_token_is_refused_for_an_agent_and_stays_usable(tmp_path: Path) -> None:
    """The agent sends the role that it joins with."""
    async with serve_tracker() as served, IdentityCalls(served.address) as admin:
        token, invitation = await admin.invite(Role.USER, ttl_sec=60.0)

        with pytest.raises(InvalidRequest, match="fleet login"):
            await Membership(tmp_path, served.address, token=token).join()

        assert [invitation] == await admin.invitations()


async def test_a_tokens_note_is_the_members_name() -> None:
    """Names are unique; two members in containers were once both called root@vm."""
    async with serve_tracker() as served, IdentityCalls(served.address) as admin:
        names = []
        for note in ("alice", "alice", "", "", "x" * 200, "x" * 200):
            token, _ = await admin.invite(Role.USER, ttl_sec=60.0, note=note)
            _, member = await join(served.address, token, name="bob@box")
            names.append(member.name)

        assert ["alice", "alice (2)", "bob@box", "bob@box (2)", "x" * 64, "x" * 60 + " (2)"] == names
        assert set(names) <= {each.name for each in await admin.members()}


async def test_the_name_of_the_trackers_account_is_reserved() -> None:
    """The tracker's account is an admin, and may not have called yet."""
    async with serve_tracker() as served, IdentityCalls(served.address) as admin:
        token, _ = await admin.invite(Role.USER, ttl_sec=60.0)

        _, member = await join(served.address, token, name=account_name())

        assert f"{account_name()} (2)" == member.name


async def test_the_fingerprint_of_a_joiners_key_is_shown_to_the_admin(caplog: pytest.LogCaptureFixture) -> None:
    """The members' list, the audit log (with the token's id), the tracker's log and the joining command all show it."""
    caplog.set_level("INFO", "fleet.tracker.identity_service")
    async with serve_tracker() as served, IdentityCalls(served.address) as admin:
        token, invitation = await admin.invite(Role.USER, ttl_sec=60.0, note="alice")

        made, member = await join(served.address, token, name="root@vm")

        assert own_key_id(made.key_pem) == member.key_id
        assert ["alice"] == [each.name for each in await admin.members() if each.key_id == member.key_id]
        (entry,) = [entry for entry in await admin.audit_entries(100) if entry.action == "IdentityService.Join"]
        assert {"name": "alice", "key": member.key_id, "token": invitation.token_id} == json.loads(entry.subject)
    (logged,) = [record for record in caplog.records if record.message == "member joined"]
    assert (member.key_id, "alice") == (logged.__dict__["key"], logged.__dict__["member"])


async def test_a_token_is_not_sent_to_a_server_of_another_fleet() -> None:
    """The server at the address is compared with the token's fingerprint before any secret is sent."""
    async with serve_tracker() as served, IdentityCalls(served.address) as admin:
        token, invitation = await admin.invite(Role.USER, ttl_sec=60.0)
        text = str(token)
        forged = parse_join_token(text[:-2] + ("AA" if not text.endswith("AA") else "QQ"))

        with pytest.raises(Unauthenticated, match="nothing was said to it"):
            await join(served.address, forged, name="alice")

        assert [invitation] == await admin.invitations()


async def test_a_client_without_credentials_gets_instructions() -> None:
    """The error comes at once for another machine's address, and after the connect timeout for this machine's own."""
    async with serve_tracker() as served:
        store, kept = CredentialStore(), account_proof(served.address)
        store.forget(served.address)
        others = {path: path.read_bytes() for path in store.folder.glob("*.pem")}
        for path in others:
            path.unlink()
        try:
            with pytest.raises(NotJoined, match="fleet login"):
                await fleet.aio.connect(served.address, connect_timeout_sec=0.3)
            elsewhere = served.address.replace("127.0.0.1", "127.1")
            with pytest.raises(NotJoined, match=f"fleet login --tracker {elsewhere}"):
                await fleet.aio.connect(elsewhere, connect_timeout_sec=1000.0)
        finally:
            store.save(served.address, kept)
            for path, content in others.items():
                path.write_bytes(content)
                path.chmod(0o600)


async def test_an_accounts_certificate_is_renewed_before_it_ends() -> None:
    """With the same key, name and role, by a call that only the key's owner can make; one with time left is kept."""
    now = dt.datetime.now(dt.UTC)
    async with serve_tracker() as served:
        store, kept = CredentialStore(), account_proof(served.address)
        ends_soon = issue_own(
            authority(), make_key(), name="alice", role=Role.USER, now=now - CERTIFICATE_LIFE + dt.timedelta(days=5)
        )
        store.save(served.address, ends_soon)
        try:
            await renew_account(served.address, ends_soon, store)
            fresh = account_proof(served.address)
            await renew_account(served.address, fresh, store)
            again = account_proof(served.address)
        finally:
            store.save(served.address, kept)

    assert isinstance(fresh, Credentials)
    assert fresh == again
    assert not needs_renewal(fresh.certificate_pem, now)
    assert read_identity(ends_soon.certificate_pem) == read_identity(fresh.certificate_pem)


async def test_a_certificate_is_renewed_by_any_address_of_its_tracker(tmp_path: Path) -> None:
    """Renewal updates the credentials kept under another address, and connections continue with the newer
    certificate.
    """
    now, store = dt.datetime.now(dt.UTC), CredentialStore(tmp_path)
    async with serve_tracker() as served:
        ends_soon = issue_own(
            authority(), make_key(), name="alice", role=Role.USER, now=now - CERTIFICATE_LIFE + dt.timedelta(days=5)
        )
        store.save("lab.example.org:9290", ends_soon)
        connection = TrackerConnection(served.address, store)
        await connection.channel()

        await renew_account(served.address, connection.proof, store)
        await connection.channel()
        await connection.close()

    assert connection.proof == store.find("lab.example.org:9290")
    assert isinstance(connection.proof, Credentials)
    assert not needs_renewal(connection.proof.certificate_pem, now)
    assert len(store.all()) == 1


async def test_an_agents_certificate_is_renewed_before_it_ends(tmp_path: Path) -> None:
    """The agent renews it, presents the new one from then on, and loads it at its next start."""
    now = dt.datetime.now(dt.UTC)
    before = now - CERTIFICATE_LIFE + dt.timedelta(days=5)
    ends_soon = issue_own(authority(), make_key(), name="board", role=Role.AGENT, now=before)
    write_private(tmp_path / "identity.pem", ends_soon.to_pem())
    async with serve_tracker() as served:
        agent = Membership(tmp_path, served.address)
        agent.load()
        assert ends_soon == agent.credentials()
        await agent.renew()
    restarted = Membership(tmp_path, served.address)
    restarted.load()

    assert restarted.credentials() == agent.credentials()
    assert not needs_renewal(agent.credentials().certificate_pem, now)
    assert read_identity(ends_soon.certificate_pem) == read_identity(agent.credentials().certificate_pem)


async def test_an_agent_looks_again_whether_its_certificate_ends_soon(tmp_path: Path) -> None:
    """A board that showed 1970 at the first check, and that is switched off each night, once expired after 90 days."""
    now = dt.datetime.now(dt.UTC)
    fresh, ends_soon = (
        issue_own(authority(), make_key(), name="board", role=Role.AGENT, now=made)
        for made in (now, now - CERTIFICATE_LIFE + dt.timedelta(days=5))
    )
    write_private(tmp_path / "identity.pem", fresh.to_pem())
    async with serve_tracker() as served:
        agent = Membership(tmp_path, served.address)
        agent.load()
        looking = asyncio.create_task(renew_in_time(agent, look_sec=0.01))
        await asyncio.sleep(0)
        write_private(tmp_path / "identity.pem", ends_soon.to_pem())
        agent.load()

        await eventually(lambda: not needs_renewal(agent.credentials().certificate_pem, now))

        await stopped(looking)

    assert agent.credentials().key_pem == ends_soon.key_pem


async def test_a_renewed_certificate_is_shown_from_then_on() -> None:
    """No server restart is needed: existing connections continue, new ones see the new certificate."""
    shown = [credentials(Role.TRACKER)]
    server = make_server()
    add_fleet_service(server, Answering())
    port = bind(server, "127.0.0.1", 0, server_security(lambda: shown[0]), what="the test")
    await server.start()
    seen = []
    async with make_channel(f"127.0.0.1:{port}", user()) as before:
        await get_fleet(before)
        for _ in range(2):
            seen.append(await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", port)))
            shown[0] = credentials(Role.TRACKER)
        await get_fleet(before)
        async with make_channel(f"127.0.0.1:{port}", user()) as after:
            await get_fleet(after)
    await server.stop(0)

    assert seen[0] != seen[1]


@pytest.mark.slow
async def test_an_agent_joins_by_a_token_and_keeps_its_key(tmp_path: Path) -> None:
    """Without its account's credentials: the token once, from then on its own key, which others cannot read."""
    async with serve_tracker() as served:
        async with IdentityCalls(served.address) as admin:
            token, _ = await admin.invite(Role.AGENT, ttl_sec=60.0)
        config = parse_config(CONFIG)
        home = Home(tracker=served.address, state_dir=tmp_path, token=token)
        keys = []
        for _ in range(2):
            async with Agent(config, make_drivers(config), home) as agent:
                assert await agent.wait_attached(60.0)
                keys.append(agent.key_id)

    assert keys[0] == keys[1]
    assert 0o600 == (tmp_path / "identity.pem").stat().st_mode & 0o777
