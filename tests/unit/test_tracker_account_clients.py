"""Index of connected clients by account."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fleet.tracker.account_clients import AccountClients

STEPS = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["x", "y", None])))


@given(STEPS)
def test_each_client_is_in_its_newest_account_until_it_leaves(steps: list[tuple[str, str | None]]) -> None:
    """A client that opens a new stream may belong to another account."""
    index, expected = AccountClients(), dict[str, str]()
    for client_id, account in steps:
        if account is None:
            index.leave(client_id)
            expected.pop(client_id, None)
        else:
            index.join(client_id, account)
            expected[client_id] = account

    for account in ("x", "y"):
        assert set(index.of(account)) == {each for each, other in expected.items() if other == account}
