"""The build pool's queue: its order of takers and items, with takers that are waiting threads."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

from cross.pool.task_queue import TaskQueue
from fleet.testing import eventually_sync


@contextmanager
def waiting(queue: TaskQueue[str], *takers: int) -> Iterator[list[Future[str | None]]]:
    """Have takers wait for one item each."""
    with ThreadPoolExecutor(len(takers)) as threads:
        try:
            taken = []
            for taker in takers:
                taken.append(threads.submit(queue.get, taker))
                eventually_sync(lambda taker=taker: taker in queue._idle)  # noqa: SLF001 - it shows from outside in no way
            yield taken
        finally:
            queue.close()


def test_an_item_waits_for_its_home_while_that_is_idle() -> None:
    """An idle home gets its item although another taker was first; a busy one does not."""
    queue: TaskQueue[str] = TaskQueue()

    with waiting(queue, 0, 1) as (first, second):
        queue.put("of 1", home=1)
        assert second.result(5) == "of 1"
        assert not first.done()
        queue.put("of 1 again", home=1)
        assert first.result(5) == "of 1 again"  # 1 is busy now


def test_items_without_a_home_come_in_order() -> None:
    """An item without a home precedes a later one of the taker's own."""
    queue: TaskQueue[str] = TaskQueue()
    for item, home in (("a", None), ("b", 0), ("c", 0), ("d", None)):
        queue.put(item, home)

    assert [queue.get(0) for _ in range(4)] == ["a", "b", "c", "d"]


def test_items_of_a_busy_home_are_taken_last() -> None:
    """A worker without other work takes items that prefer a busy worker."""
    queue: TaskQueue[str] = TaskQueue()
    for item, home in (("of 1", 1), ("of 0", 0), ("anyone's", None)):
        queue.put(item, home)

    assert [queue.get(0) for _ in range(3)] == ["of 0", "anyone's", "of 1"]


def test_a_closed_queue_is_drained_before_it_ends() -> None:
    """Waiting workers get no more items and end."""
    queue: TaskQueue[str] = TaskQueue()
    queue.put("a")
    queue.close()

    assert (queue.get(0), queue.get(0)) == ("a", None)
    queue.put("b")
    assert queue.clear() == ["b"]
    with waiting(TaskQueue[str](), 0, 1) as taken:
        pass
    assert [each.result(5) for each in taken] == [None, None]
