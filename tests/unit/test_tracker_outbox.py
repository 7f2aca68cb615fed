"""The outbox of one stream is bounded and keeps the order."""

from __future__ import annotations

import asyncio

import pytest

from fleet.tracker.outbox import Outbox


async def test_items_come_out_in_order_and_in_batches() -> None:
    """Many items share a message, but no message has more than asked for."""
    outbox: Outbox[int] = Outbox(100)
    for item in range(5):
        outbox.put(item)

    assert await outbox.take(3) == [0, 1, 2]
    assert await outbox.take(3) == [3, 4]


async def test_taking_waits_for_an_item() -> None:
    """A sender sleeps until there is something to send."""
    outbox: Outbox[int] = Outbox(100)
    asyncio.get_running_loop().call_soon(outbox.put, 7)

    assert await outbox.take(3) == [7]


async def test_taking_gives_up_after_its_timeout() -> None:
    """The timeout lets a stream send a heartbeat."""
    outbox: Outbox[int] = Outbox(100)

    assert await outbox.take(3, 0.001) == []


async def test_closed_outbox_is_emptied_first() -> None:
    """Items added before the close are still delivered."""
    outbox: Outbox[int] = Outbox(100)
    outbox.put(1)
    outbox.close()
    outbox.put(2)

    assert await outbox.take(3) == [1]
    assert await outbox.take(3) is None


async def test_overflow_cuts_the_stream() -> None:
    """One item too many ends the sender's task and frees the waiting items."""
    boxes: list[Outbox[int]] = []

    async def stuck_sender() -> None:
        boxes.append(Outbox(10))
        await asyncio.Event().wait()

    sender = asyncio.create_task(stuck_sender())
    await asyncio.sleep(0)
    for item in range(11):
        boxes[0].put(item)

    with pytest.raises(asyncio.CancelledError):
        await sender
    assert (len(boxes[0]), boxes[0].is_closed) == (0, True)


async def test_reader_waits_until_the_peer_has_taken_enough() -> None:
    """Above a quarter of the limit a peer is read no further; below, it is."""
    outbox: Outbox[int] = Outbox(8)
    for item in range(4):
        outbox.put(item)
    waiting = asyncio.create_task(outbox.wait_drained())
    await asyncio.sleep(0)
    assert not waiting.done()

    await outbox.take(3)
    await waiting

    assert len(outbox) == 1
