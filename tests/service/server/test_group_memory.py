"""The memory of several server processes: each counts for itself, and all see it."""

from __future__ import annotations

import tempfile
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from tirgemm.service.group_memory import GroupMemory
from tirgemm.service.server.server_group import SILENT_SECONDS, SignsOfLife


def test_every_count_of_every_process_is_seen_by_all_and_only_as_what_it_is() -> None:
    with tempfile.TemporaryFile() as file:
        file.truncate(GroupMemory.size(3))
        group = [GroupMemory(3, number, file.fileno()) for number in range(3)]
        for one in group:
            before = [(each.changes, each.refreshes) for each in group]
            assert len(set(before)) == 1
            one.note_change()
            changed = [(each.changes, each.refreshes) for each in group]
            assert all(now[0] != then[0] and now[1] == then[1] for now, then in zip(changed, before, strict=True))
            one.ask_for_refresh()
            asked = [(each.changes, each.refreshes) for each in group]
            assert all(now[0] == then[0] and now[1] != then[1] for now, then in zip(asked, changed, strict=True))
            assert not any(each.all_started for each in group)
            one.give_sign_of_life()
        assert all(each.all_started for each in group)
        again = GroupMemory(3, 1, file.fileno())
        assert again.changes == group[0].changes, "a process that is started again counts on"
        assert group[2].buckets.take("key", 1.0, 5.0) == 0
        assert again.buckets.take("key", 1.0, 5.0) == 1


def test_a_process_lives_while_its_signs_are_new(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("tirgemm.service.server.server_group.time", SimpleNamespace(monotonic=lambda: now[0]))
    memory = GroupMemory(2, 1)
    signs = SignsOfLife(memory, 1)
    assert not signs.are_there(1), "one that starts has given none"
    for _ in range(2):
        memory.give_sign_of_life()
        assert signs.are_there(1)
        now[0] += SILENT_SECONDS - 1
        assert signs.are_there(1)
        now[0] += 2
        assert not signs.are_there(1)
    memory.give_sign_of_life()
    assert signs.are_there(1)
    assert not signs.are_there(2), "the last sign was that of the process before"
    memory.give_sign_of_life()
    assert signs.are_there(2)
    assert not SignsOfLife(memory, 0).are_there(1), "of another they say nothing"


def test_no_change_is_missed_among_threads() -> None:
    memory, changes = GroupMemory(), 2000
    with ThreadPoolExecutor(8) as pool:
        for _ in range(changes):
            pool.submit(memory.note_change)
    assert int.from_bytes(memory.changes, "little") == changes
