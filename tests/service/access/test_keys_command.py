"""``tirgemm keys``: what it prints, makes, ends and lists."""

from __future__ import annotations

import getpass
import json
from pathlib import Path

import pytest

from tests.helpers.command_line import Run, own_folders, runner
from tests.service.support import CPU, kernel_record
from tirgemm.errors import StorageFull
from tirgemm.gemm import Gemm
from tirgemm.tuning_db import Database, JobRequest, data_folder
from tirgemm.tuning_db.access.api_keys import KeyTable, secret_hash
from tirgemm.tuning_db.access.audit import AuditEntry, AuditLog


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    own_folders(tmp_path, monkeypatch)
    return runner(capsys, "keys")


def test_the_key_alone_is_on_stdout_and_shown_once(keys: Run, tmp_path: Path) -> None:
    code, out, err = keys(
        "create", "team a", "--scope", "admin", "--expires-days", 90, "--live-jobs", 7, "--data", tmp_path
    )
    assert code == 0, err
    secret = out.strip()
    with Database.embedded(tmp_path) as database:
        (key,) = KeyTable(database).entries()
    assert (key.sha256, key.scope, key.name, key.quotas.live_jobs) == (secret_hash(secret), "admin", "team a", 7)
    assert key.id in err
    assert secret not in err
    for command in (("list",), ("list", "--json"), ("revoke", key.id), ("audit",)):
        code, out, err = keys(*command, "--data", tmp_path)
        assert code == 0, err
        assert secret not in out + err
        assert key.sha256 not in out + err


def test_list_and_revoke_by_prefix(keys: Run, tmp_path: Path) -> None:
    _, out, _ = keys("create", "ci", "--json", "--data", tmp_path)
    made = json.loads(out)
    assert made["key"].startswith(made["prefix"])
    assert (made["scope"], made["expires_at"], made["quotas"]["trials_a_day"]) == ("tune", None, None)
    _, out, _ = keys("list", "--data", tmp_path)
    assert all(word in out for word in (made["id"], made["prefix"], "ci", "tune", "valid", "never"))
    code, out, _ = keys("revoke", made["prefix"], "--data", tmp_path)
    assert (code, "was revoked at" in out) == (0, True)
    _, out, _ = keys("list", "--data", tmp_path)
    assert "was revoked at" in out
    code, _, err = keys("revoke", made["key"], "--data", tmp_path)
    assert (code, made["key"] in err) == (2, False)
    assert "no key has" in err


def test_what_cannot_be_is_exit_code_2(keys: Run, tmp_path: Path) -> None:
    for arguments in (("create", "ci", "--scope", "root"), ("create", "ci", "--live-jobs", 0), ("list",), ("audit",)):
        code, out, err = keys(*arguments, "--data", tmp_path / "nothing" / arguments[0])
        assert (code, out) == (2, ""), arguments
        assert err


def test_a_rate_that_is_too_small_is_refused_with_its_limit(keys: Run, tmp_path: Path) -> None:
    code, out, err = keys("create", "ci", "--requests-per-second", 1e-310, "--data", tmp_path)
    assert (code, out) == (2, "")
    assert "requests_per_second is 1e-310; it must be at least 0.001" in " ".join(err.split())


def test_the_audit_log_is_listed(keys: Run, tmp_path: Path) -> None:
    with Database.embedded(tmp_path) as database:
        AuditLog(database).add(
            [AuditEntry("k1", "POST", "/v1/jobs/1", 202, "::1"), AuditEntry(None, "GET", "*", 401, "10.0.0.9", 42)]
        )
    _, out, _ = keys("audit", "--data", tmp_path)
    assert out.index("10.0.0.9") < out.index("/v1/jobs/1")
    assert "42" in out
    _, out, _ = keys("audit", "--key", "k1", "--json", "--data", tmp_path)
    (entry,) = json.loads(out)["entries"]
    assert (entry["object"], entry["outcome"], entry["count"]) == ("/v1/jobs/1", 202, 1)


def test_what_commands_change_is_in_the_audit_log(
    keys: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = runner(capsys)
    monkeypatch.setattr(getpass, "getuser", lambda: "ada")
    folder = tmp_path / "data"
    made = json.loads(keys("create", "ci", "--scope", "read", "--json", "--data", folder)[1])
    with data_folder.open_store(folder, None) as store:
        kernel = kernel_record(store, JobRequest(Gemm.parse("33x17x19"), CPU)).id
    data_folder.signer(folder)
    records, backup = tmp_path / "records.jsonl", tmp_path / "backup"
    commands = (
        ("keys", "revoke", made["id"]),
        ("kernels", "pin", kernel),
        ("kernels", "unpin", kernel),
        ("db", "export", records),
        ("db", "import", records),
        ("db", "backup", backup),
        ("db", "gc", "--dry-run"),
        ("db", "gc"),
        ("db", "prune", "--older-than", "90d", "--dry-run"),
        ("db", "prune", "--older-than", "90d"),
        ("signing", "rotate"),
        ("kernels", "delete", kernel),
    )
    for command in commands:
        assert run(*command, "--data", folder)[0] == 0, command
    with Database.embedded(folder) as database:
        log = [stored.entry for stored in AuditLog(database).entries()][::-1]
    assert {(entry.key_id, entry.outcome, entry.address) for entry in log} == {(None, 0, "command of ada")}
    changing = [c for c in commands if c[1] not in ("export", "backup") and "--dry-run" not in c]
    assert [entry.action for entry in log] == ["keys create", *(f"{group} {name}" for group, name, *_ in changing)]
    assert log[0].object == f"key {made['id']}, read, ci"
    assert [entry.object for entry in log if entry.action.startswith("kernels")] == [f"/v1/kernels/{kernel}"] * 3
    assert run("db", "restore", backup, "--replace", "--data", folder)[0] == 0
    with Database.embedded(folder) as database:
        newest = AuditLog(database).entries()[0].entry
    assert (newest.action, newest.object) == ("db restore", str(backup))


def test_a_command_whose_entry_cannot_be_written_has_done_its_work_all_the_same(
    keys: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    def full(_log: AuditLog, _entries: object) -> None:
        raise StorageFull("no space is left")

    monkeypatch.setattr(AuditLog, "add", full)
    code, out, _ = keys("create", "ci", "--data", tmp_path)
    assert (code, out.strip()[:8]) == (0, "tirgemm_"), "the secret is told, which nobody would learn later"
    assert "keys create is not in the audit log: no space is left" in caplog.text
    data_folder.signer(tmp_path)
    (tmp_path / "tirgemm.db").write_bytes(b"SQLite format 3\0" + b"damage" * 1000)
    code, out, _ = runner(capsys)("signing", "rotate", "--data", tmp_path)
    assert (code, out.count("ed25519:")) == (0, 2)
    assert "signing rotate is not in the audit log" in caplog.text


def test_what_a_command_did_not_change_is_not_in_the_audit_log(
    keys: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert keys("create", "ci", "--data", tmp_path)[0] == 0
    for command in (("kernels", "pin", "0123456789abcdef"), ("kernels", "delete", "0123456789abcdef")):
        assert runner(capsys)(*command, "--data", tmp_path)[0] == 2
    with Database.embedded(tmp_path) as database:
        assert [stored.entry.action for stored in AuditLog(database).entries()] == ["keys create"]


def test_no_key_is_said_so(keys: Run, tmp_path: Path) -> None:
    Database.embedded(tmp_path).close()
    assert "there is no key" in keys("list", "--data", tmp_path)[1]
