"""The single-flight cache: one maker for all who wait, failures that are not kept, and a bound."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.waiting import PATIENCE_S
from tirgemm.service.views.single_flight import SingleFlight


@pytest.mark.parametrize("fails", [False, True])
def test_all_who_ask_meanwhile_wait_for_one_result(fails: bool) -> None:
    cache: SingleFlight[str, int] = SingleFlight(4)
    begun, go, made = threading.Event(), threading.Event(), []

    def make() -> int:
        begun.set()
        assert go.wait(PATIENCE_S)
        made.append(1)
        if fails:
            raise ValueError("it cannot be made")
        return len(made)

    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(cache.get, "a", make)
        assert begun.wait(PATIENCE_S)
        others = [pool.submit(cache.get, "a", make) for _ in range(3)]
        # Another key waits for nobody.
        assert cache.get("b", lambda: 7) == 7
        go.set()
        errors = [future.exception(timeout=PATIENCE_S) for future in (first, *others)]
    if fails:
        # One that came behind the first failure makes it anew.
        assert all(isinstance(error, ValueError) for error in errors)
        assert cache.get("a", lambda: 5) == 5
    else:
        assert errors == [None] * 4
        assert {future.result() for future in (first, *others)} == {1}
        assert len(made) == 1


def test_the_keys_that_were_asked_for_last_are_kept() -> None:
    cache: SingleFlight[int, int] = SingleFlight(2)
    made: list[int] = []

    def get(key: int) -> int:
        def make() -> int:
            made.append(key)
            return key

        return cache.get(key, make)

    assert [get(key) for key in (1, 2, 1, 3, 1, 2)] == [1, 2, 1, 3, 1, 2]
    assert made == [1, 2, 3, 2]
