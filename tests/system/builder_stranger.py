"""Attacks a Dask cluster without credentials: runs code on scheduler and builder, and prints the answers as JSON.

    python -m tests.system.builder_stranger UID FOLDER SCHEDULER BUILDER

The addresses are "host:port". UID is the account to become first (0: stay). FOLDER has certificates of another
authority.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

from distributed import Client, Security, rpc
from distributed.protocol.pickle import dumps

_ENDS_WITHIN_SEC = 5.0


def passwords() -> tuple[int, str]:
    """Return evidence that code ran: the account, and a line of a file that only root can read."""
    return os.getuid(), Path("/etc/shadow").read_text().splitlines()[0]


async def _call(address: str, security: Security) -> object:
    function = dumps(passwords)
    async with rpc(address, connection_args=security.get_connection_args("client")) as one:
        return await one.run(function=function)


async def _client(address: str, security: Security) -> object:
    async with Client(address, security=security, asynchronous=True, timeout=_ENDS_WITHIN_SEC) as client:
        return await client.run_on_scheduler(passwords)


def _forged(certs: Path) -> Security:
    own = {f"tls_client_{kind}": (certs / f"{kind}.pem").read_text() for kind in ("cert", "key")}
    return Security(require_encryption=True, tls_ca_file=(certs / "ca.pem").read_text(), **own)


async def _attacks(places: list[str], forged: Security) -> list[str]:
    """Return the results of all attempts that got one."""
    answers = []
    for place in places:
        for scheme, security in (("tcp", Security(require_encryption=False)), ("tls", forged)):
            for attack in (_call, _client):
                try:
                    async with asyncio.timeout(_ENDS_WITHIN_SEC):
                        answers.append(f"{scheme} {attack.__name__}: {await attack(f'{scheme}://{place}', security)}")
                except Exception as error:  # noqa: BLE001 - Dask refuses with many classes
                    print(scheme, place, attack.__name__, type(error).__name__, error, file=sys.stderr)
    return answers


def main() -> None:
    uid, certs, *places = sys.argv[1:]
    forged = _forged(Path(certs))
    if int(uid):
        os.setgroups([])
        os.setresgid(int(uid), int(uid), int(uid))
        os.setresuid(int(uid), int(uid), int(uid))
    print(json.dumps(asyncio.run(_attacks(places, forged))))


if __name__ == "__main__":
    main()
