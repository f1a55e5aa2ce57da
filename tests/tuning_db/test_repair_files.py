"""The files beside a damaged SQLite database that is repaired: what was kept stays, leftovers are in no one's way."""

from __future__ import annotations

import errno
import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.contract.storage.databases import DEVICE
from tests.tuning_db.damaged_databases import (
    PAGE,
    damage,
    require_whole,
    rows,
)
from tirgemm._user_folders import DATABASE
from tirgemm.errors import StoreError
from tirgemm.tuning_db import Database, SqlStore
from tirgemm.tuning_db.database import damage_marker
from tirgemm.tuning_db.upkeep.repair import repair, repair_if_found_damaged
from tirgemm.tuning_db.upkeep.repair_files import RepairFiles


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.EIO, "Input/output error")])
def test_once_it_is_written_the_kept_bytes_stay_until_it_is_whole(
    data: Path, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    damage(data, "<candidate 60>")
    before = (data / DATABASE).read_bytes()
    real = RepairFiles.begin_to_write

    def interrupted(files: RepairFiles) -> None:
        real(files)
        raise error

    monkeypatch.setattr(RepairFiles, "begin_to_write", interrupted)
    kept = data / f"{DATABASE}.damaged-unfinished"
    for _ in range(2):
        with pytest.raises((KeyboardInterrupt, StoreError)) as caught:
            repair(data / DATABASE, data)
        assert (str(kept) in str(caught.value)) == isinstance(error, OSError)
        assert list(data.glob("*.damaged-*")) == [kept], "one copy, however often it is tried"
        assert kept.read_bytes() == before
    monkeypatch.setattr(RepairFiles, "begin_to_write", real)
    done = repair(data / DATABASE, data)
    assert list(data.glob("*.damaged-*")) == [done.damaged_file]
    assert (done.damaged_file or kept).read_bytes() == before
    require_whole(data)


def test_kept_bytes_of_a_repair_that_was_killed_are_not_those_of_the_next(data: Path) -> None:
    unfinished = data / f"{DATABASE}.damaged-unfinished"
    unfinished.write_bytes(b"another damage")
    damage(data, "<candidate 60>")
    before = (data / DATABASE).read_bytes()
    done = repair(data / DATABASE, data)
    assert sorted(path.read_bytes() for path in data.glob("*.damaged-*")) == sorted([b"another damage", before])
    assert done.damaged_file is not None
    assert done.damaged_file.read_bytes() == before
    shutil.copy(done.damaged_file, unfinished)
    assert repair(data / DATABASE, data).damaged_file is None, "it is whole, and was not told to be"
    assert not unfinished.exists()
    assert len(list(data.glob("*.damaged-*"))) == 3


def test_kept_bytes_are_on_the_disk_before_anything_is_written(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    damage(data, "<candidate 60>")
    real_sync, real_begin, synced = os.fsync, RepairFiles.begin_to_write, list[str]()

    def sync(number: int) -> None:
        synced.append(Path(f"/proc/self/fd/{number}").readlink().name)
        real_sync(number)

    def begin(files: RepairFiles) -> None:
        synced.append("begins")
        real_begin(files)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(RepairFiles, "begin_to_write", begin)
    repair(data / DATABASE, data)
    assert synced[:3] == [f"{DATABASE}.repair.kept", "begins", "data"]


@pytest.mark.parametrize("whole_pages", [True, False])
def test_what_a_killed_repair_left_is_in_no_ones_way(data: Path, *, whole_pages: bool) -> None:
    if whole_pages:
        damage(data, "<candidate 60>")
    else:
        (data / DATABASE).write_bytes(b"\0" * PAGE + (data / DATABASE).read_bytes()[PAGE:])
    for end in ("", "-wal", "-shm", "-journal", ".pages", ".pages-journal", ".kept", ".kept-wal"):
        (data / f"{DATABASE}.repair{end}").write_bytes(b"left behind" * 1000)
    done = repair(data / DATABASE, data)
    assert done.damaged_file is not None
    assert not list(data.glob("*.repair*"))
    require_whole(data)


def test_a_log_that_was_deleted_by_a_killed_repair_is_put_back(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Database.embedded(data) as database:
        SqlStore(database).put_device(DEVICE.with_(arch="x86-64-v4"))
        killed = Path(shutil.copytree(data, data.with_name("killed")))
    file = killed / DATABASE
    file.write_bytes(b"\0" * PAGE + file.read_bytes()[PAGE:])

    def killed_here(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", killed_here)
        with pytest.raises(KeyboardInterrupt):
            repair(file, killed)
    assert not (killed / f"{DATABASE}-wal").exists()
    repair(file, killed)
    assert rows(killed, "devices") == 2


def test_all_files_of_a_repair_are_their_owners_alone_from_the_first_moment(data: Path) -> None:
    damage(data, "<candidate 60>")
    (data / DATABASE).chmod(0o644)
    modes: dict[str, set[int]] = {}

    def look(*_: object) -> None:
        for path in data.glob(f"{DATABASE}.*"):
            modes.setdefault(path.name, set()).add(path.stat().st_mode & 0o777)

    sys.addaudithook(lambda event, _: look() if event in ("open", "sqlite3.connect") and looking else None)
    looking = True
    try:
        done = repair(data / DATABASE, data)
    finally:
        looking = False
    look()
    assert {f"{DATABASE}.repair", f"{DATABASE}.repair.kept"} <= set(modes)
    assert {mode for each in modes.values() for mode in each} == {0o600}
    assert done.damaged_file is not None
    assert done.damaged_file.name in modes


def test_a_link_to_a_database_stays_one(data: Path) -> None:
    damage(data, "<candidate 60>")
    elsewhere = data.with_name("disk")
    elsewhere.mkdir()
    (data / DATABASE).rename(elsewhere / "real.db")
    (data / DATABASE).symlink_to(elsewhere / "real.db")
    content = (elsewhere / "real.db").read_bytes()
    damage_marker(data / DATABASE).touch()
    done = repair_if_found_damaged(data)
    assert (data / DATABASE).is_symlink()
    assert not damage_marker(data / DATABASE).exists()
    assert done is not None
    assert done.damaged_file is not None
    assert (done.damaged_file.parent, done.damaged_file.read_bytes()) == (elsewhere, content)
    require_whole(data)
