"""``serve`` and ``worker`` as processes: one a folder, one a machine, and no one left behind."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
import typer
from typer.testing import CliRunner

from tests.helpers.command_line import runner
from tests.waiting import PATIENCE_S, until
from tirgemm._user_folders import user_data
from tirgemm.service import log_lines
from tirgemm.service.commands.serve import serve
from tirgemm.service.settings import Settings
from tirgemm.tuning_db import Database
from verification.service.processes import Serve, alive, command, descendants


def refused(*arguments: str) -> str:
    """What a command says that must end with exit code 2."""
    ended = subprocess.run(command(*arguments), capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert ended.returncode == 2, ended.stderr
    assert "Traceback" not in ended.stderr
    return ended.stderr


@pytest.fixture
def refused_here(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """As ``refused``, in this process, whose log stays as it is: a command of its own imports for a second."""
    monkeypatch.setattr(log_lines, "log_to_stderr", lambda **_: None)
    run = runner(capsys)

    def call(*arguments: object) -> str:
        code, _, words = run(*arguments)
        assert code == 2, words
        return words

    return call


def test_a_second_server_on_the_folder_is_refused_and_the_first_goes_on(
    tmp_path: Path, refused_here: Callable[..., str]
) -> None:
    with Serve(tmp_path, "--no-worker") as first:
        words = refused("serve", "--data", str(tmp_path), "--port", "0", "--no-worker")
        assert f"in use by process {first.process.pid}" in words
        as_json = refused_here("serve", "--data", tmp_path, "--port", "0", "--no-worker", "--json")
        assert json.loads(as_json.splitlines()[-1])["error"] == "already_running"
        assert httpx.get(f"{first.url}/healthz", timeout=PATIENCE_S).status_code == 200
        assert json.loads((tmp_path / "server.json").read_text())["url"] == first.url
        other = tmp_path / "other"
        port = first.url.rsplit(":", 1)[1]
        words = refused_here("serve", "--data", other, "--port", port, "--no-worker")
        assert "is in use by another process" in words
    assert first.process.returncode == 0
    assert not (tmp_path / "server.json").exists()


def test_a_terminal_that_is_closed_ends_a_server_in_good_order_unless_that_is_ignored(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # these tests may run under nohup
    try:
        with Serve(tmp_path, "--no-worker") as server:
            server.process.send_signal(signal.SIGHUP)
            assert server.process.wait(PATIENCE_S) == 0
            assert not (tmp_path / "server.json").exists()
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        with Serve(tmp_path, "--no-worker") as server:  # as of nohup
            server.process.send_signal(signal.SIGHUP)
            assert httpx.get(f"{server.url}/healthz", timeout=PATIENCE_S).status_code == 200
            assert server.process.poll() is None
    finally:
        signal.signal(signal.SIGHUP, before)


def test_settings_come_from_variables_and_options_win(
    tmp_path: Path, refused_here: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = {"TIRGEMM_DATA": str(tmp_path / "from variable"), "TIRGEMM_PORT": "1", "TIRGEMM_WORKER": "false"}
    with Serve(tmp_path / "from option", environment=variables) as server:
        assert (tmp_path / "from option" / "signing.key").exists()
        assert not (tmp_path / "from variable").exists()
        assert httpx.get(f"{server.url}/readyz", timeout=PATIENCE_S).status_code == 503
    monkeypatch.setenv("TIRGEMM_DATA", str(tmp_path))
    monkeypatch.setenv("TIRGEMM_PORT", "http")
    assert "TIRGEMM_PORT" in refused_here("serve", "--no-worker")


def test_an_empty_variable_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("DATA", "LOCK_DIR", "PORT", "PROCESSES", "HOST", "ALIVE_FILE"):
        monkeypatch.setenv(f"TIRGEMM_{name}", "")
    settings = Settings.load()
    assert settings.data == user_data().resolve() != tmp_path
    assert (settings.lock_dir, settings.port, settings.processes, settings.host) == (None, 8000, None, "127.0.0.1")
    assert settings.alive_file is None


def test_a_database_of_a_newer_schema_is_refused_and_not_touched(
    tmp_path: Path, refused_here: Callable[..., str]
) -> None:
    with Serve(tmp_path, "--no-worker"):
        pass
    (file,) = tmp_path.glob("*.db")
    with sqlite3.connect(file) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.close()
    for name in ("serve", "worker"):
        words = refused_here(name, "--data", tmp_path, *(("--port", "0") if name == "serve" else ()))
        assert "newer" in words
    with sqlite3.connect(file) as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchone() == ("9999",)
    connection.close()


def test_a_worker_joins_a_service_that_is_there_and_makes_none(
    tmp_path: Path, refused_here: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    typo, there = tmp_path / "typo", tmp_path / "there"
    there.mkdir()
    words = refused_here("worker", "--data", typo, "--lock-dir", tmp_path / "locks")
    assert f"{typo} holds no tuning database" in words
    assert f"start that first, with `tirgemm serve --data {typo}`" in words
    as_json = refused_here("worker", "--data", there, "--lock-dir", tmp_path / "locks", "--json")
    assert json.loads(as_json)["error"] == "invalid_request"
    url = f"sqlite:///{typo}/x.db"
    assert "no database file" in refused_here("worker", "--data", there, "--db", url)
    monkeypatch.setenv("TIRGEMM_DB", url)
    assert "no data folder" in refused_here("worker", "--data", typo)
    assert list(tmp_path.iterdir()) == [there], "nothing was made, no lock either"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--host", "no.such.host.invalid", "--insecure"], "no address"),
        (["--port", "70000"], "TIRGEMM_PORT"),
        (["--db", "oracle://x"], "database URL"),
        (["--lease-seconds", "0"], "TIRGEMM_LEASE_SECONDS"),
        (["--worker", "--devices", "cpu,cpu"], "has cpu twice"),
        (["--worker", "--devices", "cpu", "--lock-dir", "/proc/x", "--db", "oracle://x"], "lock file /proc/x/worker-"),
        (["--data", "~no.such.user/x"], "'~no.such.user/x': Could not determine home directory"),
    ],
)
def test_a_wrong_setting_is_one_sentence(tmp_path: Path, options: list[str], words: str) -> None:
    app = typer.Typer()
    app.command()(serve)
    arguments = ["--data", str(tmp_path), "--port", "0", "--no-worker", "--lock-dir", str(tmp_path), *options]
    ended = CliRunner().invoke(app, arguments)
    assert ended.exit_code == 2
    assert words in ended.stderr
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("TIRGEMM_DATA", "~no.such.user/x", "'~no.such.user/x': Could not determine home directory"),
        ("TIRGEMM_LOCK_DIR", "locks", "lock folder 'locks' is not absolute"),
        ("TIRGEMM_LOCK_DIR", "~no.such.user/x", "Could not determine home directory"),
        (
            "TIRGEMM_ALIVE_FILE",
            "/proc/x/alive",
            "TIRGEMM_ALIVE_FILE is '/proc/x/alive', which cannot be touched: No such",
        ),
    ],
)
@pytest.mark.parametrize("command", ["serve", "worker"])
def test_a_path_that_cannot_be_used_is_refused_at_the_start(
    tmp_path: Path,
    refused_here: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    name: str,
    value: str,
    words: str,
) -> None:
    Database.embedded(tmp_path / "data").close()
    monkeypatch.setenv("TIRGEMM_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("TIRGEMM_LOCK_DIR", str(tmp_path / "locks"))
    monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    said = refused_here(command, "--devices", "cpu", *(("--port", "0") if command == "serve" else ()))
    assert words in said
    assert "Traceback" not in said
    assert {path.name for path in tmp_path.iterdir()} <= {"data", "locks"}


def test_paths_may_begin_with_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("DATA", "LOCK_DIR", "ALIVE_FILE"):
        monkeypatch.setenv(f"TIRGEMM_{name}", f"~/{name}")
    settings = Settings.load()
    assert (settings.data, settings.lock_dir) == (tmp_path.resolve() / "DATA", tmp_path / "LOCK_DIR")
    assert settings.alive_file == tmp_path / "ALIVE_FILE"


def test_server_and_worker_live_and_die_together(tmp_path: Path, refused_here: Callable[..., str]) -> None:
    with Serve(tmp_path) as server:
        assert httpx.get(f"{server.url}/readyz", timeout=PATIENCE_S).json()["workers"] == 1
        words = refused_here("worker", "--data", tmp_path, "--lock-dir", tmp_path / "locks")
        assert "in use by process" in words
        worker = server.worker_pid()
        os.kill(worker, signal.SIGKILL)
        until(lambda: server.worker_pid() not in (0, worker))
        with httpx.Client(base_url=server.url, timeout=PATIENCE_S) as http:
            until(lambda: f":{server.worker_pid()}:" in str(http.get("/v1/meta").json()["workers"]))
            # The new worker is registered before it forgets the dead one.
            until(lambda: http.get("/readyz").json().get("workers") == 1)
        children = descendants(server.process.pid)
        assert children
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(PATIENCE_S) == 0
        until(lambda: not any(map(alive, children)))


def test_the_workers_processes_do_not_outlive_a_killed_server(tmp_path: Path) -> None:
    with Serve(tmp_path) as server:
        children = descendants(server.process.pid)
        assert server.worker_pid() in children
        server.process.kill()
        server.process.wait(PATIENCE_S)
        until(lambda: not any(map(alive, children)))
    with Serve(tmp_path) as again:
        assert httpx.get(f"{again.url}/healthz", timeout=PATIENCE_S).status_code == 200
