"""Blobs: whole or not at all, whatever the disk does."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tirgemm.errors import StorageFull, StoreError
from tirgemm.tuning_db.blobs import BlobStore


@pytest.fixture
def blobs(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "blobs")


def place(blobs: BlobStore, sha256: str) -> Path:
    return blobs.folder / sha256[:2] / sha256[2:4] / sha256


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_a_blob_lies_under_its_hash_in_two_folders(blobs: BlobStore) -> None:
    sha256 = blobs.put(b"some bytes")
    assert sha256 == hashlib.sha256(b"some bytes").hexdigest()
    assert files(blobs.folder) == [place(blobs, sha256)]
    assert blobs.has(sha256)
    assert not blobs.has("0" * 64)
    assert [(blob.sha256, blob.nbytes) for blob in blobs.list()] == [(sha256, 10)]


@pytest.mark.parametrize("damage", [b"", b"some bytez", b"some bytes and more"])
def test_a_blob_damaged_on_disk_is_an_error_and_putting_it_again_mends_it(blobs: BlobStore, damage: bytes) -> None:
    sha256 = blobs.put(b"some bytes")
    place(blobs, sha256).write_bytes(damage)
    with pytest.raises(StoreError, match=f"{sha256}.*damaged"):
        blobs.get(sha256)
    assert blobs.put(b"some bytes") == sha256
    assert blobs.get(sha256) == b"some bytes"


def test_a_blob_that_vanished_is_an_error(blobs: BlobStore) -> None:
    sha256 = blobs.put(b"some bytes")
    blobs.delete(sha256)
    blobs.delete(sha256)
    with pytest.raises(StoreError, match="not stored"):
        blobs.get(sha256)


def test_an_old_blob_that_is_put_again_counts_as_new(blobs: BlobStore) -> None:
    sha256 = blobs.put(b"some bytes")
    os.utime(place(blobs, sha256), (1_000_000_000, 1_000_000_000))
    blobs.put(b"some bytes")
    assert datetime.now(UTC) - next(blobs.list()).at < timedelta(minutes=1)


def test_threads_that_put_the_same_bytes_agree(blobs: BlobStore) -> None:
    data, names = bytes(range(251)) * 4001, []
    threads = [threading.Thread(target=lambda: names.append(blobs.put(data))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(names) == 8
    assert blobs.get(names[0]) == data
    assert len(files(blobs.folder)) == 1


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    mounted = subprocess.run(command, capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip(f"a file system of 256 KiB cannot be mounted here: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_is_said_and_leaves_nothing_behind(tiny_disk: Path) -> None:
    blobs = BlobStore(tiny_disk / "blobs")
    kept = blobs.put(b"k" * 50_001)
    for _ in range(2):
        with pytest.raises(StorageFull, match=r"300007 bytes.*no space"):
            blobs.put(b"x" * 300_007)
    assert files(blobs.folder) == [place(blobs, kept)]
    assert blobs.get(kept) == b"k" * 50_001
    blobs.put(b"s" * 90_001)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_told_from_other_errors(blobs: BlobStore, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def full(*_paths: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(StorageFull):
        blobs.put(b"x")
    assert files(blobs.folder) == []
    monkeypatch.undo()
    sha256 = hashlib.sha256(b"x").hexdigest()
    shutil.rmtree(blobs.folder / sha256[:2])
    (blobs.folder / sha256[:2]).write_text("a file where a folder should be")
    with pytest.raises(StoreError, match="cannot be written") as caught:
        blobs.put(b"x")
    assert not isinstance(caught.value, StorageFull)


def test_what_a_killed_writer_left_is_no_blob_and_is_swept(blobs: BlobStore) -> None:
    sha256 = blobs.put(b"some bytes")
    left = place(blobs, sha256).with_name(f"{sha256}#1")
    left.write_bytes(b"some by")
    (blobs.folder / "README").write_text("not ours")
    assert [blob.sha256 for blob in blobs.list()] == [sha256]
    assert blobs.sweep(older_than_s=60) == 0
    assert blobs.sweep(older_than_s=-1) == 1
    assert not left.exists()
    assert blobs.get(sha256) == b"some bytes"


def test_a_blob_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "blobs").write_text("I am a file")
    with pytest.raises(StoreError, match="blob folder"):
        BlobStore(tmp_path / "blobs")
