"""Backups while a database is written to, their restoration, and the commands of both and of pruning."""

from __future__ import annotations

import json
import resource
import shutil
import sqlite3
import stat
import threading
from contextlib import closing
from pathlib import Path

import pytest

from tests.contract.storage.databases import candidate, config, kernel, read_only
from tests.helpers.command_line import own_folders, runner
from tirgemm._user_folders import SIGNING_KEY
from tirgemm.artifact import Signer
from tirgemm.artifact.signing_keys import LIST_FILE, SigningKeys
from tirgemm.errors import InvalidRequest, SchemaTooNew, StorageFull, StoreError, StoreUnavailable
from tirgemm.tuning_db import Database, SqlStore
from tirgemm.tuning_db.access.api_keys import KeyTable
from tirgemm.tuning_db.blobs import BlobStore
from tirgemm.tuning_db.upkeep.admin import check
from tirgemm.tuning_db.upkeep.backup import backup, restore


def filled(folder: Path) -> str:
    """A data folder with a key, a candidate and a kernel; the artifact's hash."""
    Signer.load_or_create(folder / SIGNING_KEY)
    with Database.embedded(folder) as database:
        store = SqlStore(database)
        store.add_candidate(candidate(1))
        sha256 = store.put_blob(b"artifact")
        store.put_kernel(kernel(artifact_sha256=sha256, artifact_bytes=8))
        store.put_blob(b"nobody's")
    return sha256


@pytest.mark.parametrize("there", [False, True])
def test_a_backup_that_does_not_fit_is_told_of_its_own_folder_and_leaves_nothing(tmp_path: Path, there: bool) -> None:
    filled(tmp_path / "data")
    folder, limit = tmp_path / "backup", resource.getrlimit(resource.RLIMIT_FSIZE)
    if there:
        folder.mkdir()
    with Database.embedded(tmp_path / "data") as database:
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limit[1]))
            with pytest.raises(StoreError, match=f"^database {folder / 'tirgemm.db'} "):
                backup(database, folder)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        assert (folder.exists(), [*tmp_path.glob("backup/*")]) == (there, [])
        assert backup(database, folder).database


def test_a_backup_whose_blobs_or_list_cannot_be_written_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path / "data")
    with Database.embedded(tmp_path / "data") as database:
        with monkeypatch.context() as full:
            full.setattr(BlobStore, "put", lambda *_: (_ for _ in ()).throw(StorageFull("no space is left")))
            with pytest.raises(StorageFull):
                backup(database, tmp_path / "backup")
        assert not (tmp_path / "backup").exists()
        with monkeypatch.context() as full:
            full.setattr(Path, "write_bytes", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
            with pytest.raises(InvalidRequest, match=r"backup/backup\.json cannot be written: No space left"):
                backup(database, tmp_path / "backup")
        assert not (tmp_path / "backup").exists()


def test_a_backup_holds_one_state_although_somebody_writes(tmp_path: Path) -> None:
    filled(tmp_path / "data")
    stop = threading.Event()

    def write() -> None:
        with Database.embedded(tmp_path / "data") as other:
            store, number = SqlStore(other), 2
            while not stop.is_set():
                store.add_candidate(candidate(number, config=config(number)))
                number += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        with Database.embedded(tmp_path / "data") as database:
            for number in range(3):
                made = backup(database, tmp_path / f"backup{number}")
                assert (made.database, made.blobs, made.missing) == (True, 1, ())
    finally:
        stop.set()
        writer.join()
    counts = []
    for number in range(3):
        restored = restore(tmp_path / f"backup{number}", tmp_path / f"restored{number}")
        assert (restored.blobs, restored.signing_key) == (1, False)
        with Database.embedded(tmp_path / f"restored{number}") as database:
            assert check(database) == []
            counts.append(len(SqlStore(database).history(candidate(1).device_key, "sustained")))
    assert counts == sorted(counts)
    assert counts[0] >= 1


def test_a_folder_on_a_read_only_disk_is_backed_up_and_a_backup_on_one_is_restored(tmp_path: Path) -> None:
    data, copy = tmp_path / "data", tmp_path / "backup"
    sha256 = filled(data)
    with read_only(data), Database.embedded(data, to_read=True) as database:
        assert backup(database, copy, with_key=True).blobs == 1
    with read_only(copy):
        assert restore(copy, tmp_path / "new").signing_key
    with Database.embedded(tmp_path / "new") as database:
        assert database.blobs.get(sha256) == b"artifact"
        assert len(SqlStore(database).candidates(candidate(1).gemm, candidate(1).device_key, "sustained")) == 1


def test_a_lost_artifact_is_told_and_the_rest_is_backed_up(tmp_path: Path) -> None:
    sha256 = filled(tmp_path / "data")
    with Database.embedded(tmp_path / "data") as database:
        database.blobs.delete(sha256)
        made = backup(database, tmp_path / "backup", with_key=True)
    assert (made.missing, made.blobs, made.signing_key) == ((sha256,), 0, True)
    key = tmp_path / "backup" / SIGNING_KEY
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert restore(tmp_path / "backup", tmp_path / "restored").signing_key
    assert (tmp_path / "restored" / SIGNING_KEY).read_bytes() == (tmp_path / "data" / SIGNING_KEY).read_bytes()


@pytest.mark.parametrize("blobs_only", [False, True])
def test_damaged_and_missing_artifacts_of_a_backup_cost_nothing_else(tmp_path: Path, blobs_only: bool) -> None:
    filled(tmp_path / "data")
    with Database.embedded(tmp_path / "data") as database:
        store = SqlStore(database)
        damaged, missing = store.put_blob(b"damaged"), store.put_blob(b"missing")
        for sha256 in (damaged, missing):
            store.put_kernel(kernel(artifact_sha256=sha256, artifact_bytes=7))
        assert backup(database, tmp_path / "backup", blobs_only=blobs_only).blobs == 3
    kept = BlobStore(tmp_path / "backup" / "blobs")
    kept.checked(damaged).write_bytes(b"damagEd")
    kept.delete(missing)
    restored = restore(tmp_path / "backup", tmp_path / "restored")
    assert (restored.blobs, restored.lost) == (1, 2)
    if not blobs_only:
        with Database.embedded(tmp_path / "restored") as database:
            assert len(SqlStore(database).kernels()) == 3
            assert len(check(database)) == 2, "each of them is told"


def test_a_backup_whose_artifacts_may_not_be_read_is_refused_before_anything_is_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path / "data")
    with Database.embedded(tmp_path / "data") as database:
        backup(database, tmp_path / "backup")

    def refused(_self: object, _sha256: str) -> bytes:
        raise StoreUnavailable("blob cannot be read: Permission denied")

    monkeypatch.setattr(BlobStore, "get", refused)
    with pytest.raises(StoreUnavailable):
        restore(tmp_path / "backup", tmp_path / "restored")
    assert not (tmp_path / "restored").exists()


def test_former_keys_and_what_is_revoked_go_with_the_key(tmp_path: Path) -> None:
    filled(tmp_path / "data")
    keys = SigningKeys(tmp_path / "data")
    keys.rotate()
    keys.revoke("0" * 64, "wrong")
    with Database.embedded(tmp_path / "data") as database:
        backup(database, tmp_path / "backup", with_key=True)
        backup(database, tmp_path / "open")
    restore(tmp_path / "backup", tmp_path / "restored")
    restored = SigningKeys(tmp_path / "restored")
    assert (restored.public, restored.listed) == (keys.public, keys.listed)
    assert not list((tmp_path / "open").glob("signing*"))
    assert not (tmp_path / "open" / "revocations.json").exists()


def test_keys_are_restored_beside_what_an_earlier_service_left(tmp_path: Path) -> None:
    filled(tmp_path / "data")
    keys = SigningKeys(tmp_path / "data")
    keys.rotate()
    with Database.embedded(tmp_path / "data") as database:
        backup(database, tmp_path / "backup", with_key=True)
    keys.revoke("0" * 64, "since the backup")

    def restored(name: str, *left: Path) -> SigningKeys:
        folder = tmp_path / name
        folder.mkdir()
        for path in left:
            shutil.copy(path, folder)
        restore(tmp_path / "backup", folder)
        return SigningKeys(folder)

    newer = tmp_path / "data" / LIST_FILE
    same = restored("same", newer, tmp_path / "data" / f"{SIGNING_KEY}.1")
    assert (same.public, same.listed) == (keys.public, keys.listed), "what was revoked since stays revoked"

    older = restored("older", tmp_path / "backup" / LIST_FILE)
    assert older.listed is not None
    assert not older.listed.revoked

    foreign = SigningKeys(tmp_path / "foreign")
    foreign.rotate()
    another = restored("another", tmp_path / "foreign" / LIST_FILE, tmp_path / "foreign" / f"{SIGNING_KEY}.1")
    assert another.listed == older.listed
    assert set(another.public) == {*keys.public, foreign.former[0].public}, "no private key is lost"
    kept = tmp_path / "another" / f"{LIST_FILE}.replaced"
    assert kept.read_bytes() == (tmp_path / "foreign" / LIST_FILE).read_bytes()


def test_nothing_is_overwritten_unless_that_is_said(tmp_path: Path) -> None:
    filled(tmp_path / "data")
    Database.embedded(tmp_path / "there").close()
    with Database.embedded(tmp_path / "data") as database:
        backup(database, tmp_path / "backup")
        with pytest.raises(InvalidRequest, match="new folder"):
            backup(database, tmp_path / "backup")
    with pytest.raises(InvalidRequest, match="--replace to lose it"):
        restore(tmp_path / "backup", tmp_path / "there")
    with Database.embedded(tmp_path / "there") as open_elsewhere:
        store = SqlStore(open_elsewhere)
        assert store.kernels() == []
        restore(tmp_path / "backup", tmp_path / "there", replace=True)
        assert len(store.kernels()) == 1, "an open connection sees the restored state"


def test_what_is_no_whole_backup_is_refused_and_nothing_is_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path / "data")
    target = tmp_path / "restored"

    def broken_off(_self: object, _data: bytes) -> str:
        raise StoreError("no space")

    with Database.embedded(tmp_path / "data") as database:
        with monkeypatch.context() as patched:
            patched.setattr(BlobStore, "put", broken_off)
            with pytest.raises(StoreError):
                backup(database, tmp_path / "half")
        backup(database, tmp_path / "backup")
    for folder in (tmp_path / "half", tmp_path / "nothing", tmp_path / "data"):
        with pytest.raises(InvalidRequest, match="no whole backup"):
            restore(folder, target)
    with pytest.raises(InvalidRequest, match=r"database: backup\.json cannot be read: No such file or directory$"):
        restore(tmp_path / "nothing", target)
    file = tmp_path / "backup" / "tirgemm.db"
    whole = file.read_bytes()
    # Rows that are lost, which only a check sees, and a page that cannot be read at all.
    for junk in (b"\0" * 4088, b"\xff" * 4088):
        data = bytearray(whole)
        data[4096 * 5 + 8 : 4096 * 6] = junk
        file.write_bytes(bytes(data))
        with pytest.raises(StoreError, match="damaged"):
            restore(tmp_path / "backup", target)
        assert not target.exists()


@pytest.mark.parametrize(
    "document",
    [
        '{"format": 1}',
        '{"format": 1, "database": "yes"}',
        '{"format": 1, "database": false, "blobs": "1"}',
        '{"format": 2, "database": true}',
        "[" * 100_000,
    ],
)
def test_a_manifest_that_is_none_is_refused(document: str, tmp_path: Path) -> None:
    (tmp_path / "backup.json").write_text(document)
    with pytest.raises(InvalidRequest, match="no whole backup"):
        restore(tmp_path, tmp_path / "restored")


def test_a_database_is_not_lost_to_one_that_cannot_be_opened(tmp_path: Path) -> None:
    filled(tmp_path / "data")
    with Database.embedded(tmp_path / "data") as database:
        backup(database, tmp_path / "backup")
    file = tmp_path / "backup" / "tirgemm.db"
    with closing(sqlite3.connect(file)) as newer, newer:
        newer.execute("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(SchemaTooNew, match="'9999'"):
        restore(tmp_path / "backup", tmp_path / "data", replace=True)
    file.unlink()
    with closing(sqlite3.connect(file)) as foreign, foreign:
        foreign.execute("CREATE TABLE another (program TEXT)")
    with pytest.raises(StoreError, match="is no tuning database"):
        restore(tmp_path / "backup", tmp_path / "data", replace=True)
    with Database.embedded(tmp_path / "data") as database:
        assert len(SqlStore(database).kernels()) == 1


@pytest.mark.parametrize("damage", [slice(0, 4096), slice(4096 * 4, None)], ids=["header", "cut off"])
def test_a_damaged_database_is_replaced(damage: slice, tmp_path: Path) -> None:
    filled(tmp_path / "data")
    with Database.embedded(tmp_path / "data") as database:
        backup(database, tmp_path / "backup")
    file = tmp_path / "data" / "tirgemm.db"
    data = bytearray(file.read_bytes())
    data[damage] = b"\xff" * 4096 if damage.stop else b""
    file.write_bytes(data)
    restore(tmp_path / "backup", tmp_path / "data", replace=True)
    with Database.embedded(tmp_path / "data") as database:
        assert check(database) == []
        assert len(SqlStore(database).kernels()) == 1
    assert not list((tmp_path / "data").glob("*.restored*"))


def test_api_keys_that_are_valid_again_or_off_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own_folders(tmp_path, monkeypatch)
    call = runner(capsys, "db")
    folder = tmp_path / "data" / "tirgemm"
    with Database.embedded(folder) as database:
        backup(database, tmp_path / "without")
        keys = KeyTable(database)
        leaked, used, gone = (keys.create(name, "tune")[0] for name in ("leaked", "used", "gone"))
        keys.revoke(gone.id)
        backup(database, tmp_path / "with")
        keys.revoke(leaked.id)
    code, out, err = call("restore", "with", "--replace")
    assert (code, out) == (0, f"{folder}: 0 blobs are back\n")
    expected = f"was revoked here and is valid again; end it with `tirgemm keys revoke {leaked.id}`"
    assert err == f"API key {leaked.id} {expected}\n", "one is still revoked, and one was not"
    assert call("restore", "with", "--replace")[2] == ""
    code, out, err = call("restore", "without", "--replace")
    assert (code, err.startswith("the backup has no API key, and the database that was here had:")) == (0, True)
    code, out, _ = call("restore", "with", "--replace", "--json")
    told = json.loads(out)
    assert (told["valid_again"], told["keys_off"], used.id in out) == ([], False, False)
    (folder / "tirgemm.db").write_bytes(b"no database" * 1000)
    assert call("restore", "without", "--replace")[2] == ""


def test_a_key_that_is_not_there_is_told_before_anything_is_written(tmp_path: Path) -> None:
    with Database.embedded(tmp_path / "data") as database, pytest.raises(InvalidRequest, match="no signing key"):
        backup(database, tmp_path / "backup", with_key=True)
    assert not (tmp_path / "backup").exists()


def test_the_commands_back_up_restore_and_prune(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own_folders(tmp_path, monkeypatch)
    filled(tmp_path / "data" / "tirgemm")
    call = runner(capsys, "db")
    code, out, _ = call("backup", "saved", "--json")
    assert (code, json.loads(out)["blobs"]) == (0, 1)
    assert call("restore", "saved", "--data", "other") == (0, f"{tmp_path}/other: 1 blobs are back\n", "")
    (blob,) = (path for path in (tmp_path / "saved" / "blobs").rglob("*") if path.is_file())
    blob.write_bytes(b"damaged")
    code, out, err = call("restore", "saved", "--data", "another")
    assert (code, out) == (0, f"{tmp_path}/another: 0 blobs are back\n")
    assert err.startswith("1 artifacts of the backup are damaged or gone;")
    code, _, err = call("restore", "saved", "--data", "other")
    assert (code, "--replace" in err) == (2, True)
    code, _, err = call("restore", "saved", "--data", "new", "--db", "sqlite:////x.db")
    assert (code, "leave out --db" in err) == (2, True)
    with (tmp_path / "other" / "server.lock").open("w") as held:
        import fcntl

        fcntl.flock(held, fcntl.LOCK_EX)
        code, _, err = call("restore", "saved", "--data", "other", "--replace")
        assert (code, "in use" in err) == (1, True)
    code, out, _ = call("prune", "--older-than", "90d", "--keep-best", 3, "--dry-run")
    words = (
        "0 kernels, 0 audit entries, 0 batches, 0 events of jobs and 0 blobs of no kernel (0 bytes) would be deleted\n"
    )
    assert (code, out) == (0, words)
    code, _, err = call("prune", "--older-than", "a while")
    assert (code, "as 90d" in err) == (2, True)
    for age in ("999999999999999d", "1" + "0" * 9, "9" * 5000):
        code, _, err = call("prune", "--older-than", age)
        assert (code, f"the age is {age!r:.40}; its number must be at most 999999999" in err) == (2, True)
    for age in ("0999999999d", "0" * 5000 + "1d"):
        assert call("prune", "--older-than", age, "--dry-run")[:2] == (0, words)
