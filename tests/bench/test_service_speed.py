"""The measurement of the service's speed on a small database, and the check and the table of its file."""

from __future__ import annotations

import copy
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks.many_devices.rehearsal import working
from benchmarks.service_speed import document as service_speed
from benchmarks.service_speed import (
    first_answer,
    listeners,
    page_addresses,
    pages,
    server_processes,
    turns,
    while_tuning,
)
from benchmarks.service_speed import working as service_working
from benchmarks.service_speed.load import Turn, drive
from benchmarks.service_speed.measure import main
from benchmarks.service_speed.stored_kernels import gemms, store_kernels
from benchmarks.service_speed.turns import Figures, parser, server
from benchmarks.service_speed.working import await_idle
from tests.service.support import ScriptedEngine
from tirgemm.bench.results import load
from tirgemm.errors import ServiceError
from tirgemm.service.jobs.worker import Worker
from tirgemm.tuning_db import Database, JobQueue, SqlStore

QUICKEST = ("--connections", "2", "--turns", "1", "--seconds", "0.1", "--commit", "abc")
QUICK = ("--kernels", "20", "--few", "3", "--connections", "3", "--turns", "2", "--seconds", "0.1")


def test_known_kernels_are_measured_beside_a_bare_route(tmp_path: Path) -> None:
    file = tmp_path / "machine" / service_speed.FILE
    assert main([*QUICK, "--commit", "abc", "--out", str(file)]) == 0
    document = load(file)
    assert list(service_speed.faults(document)) == []
    assert [row["figure"] for row in document["rows"]] == ["hits, the same 3 kernels", "hits, any of 20 kernels"]
    for row in document["rows"]:
        assert (row["kernels"], row["connections"], row["commit"]) == (20, 3, "abc")
        assert len(row["samples"]) == len(row["bare"]) == 2
        assert row["document_bytes"] > 1500, "a document as long as a real one"
    shown = service_speed.service(file.parent, tmp_path)
    assert "SQLite with 20 kernels where nothing else is said, 3 connections" in shown
    assert "| hits, the same 3 kernels | " in shown


def test_known_kernels_are_measured_from_several_server_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ports: dict[bytes, set[int]] = {b"POST": set(), b"GET ": set()}

    def noted(port: int, requests: Sequence[bytes], *arguments: Any, **options: Any) -> Turn:
        ports[requests[0][:4]].add(port)
        return drive(port, requests, *arguments, **options)

    monkeypatch.setattr(turns, "drive", noted)
    file = tmp_path / service_speed.FILE
    assert server_processes.main([*QUICK, "--processes", "1", "2", "--out", str(file)]) == 0
    rows = load(file)["rows"]
    assert [(row["figure"], row["server_processes"]) for row in rows] == [
        (f"hits, {kernels} kernels, {name}", count)
        for count, name in ((1, "1 server process"), (2, "2 server processes"))
        for kernels in ("the same 3", "any of 20")
    ]
    assert list(service_speed.faults(load(file))) == []
    assert len(ports[b"POST"]) == 2, "a service for each number of processes"
    assert len(ports[b"GET "] - ports[b"POST"]) == 1, "the bare route is another process's"


def test_an_answer_that_is_no_hit_ends_the_measurement(tmp_path: Path) -> None:
    store_kernels(tmp_path, gemms(2))
    with server(tmp_path) as service, pytest.raises(ServiceError, match=r"answered http/1\.1 404"):
        drive(service.port, [service.request("GET", "/v1/kernels/beef")], 2, 0.1, seed=0)


@contextmanager
def scripted_worker(folder: Path, _device: str = "cpu") -> Iterator[int]:
    """A worker in this process whose searches go on until it is stopped; its process, of which nobody says when it is
    idle, is another one."""
    with Database.embedded(folder) as database:
        engine = ScriptedEngine(SqlStore(database))
        engine.fallback_gate.set()
        worker = Worker(JobQueue(database), engine.store, engine, lease_s=600.0)
        with working(worker), sleeping() as process:
            yield process.pid


@contextmanager
def sleeping() -> Iterator[subprocess.Popen[bytes]]:
    """A process that has nothing to do."""
    process = subprocess.Popen(["sleep", "600"])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_a_process_is_idle_once_neither_it_nor_a_child_takes_a_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = iter([{1: 5.0, 2: 0.0}, {1: 5.0, 2: 1.0}, {1: 5.0, 2: 1.0, 3: 1.0}, {1: 5.0, 3: 1.01}])
    monkeypatch.setattr(service_working, "IDLE_SECONDS", 0.2)
    monkeypatch.setattr(service_working, "_processor_seconds", lambda _pid: next(taken))
    await_idle(1)
    assert not list(taken), "two looks were of a child at work, a third of one that had begun"


def test_a_worker_that_has_ended_is_not_idle() -> None:
    with sleeping() as process:
        process.kill()
        process.wait()
        with pytest.raises(ServiceError, match="has ended"):
            await_idle(process.pid)


def test_hits_are_measured_while_a_job_tunes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(while_tuning, "worker", scripted_worker)
    file = tmp_path / service_speed.FILE
    assert while_tuning.main([*QUICKEST, "--kernels", "3", "--out", str(file)]) == 0
    document = load(file)
    assert list(service_speed.faults(document)) == []
    assert [row["figure"] for row in document["rows"]] == ["hits, nothing tunes", "hits, a job tunes on the CPU"]


def test_first_answers_are_those_of_new_problems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_answer, "worker", scripted_worker)
    monkeypatch.setattr(service_working, "IDLE_SECONDS", 0.01)
    file = tmp_path / service_speed.FILE
    assert first_answer.main([*QUICKEST, "--out", str(file)]) == 0
    rows = load(file)["rows"]
    names = ["warm", "warm, rows of whole 16 bytes", "cold"]
    assert [row["figure"] for row in rows] == [f"first answer, cpu, {name}" for name in names]
    assert all(row["p50_ms"] == pytest.approx(1e3 / row["per_second"]) for row in rows)


def test_every_listener_is_told_every_event(tmp_path: Path) -> None:
    file = tmp_path / service_speed.FILE
    options = ["--listeners", "7", "--jobs", "2", "--events", "3"]
    assert listeners.main([*QUICKEST, *options, "--out", str(file)]) == 0
    (row,) = load(file)["rows"]
    assert (row["listeners"], row["events"], row["missing"]) == (7, 6, 0)
    assert 20 < row["server_mib"] < 500
    assert list(service_speed.faults(load(file))) == []
    assert f"; the server's most memory {row['server_mib']:.0f} MiB" in service_speed.service(file.parent, tmp_path)


def test_pages_are_asked_for_as_a_browser_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Those that are measured take ten seconds to be compiled and explained.
    monkeypatch.setattr(page_addresses, "COMPILED", ("1x16x16:f32:nt", "1x16x16:f32:nn"))
    file = tmp_path / "machine" / service_speed.FILE
    assert pages.main(["--kernels", "60", "--candidates", "64", *QUICKEST[2:], "--out", str(file)]) == 0
    document = load(file)
    assert list(service_speed.faults(document)) == []
    rows = {row["figure"]: row for row in document["rows"]}
    assert {"page /", "page /kernels", "page /kernels/ID", "page /compare?kernel=ID&kernel=ID", "page /fleet"} <= set(
        rows
    )
    assert rows["page /kernels"]["page_bytes"] > 20_000, "a page of 50 kernels"
    assert {row["connections"] for row in rows.values()} == {1}
    assert rows["list of 60 kernels"]["page_bytes"] > 60 * 1000
    assert "| page /fleet; " in service_speed.service(file.parent, tmp_path)


def test_a_figure_that_is_measured_again_takes_the_place_of_what_it_was(tmp_path: Path) -> None:
    options = parser("").parse_args([*QUICKEST, "--out", str(tmp_path / service_speed.FILE)])
    for figure, rate in (("hits", 1.0), ("first answer", 2.0), ("hits", 3.0)):
        figures = Figures(options)
        figures.add(figure, ([Turn(rate, 1.0, 1.0)], [Turn(10.0, 1.0, 1.0)]))
    rows = load(options.out)["rows"]
    assert [(row["figure"], row["per_second"]) for row in rows] == [("first answer", 2.0), ("hits", 3.0)]
    shown = service_speed.service(tmp_path, tmp_path).splitlines()
    assert [line.split(" | ")[3] for line in shown[-2:]] == ["", "0.30"]


def some_rows() -> dict[str, Any]:
    ours, bare = [Turn(900.0, 30.0, 90.0), Turn(1100.0, 28.0, 80.0)], [Turn(2000.0, 16.0, 40.0)] * 2
    return {"rows": [service_speed.row_of("hits", {"kernels": 2}, ours, bare)]}


def test_the_share_is_that_of_turns_side_by_side() -> None:
    (row,) = some_rows()["rows"]
    assert (row["per_second"], row["bare_per_second"], row["share"]) == (1000.0, 2000.0, 0.5)
    assert (row["p50_ms"], row["bare_p99_ms"]) == (29.0, 40.0)


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda rows: rows[0].update(share=0.6), "hits: share is 0.6; the samples give 0.5"),
        (lambda rows: rows[0]["samples"].pop(), "hits has 1 turns beside 2 of the bare route"),
        (lambda rows: rows[0]["bare"][0].update(per_second=0), "hits has samples that are not above 0"),
        (lambda rows: rows.append(rows[0]), "hits is there twice"),
    ],
)
def test_what_is_wrong_with_a_file_is_told(damage: Any, sentence: str) -> None:
    document = copy.deepcopy(some_rows())
    assert list(service_speed.faults(document)) == []
    damage(document["rows"])
    assert list(service_speed.faults(document)) == [sentence]


def test_where_nothing_was_measured_the_table_says_how_to(tmp_path: Path) -> None:
    assert "python -m benchmarks.service_speed.measure" in service_speed.service(tmp_path, tmp_path)
