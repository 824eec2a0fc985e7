import asyncio

import pytest

from crossclr.search.service.access import within


def test_within_gives_the_result_or_ends_in_time():
    async def answer():
        await asyncio.sleep(0)
        return 7

    async def both():
        assert await within(5, answer()) == 7
        with pytest.raises(asyncio.TimeoutError):
            await within(0.01, asyncio.sleep(5))
        await asyncio.sleep(0.02)  # and nothing comes after it

    asyncio.run(both())


def test_a_cancelled_task_stays_cancelled():
    async def both():
        task = asyncio.create_task(within(5, asyncio.sleep(5)))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(both())


def test_an_error_passes_through():
    async def broken():
        raise KeyError("x")

    with pytest.raises(KeyError):
        asyncio.run(within(5, broken()))
