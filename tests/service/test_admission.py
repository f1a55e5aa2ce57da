"""Admission to work that takes seconds: who is let in, who waits, and who is told to come later."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from tirgemm.errors import QueueFull
from tirgemm.service.admission import Admission


def test_more_than_may_wait_are_refused_and_the_others_have_their_turns() -> None:
    admission, done, go = Admission(1, 1), [], asyncio.Event()

    async def work(name: str) -> None:
        async with admission.turn():
            await go.wait()
            done.append(name)

    async def all_of_them() -> None:
        first, second = asyncio.create_task(work("first")), asyncio.create_task(work("second"))
        await asyncio.sleep(0)
        with pytest.raises(QueueFull, match="1 requests wait"):
            await work("refused")
        second.cancel()
        with suppress(asyncio.CancelledError):
            await second
        third = asyncio.create_task(work("third"))
        await asyncio.sleep(0)
        go.set()
        await asyncio.gather(first, third)
        await work("later")

    asyncio.run(all_of_them())
    assert done == ["first", "third", "later"]
