"""A damaged database and ``tirgemm serve``: repaired before it is served, and by a service that meets the damage."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.contract.storage.databases import damage_page
from tests.helpers.command_line import runner
from tests.service.support import AUTHORITIES, CPU, ODD, kernel_record
from tests.waiting import PATIENCE_S, until
from tirgemm._user_folders import DATABASE
from tirgemm.errors import DamagedDatabase
from tirgemm.gemm import Gemm
from tirgemm.service import log_lines
from tirgemm.service.jobs import damage_watch
from tirgemm.service.jobs.damage_watch import DamageWatch
from tirgemm.service.server import http_server, process, repairs
from tirgemm.service.server.repairs import open_repaired
from tirgemm.service.settings import Settings
from tirgemm.tuning_db import Database, JobRequest, SqlStore
from tirgemm.tuning_db.database import damage_marker
from tirgemm.tuning_db.upkeep.admin import check

REQUEST = JobRequest(Gemm.parse(ODD), CPU)


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A data folder with a kernel whose figures lie on a page that is damaged."""
    with Database.embedded(tmp_path) as database:
        kernel_record(SqlStore(database), REQUEST)
        damage_page(database, "kernel_figures")
    return tmp_path


def damaged_files(folder: Path) -> list[Path]:
    return list(folder.glob(f"{DATABASE}.damaged-*"))


def test_damage_that_opening_meets_is_repaired_before_anything_is_served(damaged: Path) -> None:
    state = open_repaired(Settings(data=damaged))
    try:
        assert check(state.database) == []
        assert state.database.damage == ""
        answer = state.store.kernel(REQUEST.gemm, CPU.key, REQUEST.regime)
        assert answer is not None
        assert [record.id for record in state.store.kernels()] == [answer.id]
    finally:
        state.close()
    assert len(damaged_files(damaged)) == 1


def test_while_another_process_has_it_open_nothing_is_repaired_and_that_is_logged(
    damaged: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repairs, "WAIT_SECONDS", 0.0)
    with Database.embedded(damaged) as other:
        SqlStore(other).candidates(REQUEST.gemm, CPU.key, REQUEST.regime)
        with pytest.raises(DamagedDatabase):
            open_repaired(Settings(data=damaged))
        assert other.damage != ""
    (line,) = {line for line in caplog.messages if "is not repaired" in line}
    assert "is open in another process; stop what uses it" in line
    assert damaged_files(damaged) == []


def test_a_worker_ends_so_that_its_server_can_repair(
    damaged: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(log_lines, "log_to_stderr", lambda **_: None)
    damage_marker(damaged / DATABASE).write_text("a page is damaged")
    code, _, err = runner(capsys)("worker", "--data", damaged, "--lock-dir", damaged / "locks")
    assert (code, "its server repairs it while no worker has it open; start this worker again" in err) == (2, True)


def test_damage_is_seen_once_and_not_too_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(damage_watch, "LOOK_SECONDS", 0.0)
    marker, calls = tmp_path / "damaged", list[str]()
    with DamageWatch(None, lambda: calls.append("none")), DamageWatch(marker, lambda: calls.append("seen")) as watch:
        marker.touch()
        until(lambda: watch.seen)
    with DamageWatch(marker, lambda: calls.append("early"), time.monotonic() + 1000) as early:
        time.sleep(0.05)
    assert (calls, early.seen) == (["seen"], False)


@pytest.mark.parametrize("processes", [1, 2])
def test_a_service_that_meets_damage_repairs_it_and_goes_on(
    tmp_path: Path, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(damage_watch, "LOOK_SECONDS", 0.05)
    handlers: list[Any] = []
    for module in (process, http_server):
        monkeypatch.setattr(module, "exit_at_signals", handlers.append)
    with Database.embedded(tmp_path) as database:
        known = kernel_record(SqlStore(database), REQUEST)
    told: list[dict[str, Any]] = []
    settings = Settings(data=tmp_path, port=0, worker=False, server_processes=processes)
    serving = threading.Thread(target=process.run_server, args=(settings, told.append))
    serving.start()
    try:
        until(lambda: told)
        with httpx.Client(base_url=told[0]["url"], verify=AUTHORITIES, timeout=PATIENCE_S) as http:
            assert http.get(f"/v1/kernels/{known.id}").status_code == 200
            with Database.embedded(tmp_path) as database:
                damage_page(database, "kernel_figures")
            assert http.get("/", headers={"Accept": "text/html"}).status_code == 500
            until(lambda: damaged_files(tmp_path))
            until(lambda: len(handlers) > 1 and (tmp_path / "server.json").exists())
            assert http.get("/", headers={"Accept": "text/html"}).status_code == 200
            assert http.get(f"/v1/kernels/{known.id}").status_code == 200
            assert http.get("/readyz").json()["missing"] == ["worker"]
        assert json.loads((tmp_path / "server.json").read_text())["url"] == told[0]["url"]
        assert len(told) == 1
    finally:
        handlers[-1]()
        serving.join(PATIENCE_S)
    assert not serving.is_alive()
    with Database.embedded(tmp_path) as database:
        assert check(database) == []
