"""A damaged database and ``tirgemm serve``: repaired before it is served, and by a service that meets the damage."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import threading
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import httpx
import pytest

from tests.contract.storage.databases import damage_page
from tests.helpers.command_line import runner
from tests.service.support import AUTHORITIES, CPU, ODD, kernel_record
from tests.waiting import PATIENCE_S, until
from tirgemm._user_folders import DATABASE
from tirgemm.errors import DamagedDatabase, StoreError, StoreUnavailable
from tirgemm.gemm import Gemm
from tirgemm.service import log_lines
from tirgemm.service.http.state import ServiceState
from tirgemm.service.jobs import condition_watch
from tirgemm.service.jobs.condition_watch import ConditionWatch
from tirgemm.service.server import http_server, process, repairs
from tirgemm.service.server.repair_answers import answering
from tirgemm.service.server.repairs import ExitRequest, Repairs
from tirgemm.service.settings import Settings
from tirgemm.tuning_db import Database, JobRequest, SqlStore
from tirgemm.tuning_db.database import damage_marker
from tirgemm.tuning_db.upkeep.admin import check
from tirgemm.tuning_db.upkeep.repair import repair
from tirgemm.tuning_db.upkeep.repair_files import is_repair_due, repair_due

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
    state = Repairs(Settings(data=damaged)).open()
    assert state is not None
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
            Repairs(Settings(data=damaged)).open()
        assert other.damage != ""
    (line,) = {line for line in caplog.messages if "is not repaired" in line}
    assert "is open in another process; stop what uses it" in line
    assert damaged_files(damaged) == []


def test_a_worker_ends_so_that_its_server_can_repair(
    damaged: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(log_lines, "log_to_stderr", lambda **_: None)
    damage_marker(damaged / DATABASE).write_text("a page is damaged")
    assert not is_repair_due(damage_marker(damaged / DATABASE)), "it works on what is whole"
    with repair_due(damage_marker(damaged / DATABASE)):
        code, _, err = runner(capsys)("worker", "--data", damaged, "--lock-dir", damaged / "locks")
    assert (code, "its server repairs it while no worker has it open; start this worker again" in err) == (2, True)


def test_damage_is_seen_once_and_not_too_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(condition_watch, "LOOK_SECONDS", 0.0)
    marker, repairs, now = tmp_path / "damaged", Mock(), time.monotonic()
    is_due = partial(process._is_to_be_repaired, marker, now, repairs)
    assert not is_due()
    marker.touch()
    assert not process._is_to_be_repaired(None, now, repairs)
    assert not process._is_to_be_repaired(marker, now + 60, repairs)
    repairs.is_possible.return_value = False
    assert not is_due()
    marker.unlink()
    repairs.is_possible.return_value = True
    calls = list[str]()
    with ConditionWatch("damage watch", is_due, lambda: calls.append("seen")) as watch:
        assert not watch.seen
        marker.touch()
        until(lambda: watch.seen)
    assert calls == ["seen"]


def test_while_it_repairs_a_service_says_that_it_is_alive_and_nothing_else() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)  # as Uvicorn leaves it
        base = f"http://127.0.0.1:{listener.getsockname()[1]}"
        for _ in range(2):
            with answering(listener), httpx.Client(base_url=base, timeout=PATIENCE_S) as http:
                alive = http.get("/healthz")
                assert (alive.status_code, alive.json()) == (200, {"status": "ok"})
                for refused in (http.get("/readyz"), http.post("/v1/kernels", json={"gemm": ODD})):
                    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "5")
                    assert refused.json()["error"] == "store_unavailable"
        with answering(None):
            pass


def test_a_repair_is_answered_for_and_a_signal_ends_the_wait(damaged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    damage_marker(damaged / DATABASE).write_text("a page is damaged")
    begun, goes_on = threading.Event(), threading.Event()

    def lasts(*_: object) -> None:
        begun.set()
        goes_on.wait(PATIENCE_S)

    def ask() -> None:
        begun.wait(PATIENCE_S)
        codes.append(httpx.get(f"http://127.0.0.1:{listener.getsockname()[1]}/healthz").status_code)
        os.kill(os.getpid(), signal.SIGTERM)

    codes = list[int]()
    monkeypatch.setattr(repairs, "repair_if_found_damaged", lasts)
    before = signal.getsignal(signal.SIGTERM)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        asking = threading.Thread(target=ask)
        asking.start()
        assert Repairs(Settings(data=damaged), listener).open() is None
        asking.join()
    goes_on.set()
    assert (codes, signal.getsignal(signal.SIGTERM)) == ([200], before)


def test_a_service_that_was_serving_goes_on_where_nothing_can_be_repaired(
    damaged: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(repairs, "WAIT_SECONDS", 0.0)
    monkeypatch.setattr(repairs, "RETRY_SECONDS", (0.0, 0.0))
    damage_marker(damaged / DATABASE).write_text("a page is damaged")
    real, refusals = ServiceState.open, [StoreUnavailable("no"), StoreUnavailable("not yet")]

    def opened(*arguments: Any, **options: Any) -> ServiceState:
        if refusals:
            raise refusals.pop(0)
        return real(*arguments, **options)

    monkeypatch.setattr(ServiceState, "open", opened)
    again = Repairs(Settings(data=damaged))
    with Database.embedded(damaged) as other:
        SqlStore(other).candidates(REQUEST.gemm, CPU.key, REQUEST.regime)
        state = again.open_again()
        assert state is not None
        with closing(state):
            answer = state.store.kernel(REQUEST.gemm, CPU.key, REQUEST.regime)
    assert (answer is not None, again.repaired) == (True, False)
    assert [line.split(": ")[1] for line in caplog.messages if "cannot go on yet" in line] == ["no", "not yet"]
    state = again.open_again()
    assert state is not None
    state.close()
    assert again.repaired


def test_it_goes_on_where_the_newest_candidate_is_on_a_damaged_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repairs, "WAIT_SECONDS", 0.0)
    monkeypatch.setattr(repairs, "RETRY_SECONDS", (0.0, 0.0))
    with Database.embedded(tmp_path) as database:
        known = kernel_record(SqlStore(database), REQUEST)
        damage_page(database, "candidates")
    damage_marker(tmp_path / DATABASE).write_text("a page is damaged")
    asked, again = ExitRequest(), list[ServiceState | None]()
    with Database.embedded(tmp_path) as other:
        SqlStore(other).kernels()
        opening = threading.Thread(
            target=lambda: again.append(Repairs(Settings(data=tmp_path), asked_to_exit=asked).open_again())
        )
        opening.start()
        opening.join(PATIENCE_S)
        asked.make()
        opening.join()
        (state,) = again
        assert state is not None, "it was tried in vain"
        with closing(state):
            assert [record.id for record in state.store.kernels()] == [known.id]


def test_a_disk_without_room_for_a_repair_stops_no_service(
    damaged: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    again = Repairs(Settings(data=damaged))
    assert again.is_possible()
    size = (damaged / DATABASE).stat().st_size
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=3 * size - 1))
    assert [again.is_possible(), again.is_possible()] == [False, False]
    (line,) = [line for line in caplog.messages if "is not repaired" in line]
    assert line.endswith(f"{3 * size - 1} bytes left, and a repair takes {3 * size}; free some")
    with pytest.raises(StoreError, match="free some; it is as it was"):
        repair(damaged / DATABASE, damaged)


def test_a_service_is_announced_once_it_is_ready_be_it_after_a_repair() -> None:
    told = list[Any]()
    announce = process._once(told.append)
    assert told == []
    announce({"url": "first"})
    announce({"url": "second"})
    assert told == [{"url": "first"}]


@pytest.mark.parametrize("processes", [1, 2])
def test_a_service_that_meets_damage_repairs_it_and_goes_on(
    tmp_path: Path, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(condition_watch, "LOOK_SECONDS", 0.05)
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
        until(lambda: bool(told))
        with httpx.Client(base_url=told[0]["url"], verify=AUTHORITIES, timeout=PATIENCE_S) as http:
            assert http.get(f"/v1/kernels/{known.id}").status_code == 200
            with Database.embedded(tmp_path) as database:
                damage_page(database, "kernel_figures")
            assert http.get("/", headers={"Accept": "text/html"}).status_code == 500
            until(lambda: bool(damaged_files(tmp_path)))
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
