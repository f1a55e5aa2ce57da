"""``tirgemm signing`` beside another command that changes the keys, and after one that was killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.command_line import runner
from tests.waiting import PATIENCE_S
from tirgemm import _extras
from tirgemm._user_folders import KEYS_LOCK
from tirgemm.artifact import private_file
from tirgemm.artifact.signing_keys import SigningKeys
from tirgemm.service.commands import signing
from tirgemm.service.jobs.data_lock import ProcessLock
from tirgemm.tuning.process.locks import FileLock
from tirgemm.tuning_db import Database
from verification.service.processes import command


@pytest.mark.parametrize("second", ["revoke", "rotate"])
def test_a_command_that_changes_the_keys_waits_for_the_one_before_and_loses_nothing_of_it(
    tmp_path: Path, second: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, theirs, asks = "a" * 64, "b" * 64, threading.Event()
    keys, acquire = SigningKeys(tmp_path), FileLock.acquire

    def asked(lock: FileLock, **options: Any) -> None:
        asks.set()
        acquire(lock, **options)

    def run() -> None:
        try:
            if second == "revoke":
                signing.revoke(theirs, data=tmp_path, as_json=True)
            else:
                signing.rotate(tmp_path, as_json=True)
        finally:
            asks.set()

    with ProcessLock(tmp_path / KEYS_LOCK, "the list of keys"):
        monkeypatch.setattr(FileLock, "acquire", asked)
        other = threading.Thread(target=run)
        other.start()
        assert asks.wait(PATIENCE_S)
        keys.revoke(mine)
    other.join(PATIENCE_S)
    changed = SigningKeys(tmp_path)
    assert changed.listed is not None
    assert set(changed.listed.revoked) == {mine, *([theirs] if second == "revoke" else [])}
    assert len(changed.public) == (1 if second == "revoke" else 2)


def test_a_change_of_the_keys_gives_up_where_another_one_does_not_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    SigningKeys(tmp_path)
    monkeypatch.setattr(signing, "CHANGE_SECONDS", 0.0)
    with ProcessLock(tmp_path / KEYS_LOCK, "the list of keys"):
        code, _, err = runner(capsys, "signing")("revoke", "a" * 64, "--data", tmp_path)
    assert (code, "is in use by process" in err) == (1, True)
    assert SigningKeys(tmp_path).listed is None


@pytest.mark.parametrize("change", [("rotate",), ("revoke", "a" * 64)], ids=lambda change: change[0])
def test_nothing_is_changed_where_the_audit_log_cannot_be_written(
    change: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before, run = SigningKeys(tmp_path).public, runner(capsys, "signing")
    Database.embedded(tmp_path).close()
    monkeypatch.setitem(_extras.PACKAGES, "tune", ("absent",))
    code, out, err = run(*change, "--data", tmp_path)
    assert (code, out, "needs the extra tune" in err) == (2, "", True)
    assert run("list", "--data", tmp_path)[0] == 0
    keys = SigningKeys(tmp_path)
    assert (keys.public, keys.listed) == (before, None)


def test_a_folder_without_a_database_needs_nothing_of_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    keys, run = SigningKeys(tmp_path).public, runner(capsys, "signing")
    monkeypatch.setitem(sys.modules, "tirgemm.tuning_db.access.audit", None)
    code, out, err = run("rotate", "--data", tmp_path, "--json")
    assert (code, json.loads(out)["keys"][1:], err) == (0, list(keys), "")


def test_a_key_that_was_revoked_before_its_rotation_was_done_signs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = SigningKeys(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(private_file, "create", lambda *_: sys.exit("killed before the old key was kept"))
        with pytest.raises(SystemExit):
            keys.rotate()
    assert keys.listed is not None
    waiting, current = keys.listed.keys
    keys = SigningKeys(tmp_path)
    keys.revoke(waiting)
    keys.rotate()
    fresh, *former = keys.public
    assert (fresh != waiting, former) == (True, [current])


def test_a_draft_of_a_key_that_a_kill_left_is_deleted_once_nobody_can_be_writing_it(tmp_path: Path) -> None:
    kill = "os.replace = os.link = lambda *paths: os.kill(os.getpid(), signal.SIGKILL)"
    code = f"import os, signal\n{kill}\nfrom pathlib import Path\nfrom tirgemm.artifact import private_file\n"
    for name in ("signing.key", "signing.key.next", "revocations.json"):
        write = f"private_file.replace(Path({str(tmp_path / name)!r}), b'secret')"
        assert subprocess.run([sys.executable, "-c", code + write], check=False).returncode == -signal.SIGKILL
    (tmp_path / ".signing.key.bak").write_bytes(b"not a draft")
    drafts = sorted(path for path in tmp_path.iterdir() if path.name != ".signing.key.bak")
    assert [path.read_bytes() for path in drafts] == [b"secret"] * 3
    keys = SigningKeys(tmp_path)
    assert all(path.exists() for path in drafts), "somebody may be writing them"
    for path in (*drafts, tmp_path / ".signing.key.bak"):
        os.utime(path, (0, time.time() - private_file.ABANDONED_S - 1))
    keys.revoke("a" * 64)
    SigningKeys(tmp_path)
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == [".signing.key.bak", "revocations.json", "signing.key"]


def test_a_worker_ends_when_the_key_that_it_signs_with_is_replaced(tmp_path: Path) -> None:
    Database.embedded(tmp_path).close()
    options = ["--data", str(tmp_path), "--lock-dir", str(tmp_path / "locks"), "--devices", "cpu", "--processes", "1"]
    with subprocess.Popen(
        command("worker", *options, "--json"), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as worker:
        assert worker.stdout is not None
        assert b"worker" in worker.stdout.readline()
        SigningKeys(tmp_path).rotate()
        try:
            _, said = worker.communicate(timeout=PATIENCE_S)
        finally:
            worker.kill()
    assert worker.returncode == 2
    told = json.loads(said.splitlines()[-1])
    expected = f"{tmp_path / 'signing.key'} is another key than this worker signs with; start it again"
    assert told == {"error": "invalid_request", "detail": expected}
