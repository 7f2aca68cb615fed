"""Connected clients of each account, for messages to all of them."""

from __future__ import annotations

from collections.abc import Iterable


class AccountClients:
    """Index of clients by account."""

    def __init__(self) -> None:
        self._account_of: dict[str, str] = {}
        self._clients: dict[str, dict[str, None]] = {}

    def join(self, client_id: str, account: str) -> None:
        """Add a client, or move it to another account."""
        self.leave(client_id)
        self._account_of[client_id] = account
        self._clients.setdefault(account, {})[client_id] = None

    def leave(self, client_id: str) -> None:
        """Remove a client. Idempotent."""
        account = self._account_of.pop(client_id, None)
        if account is None:
            return
        clients = self._clients[account]
        del clients[client_id]
        if not clients:
            del self._clients[account]

    def of(self, account: str) -> Iterable[str]:
        """Return the clients of an account, the first to join first."""
        return tuple(self._clients.get(account, ()))
