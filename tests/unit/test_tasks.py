"""Background tasks that end with a `with` block."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

import pytest

from fleet.base.tasks import started


async def test_a_failed_block_raises_its_own_error_whatever_became_of_its_task() -> None:
    """The error of a model that cannot be imported is not replaced by the one of its reference outputs."""

    async def fail() -> None:
        raise ValueError

    async def fail_beside(coroutine: Coroutine[None, None, None]) -> None:
        async with started(coroutine, name="beside"):
            await asyncio.sleep(0)
            raise KeyError

    for coroutine in (fail(), asyncio.sleep(3600)):
        with pytest.raises(KeyError):
            await fail_beside(coroutine)


async def test_a_block_has_the_result_of_its_task() -> None:
    """The block awaits it."""
    async with started(asyncio.sleep(0, "done"), name="beside") as task:
        assert await task == "done"
