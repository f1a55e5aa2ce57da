"""Lookups of known kernels: at once on the event loop, and in batches where that could stand still."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from tests.service.support import CPU, ODD, Service, kernel_record
from tests.waiting import PATIENCE_S
from tirgemm.errors import StoreError, StoreUnavailable
from tirgemm.gemm import Gemm
from tirgemm.service.http.kernel_cache import kernel_lookups
from tirgemm.service.http.kernel_cache.kernel_lookups import KernelLookups
from tirgemm.tuning_db import Database, JobRequest
from tirgemm.tuning_db.answers.stored_answers import PreparedLookup, StoredAnswer, WantedAnswer, stored_answers

KNOWN, UNKNOWN = (WantedAnswer(text, CPU.key, "sustained") for text in (ODD, "1x1x1"))


def stored(service: Service) -> str:
    return kernel_record(service.store, JobRequest(Gemm.parse(ODD), CPU), search={"effort": "standard"}).id


class Clock:
    """The time as lookups see it; each lookup on the event loop takes ``lookup_seconds``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.lookup_seconds, self.locked = 1000.0, 0.0, False
        find = PreparedLookup.find

        def timed(prepared: PreparedLookup, wanted: WantedAnswer) -> StoredAnswer | None:
            self.now += self.lookup_seconds
            if self.locked:
                raise StoreUnavailable("database is locked")
            return find(prepared, wanted)

        monkeypatch.setattr(PreparedLookup, "find", timed)
        monkeypatch.setattr(kernel_lookups, "time", self)

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the batches that are looked up in threads, from now on."""
    sizes: list[int] = []

    def counted(database: Database, wanted: Sequence[WantedAnswer]) -> list[StoredAnswer | None]:
        sizes.append(len(wanted))
        return stored_answers(database, wanted)

    monkeypatch.setattr(kernel_lookups, "stored_answers", counted)
    return sizes


@pytest.mark.parametrize(
    ("seconds", "locked", "respite"), [(0.012, False, 1.2), (40.0, False, 600.0), (0.0, True, 1.0)]
)
def test_after_a_lookup_that_is_slow_or_finds_a_lock_threads_look_up_for_a_time(
    service: Service, monkeypatch: pytest.MonkeyPatch, batches: list[int], seconds: float, locked: bool, respite: float
) -> None:
    kernel_id, clock = stored(service), Clock(monkeypatch)

    async def scenario() -> None:
        lookups = KernelLookups(service.state.database)

        async def in_batches() -> int:
            before = len(batches)
            answer = await lookups.find(KNOWN)
            assert answer is not None
            assert answer.kernel_id == kernel_id
            assert await lookups.find(UNKNOWN) is None
            return len(batches) - before

        assert await in_batches() == 0, "SQLite is asked at once"
        clock.lookup_seconds, clock.locked = seconds, locked
        assert await in_batches() == (2 if locked else 1), "the lookup that found the lock waits in a thread"
        clock.lookup_seconds, clock.locked = 0.0, False
        clock.now += respite * 0.99
        assert await in_batches() == 2
        clock.now += respite * 0.02
        assert await in_batches() == 0

    asyncio.run(scenario())


def test_of_lookups_that_are_somewhat_slow_it_takes_two_in_a_row(
    service: Service, monkeypatch: pytest.MonkeyPatch, batches: list[int]
) -> None:
    stored(service)
    clock = Clock(monkeypatch)

    async def scenario() -> None:
        lookups = KernelLookups(service.state.database)
        for seconds in (0.006, 0.001, 0.006, 0.0, 0.006, 0.006):
            clock.lookup_seconds = seconds
            assert await lookups.find(KNOWN) is not None
            clock.now += 0.5
        assert batches == []
        assert await lookups.find(KNOWN) is not None

    asyncio.run(scenario())
    assert batches == [1]


def test_an_error_of_sqlite_is_the_requests_own(
    service: Service, monkeypatch: pytest.MonkeyPatch, batches: list[int]
) -> None:
    stored(service)
    Clock(monkeypatch)

    async def scenario() -> None:
        lookups = KernelLookups(service.state.database)
        with service.state.database.write() as connection:
            connection.exec_driver_sql("ALTER TABLE kernel_documents RENAME TO gone")
        with pytest.raises(StoreError, match="no such table"):
            await lookups.find(KNOWN)
        with service.state.database.write() as connection:
            connection.exec_driver_sql("ALTER TABLE gone RENAME TO kernel_documents")
        assert await lookups.find(KNOWN) is not None

    asyncio.run(scenario())
    assert batches == []


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop is always let alone."""
    Clock(monkeypatch).locked = True


@pytest.mark.usefixtures("threads")
def test_requests_that_arrive_during_a_lookup_are_looked_up_together(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_lookups, "AT_ONCE", 3)
    kernel_id = stored(service)
    batches: list[int] = []

    def counted(database: Database, wanted: Sequence[WantedAnswer]) -> list[StoredAnswer | None]:
        batches.append(len(wanted))
        if len(batches) == 2:
            raise StoreError("the second one fails")
        return stored_answers(database, wanted)

    monkeypatch.setattr(kernel_lookups, "stored_answers", counted)

    async def scenario() -> list[str | BaseException | None]:
        lookups = KernelLookups(service.state.database)
        asked = (KNOWN, UNKNOWN, KNOWN, KNOWN, UNKNOWN, KNOWN, UNKNOWN, KNOWN)
        finds = [lookups.find(wanted) for wanted in asked]
        answers = await asyncio.gather(*finds, return_exceptions=True)
        return [answer.kernel_id if isinstance(answer, StoredAnswer) else answer for answer in answers]

    answers = asyncio.run(scenario())
    assert batches == [3, 3, 2]
    assert answers[:3] == [kernel_id, None, kernel_id]
    assert [str(answer) for answer in answers[3:6]] == ["the second one fails"] * 3
    assert answers[6:] == [None, kernel_id]


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("fails", [False, True])
def test_a_request_that_is_given_up_during_its_lookup_takes_nothing_from_the_others(
    service: Service, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    kernel_id, begun, go = stored(service), threading.Event(), threading.Event()

    def held(database: Database, wanted: Sequence[WantedAnswer]) -> list[StoredAnswer | None]:
        begun.set()
        assert go.wait(PATIENCE_S)
        if fails and len(wanted) == 1:
            raise StoreError("the first one fails")
        return stored_answers(database, wanted)

    monkeypatch.setattr(kernel_lookups, "stored_answers", held)

    async def scenario() -> list[str | BaseException | None]:
        lookups = KernelLookups(service.state.database)
        first = asyncio.create_task(lookups.find(KNOWN))
        assert await asyncio.to_thread(begun.wait, PATIENCE_S)
        others = [asyncio.create_task(lookups.find(KNOWN)) for _ in range(3)]
        await asyncio.sleep(0)
        first.cancel()
        others[1].cancel()
        go.set()
        answers = await asyncio.wait_for(asyncio.gather(first, *others, return_exceptions=True), PATIENCE_S)
        return [answer.kernel_id if isinstance(answer, StoredAnswer) else answer for answer in answers]

    first, *others = asyncio.run(scenario())
    assert isinstance(first, asyncio.CancelledError)
    assert isinstance(others[1], asyncio.CancelledError)
    assert [others[0], others[2]] == [kernel_id] * 2
