"""Locks: one measurer a device, builders beside each other, nothing left behind by the dead."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.waiting import PATIENCE_S, until
from tirgemm.artifact import Trust
from tirgemm.detect import device
from tirgemm.errors import AlreadyRunning, InvalidRequest
from tirgemm.tuning.build.processes import BuildProcesses
from tirgemm.tuning.measure.measurer import Measurer
from tirgemm.tuning.process import locks
from tirgemm.tuning.process.locks import DeviceLock, FileLock
from tirgemm.tuning.records.memory_store import MemoryStore
from tirgemm.tuning.workbench import Workbench

_HOLD = """
import sys, time
from pathlib import Path
from tirgemm.tuning.process.locks import FileLock
FileLock(Path(sys.argv[1])).acquire()
print("held", flush=True)
time.sleep(60)
"""


def test_a_second_exclusive_holder_is_refused_with_the_first_ones_pid(tmp_path: Path) -> None:
    words = r"a\.lock is held by process \d+; .* within 0\.1 s"
    with FileLock(tmp_path / "a.lock"), pytest.raises(AlreadyRunning, match=words):
        FileLock(tmp_path / "a.lock").acquire(timeout_s=0.1)
    FileLock(tmp_path / "a.lock").acquire(timeout_s=0)


def test_shared_holders_stand_beside_each_other_and_keep_an_exclusive_one_out(tmp_path: Path) -> None:
    first, second = (DeviceLock("cpu", tmp_path, shared=True) for _ in range(2))
    first.acquire(0)
    second.acquire(0)
    exclusive = DeviceLock("cpu", tmp_path)
    with pytest.raises(AlreadyRunning):
        exclusive.acquire(timeout_s=0.05)
    first.release()
    second.release()
    exclusive.acquire(timeout_s=0)
    with pytest.raises(AlreadyRunning):
        first.acquire(timeout_s=0.05)


def test_a_measurer_that_waits_is_served_before_builders_that_come_later(tmp_path: Path) -> None:
    builder, late = (DeviceLock("cpu", tmp_path, shared=True) for _ in range(2))
    builder.acquire()
    measurer = DeviceLock("cpu", tmp_path)
    thread = threading.Thread(target=measurer.acquire, daemon=True)
    thread.start()
    until(lambda: is_refused(late))
    builder.release()
    thread.join(timeout=PATIENCE_S)
    assert is_refused(DeviceLock("cpu", tmp_path))


def is_refused(lock: DeviceLock) -> bool:
    try:
        lock.acquire(timeout_s=0)
    except AlreadyRunning:
        return True
    lock.release()
    return False


@pytest.mark.parametrize(
    ("held_shared", "reason"), [(False, "another process measures on it, pid"), (True, "kernels are being built on it")]
)
def test_a_wait_is_told_with_who_is_waited_for_and_its_end(tmp_path: Path, held_shared: bool, reason: str) -> None:
    told: queue.SimpleQueue[str] = queue.SimpleQueue()
    with DeviceLock("cpu", tmp_path, shared=held_shared):
        waiter = DeviceLock("cpu", tmp_path, on_wait=told.put)
        thread = threading.Thread(target=waiter.acquire)
        thread.start()
        assert told.get(timeout=PATIENCE_S).startswith(reason)
    thread.join(PATIENCE_S)
    assert is_refused(DeviceLock("cpu", tmp_path))
    assert told.get(timeout=0) == ""
    assert told.empty()


def test_a_lock_that_is_free_is_taken_without_a_word(tmp_path: Path) -> None:
    told: list[str] = []
    for shared in (False, True):
        with DeviceLock("cpu", tmp_path, shared=shared, on_wait=told.append):
            pass
    assert told == []


@pytest.mark.parametrize("written", [b"\x1b[2Jgone", b"999999999\n", b"", b"-1", b"7" * 60, b"\xff\xfe"])
def test_what_anybody_wrote_into_a_lock_file_is_not_told(tmp_path: Path, written: bytes) -> None:
    with FileLock(tmp_path / "a.lock"):
        (tmp_path / "a.lock").write_bytes(written)
        with pytest.raises(AlreadyRunning) as caught:
            FileLock(tmp_path / "a.lock").acquire(timeout_s=0)
    said = str(caught.value)
    assert f"held by process {os.getpid()};" in said or "held by process unknown;" in said


def test_a_lock_that_another_user_holds_is_told_with_the_program_and_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel says who: that process need not have written anything."""
    path, proc = tmp_path / "cpu.lock", tmp_path / "proc"
    path.write_text("4711\n")
    inode = path.stat().st_ino
    for pid, program in (("77", "sleep\x1b[2J\n"), ("4711", "python\n")):
        (proc / pid).mkdir(parents=True)
        (proc / pid / "comm").write_text(program)
    monkeypatch.setattr(locks, "_LOCKS", proc / "locks")
    assert locks.lock_holder(path) == "4711", "the kernel does not say"
    (proc / "locks").write_text(
        f"1: POSIX  ADVISORY  WRITE 4711 08:01:{inode} 0 EOF\n"
        f"2: FLOCK  ADVISORY  WRITE 77 08:01:{inode} 0 EOF\n"
        f"2: -> FLOCK  ADVISORY  WRITE 4711 08:01:{inode} 0 EOF\n"
    )
    assert locks.lock_holder(path) == "77"
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert locks.lock_holder(path) == f"77 ('sleep\\x1b[2J' of user {os.getuid()})"
    assert locks.lock_holder(tmp_path / "absent") == "unknown"


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    path = tmp_path / "c.lock"
    with subprocess.Popen([sys.executable, "-c", _HOLD, str(path)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(AlreadyRunning, match=f"process {holder.pid}"):
            FileLock(path).acquire(timeout_s=0)
        holder.kill()
    FileLock(path).acquire(timeout_s=PATIENCE_S)


def test_lock_files_are_made_for_every_user_and_never_through_a_link(tmp_path: Path) -> None:
    folder = tmp_path / "locks"
    with DeviceLock("GPU-0b1c", folder):
        assert folder.stat().st_mode & 0o7777 == 0o1777
        assert (folder / "GPU-0b1c.lock").stat().st_mode & 0o777 == 0o666
    (folder / "cpu.gate").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        DeviceLock("cpu", folder).acquire()
    assert not (tmp_path / "elsewhere").exists()
    with pytest.raises(InvalidRequest):
        DeviceLock("../cpu", folder)


def test_a_folder_that_cannot_be_used_is_refused_by_name_before_a_process_starts(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    folder = tmp_path / "file" / "locks"  # which not even root can make
    refusal = rf"lock folder {folder} cannot be used: cpu\.gate: Not a directory; .*--lock-dir or TIRGEMM_LOCK_DIR"
    with pytest.raises(InvalidRequest, match=refusal):
        BuildProcesses(1, cpu_lock="cpu", lock_dir=folder)
    with pytest.raises(InvalidRequest, match=refusal):
        Measurer(device("cpu"), Trust.of(), lock_dir=folder)
    with pytest.raises(InvalidRequest, match=refusal):
        Workbench(device("cpu"), MemoryStore(), lock_dir=folder)
