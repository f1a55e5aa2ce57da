"""The supervisor: a worker that ends or hangs is replaced, one that nobody can judge is left alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import typer

import tirgemm
from tests.service.support import AUTHORITIES
from tests.waiting import PATIENCE_S, until
from tirgemm.service.jobs.supervisor import Supervisor, worker_command, worker_environment
from tirgemm.service.server.server_group import Membership
from tirgemm.service.settings import Settings
from verification.service.processes import Serve, alive, children, command

SLEEPER = [sys.executable, "-c", "import time; time.sleep(600)"]


@contextmanager
def supervised(is_alive: Callable[[int], bool | None]) -> Iterator[Supervisor]:
    supervisor = Supervisor(SLEEPER, None, is_alive)
    supervisor.start()
    try:
        until(lambda: supervisor.pid is not None)
        yield supervisor
    finally:
        supervisor.stop()


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tirgemm.service.jobs.supervisor.LOOK_SECONDS", 0.0)
    monkeypatch.setattr("tirgemm.service.jobs.supervisor.FIRST_PAUSE", 0.01)


@pytest.mark.parametrize(
    "command", [worker_command(1), Membership(1, 0, 1, 0, 0, 0).command()], ids=["worker", "server"]
)
def test_the_folder_that_a_service_is_started_in_is_no_place_of_its_code(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    for name in ("tirgemm", "typer"):
        (tmp_path / f"{name}.py").write_text("")
    code = "import tirgemm, typer; print(tirgemm.__file__, typer.__file__)"
    environment = worker_environment(Settings())
    told = subprocess.check_output([*command[: command.index("-m")], "-c", code], cwd=tmp_path, env=environment)
    assert told.decode().split() == [tirgemm.__file__, typer.__file__]


def test_a_worker_that_hangs_is_killed_and_replaced() -> None:
    looks: dict[int, int] = {}

    def is_alive(pid: int) -> bool:
        looks[pid] = looks.get(pid, 0) + 1
        return looks[pid] == 1

    with supervised(is_alive) as supervisor:
        first = supervisor.pid
        assert first is not None
        os.kill(first, signal.SIGSTOP)
        until(lambda: supervisor.pid not in (None, first))
        assert not alive(first)
        assert looks[first] == 4, "once alive, then silent three times"


def test_one_that_hangs_after_a_look_that_could_not_tell_is_replaced_later() -> None:
    looks: dict[int, int] = {}

    def is_alive(pid: int) -> bool | None:
        looks[pid] = looks.get(pid, 0) + 1
        return {1: True, 2: None}.get(looks[pid], False)

    with supervised(is_alive) as supervisor:
        first = supervisor.pid
        assert first is not None
        until(lambda: supervisor.pid not in (None, first))
        assert looks[first] == 8, "twice three looks of silence behind the two"


@pytest.mark.parametrize(
    "answers", [[False], [True, None], [True, False, False, True], [True, None, *[False] * 5, True]]
)
def test_one_that_starts_is_unjudged_or_comes_back_is_left_alone(answers: list[bool | None]) -> None:
    looks: list[int] = []

    def is_alive(pid: int) -> bool | None:
        looks.append(pid)
        return answers[min(len(looks), len(answers)) - 1]

    with supervised(is_alive) as supervisor:
        first = supervisor.pid
        until(lambda: len(looks) > 12)
        assert set(looks) == {first}


@pytest.mark.slow
def test_a_frozen_worker_of_a_real_service_is_replaced(tmp_path: Path) -> None:
    with Serve(tmp_path, "--lease-seconds", "2") as server:
        first = server.worker_pid()
        assert first
        until(lambda: httpx.get(f"{server.url}/readyz", verify=AUTHORITIES, timeout=PATIENCE_S).status_code == 200)
        os.kill(first, signal.SIGSTOP)
        until(lambda: server.worker_pid() not in (0, first))
        until(lambda: httpx.get(f"{server.url}/readyz", verify=AUTHORITIES, timeout=PATIENCE_S).status_code == 200)
        assert "hangs" in server.log.read_text()


def test_ctrl_c_in_a_terminal_ends_server_and_worker_without_an_error(tmp_path: Path) -> None:
    arguments = ["--data", str(tmp_path), "--lock-dir", str(tmp_path), "--port", "0", "--devices", "cpu"]
    server = subprocess.Popen(
        command("serve", *arguments),
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        assert "tirgemm serves on" in server.stdout.readline()
        workers = children(server.pid)
        assert workers
        os.killpg(server.pid, signal.SIGINT)
        _, logged = server.communicate(timeout=PATIENCE_S)
    finally:
        server.kill()
    assert (server.returncode, "ERROR" in logged) == (0, False), logged
    assert not any(map(alive, workers))
