"""Identities for tests: one authority for all servers of a test process, and this account's credentials for them."""

from __future__ import annotations

import asyncio
import datetime as dt
import functools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc

from fleet.base.private_files import write_private
from fleet.client.connection import not_joined
from fleet.client.identity_calls import IdentityCalls
from fleet.errors import ConfigError
from fleet.identity.certificates import issue_own, make_authority, make_key, own_key_id
from fleet.identity.credentials import Credentials, Proof
from fleet.identity.roles import Role
from fleet.identity.store import CredentialStore
from fleet.wire import joining
from fleet.wire.peers import server_security
from fleet.wire.rpc import Channel, make_channel


@functools.cache
def authority() -> Credentials:
    """Return the authority of this process's fleets."""
    return make_authority(dt.datetime.now(dt.UTC))


@functools.cache
def key(role: Role) -> bytes:
    """Return the key that fakes of a role share."""
    return make_key()


def key_id(role: Role) -> str:
    """Return the id of the key that fakes of a role share."""
    return own_key_id(key(role))


def credentials(role: Role, key_pem: bytes | None = None) -> Credentials:
    """Return credentials of this process's authority."""
    return issue_own(authority(), key_pem or key(role), name=f"a test's {role}", role=role, now=dt.datetime.now(dt.UTC))


def security(role: Role) -> grpc.ServerCredentials:
    """Return TLS for a fake server: a tracker's, or an agent's."""
    shown = credentials(role)
    return server_security(lambda: shown, admits_strangers=role is Role.TRACKER)


def use_authority(state_dir: Path) -> None:
    """Have the tracker of a state directory use this process's authority, unless it has its own."""
    path = state_dir / "authority.pem"
    if not path.exists():
        write_private(path, authority().to_pem())


def know_tracker(address: str) -> None:
    """Give this account the rights of an admin at a fake tracker."""
    CredentialStore().save(address, credentials(Role.ADMIN), home=Path("/"))


def account_channel(address: str) -> Channel:
    """Open a channel to a tracker with this account's credentials."""
    return make_channel(address, account_proof(address))


def account_proof(address: str) -> Proof:
    """Return this account's credentials for a tracker.

    Raises:
        NotJoined: it has none.
    """
    found = CredentialStore().find(address)
    if found is None:
        raise not_joined(address)
    return found


def join_token(address: str, role: Role = Role.AGENT) -> str:
    """Return a token for joining the fleet of a tracker of this account; with or without an event loop."""

    async def invite() -> str:
        async with IdentityCalls(address) as calls:
            token, _ = await calls.invite(role, ttl_sec=600.0)
        return str(token)

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(invite())).result()


async def join_user(address: str, name: str, account: str = "", *, may_ask_for_others: bool = False) -> Credentials:
    """Return credentials of a new user at a tracker of this account.

    Args:
        account: account that the user's requests count in; empty: one of the user's own.
        may_ask_for_others: whether requests may name other accounts.
    """
    async with IdentityCalls(address) as admin:
        token, _ = await admin.invite(
            Role.USER, ttl_sec=60.0, account=account, may_ask_for_others=may_ask_for_others, note=name
        )
    member, _ = await joining.join(address, token, name=name)
    return member


_admitted: dict[tuple[bytes, bytes], Credentials] = {}


async def agent_credentials(address: str, key_pem: bytes | None = None) -> Credentials:
    """Return credentials of an agent for a tracker of this account: those of the fakes' shared key by default."""
    account = CredentialStore().find(address)
    if not isinstance(account, Credentials):
        raise ConfigError(f"this account has no credentials for {address}")
    key_pem = key_pem or key(Role.AGENT)
    known = (account.authority_pem, key_pem)
    if known not in _admitted:
        _admitted[known] = await joining.admit_own(address, account, name="simulated", key_pem=key_pem)
    return _admitted[known]
