"""The measurement of the service's speed on a small database, and the check and the table of its file."""

from __future__ import annotations

import copy
import itertools
import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
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
from tests.helpers.fake_workbench import FakeBench, FakeMeasurer
from tests.helpers.shipped_files import measured_on, ship
from tests.service.support import ScriptedEngine
from tirgemm import Gemm
from tirgemm.bench.results import environment, figures_document, load, write
from tirgemm.detect import device as detect_device
from tirgemm.device import Device
from tirgemm.errors import ServiceError
from tirgemm.families import FAMILIES, is_valid
from tirgemm.service.jobs.engine import TunerImports, TuningEngine
from tirgemm.service.jobs.worker import Worker
from tirgemm.tuning.budget import SEARCHED
from tirgemm.tuning.records import Candidate
from tirgemm.tuning_db import Database, JobQueue, SqlStore, shipped
from tirgemm.tuning_db.shipped.layered_store import LayeredStore

HERE = detect_device("cpu")
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


class OneEngine:
    """A fleet of one engine, which builds and measures nothing."""

    def __init__(self, store: SqlStore) -> None:
        self._bench = _UnwarmedBench(store=store)
        self._bench.device = HERE
        self._bench.fake = self._bench.measurer = _TimedMeasurer(self._bench)
        self._engine = TuningEngine(HERE, self._open, TunerImports())

    def _open(self, _device: Device) -> FakeBench:
        return self._bench

    def engines(self) -> list[TuningEngine]:
        return [self._engine]

    def close(self) -> None:
        """Nothing was started."""


class _UnwarmedBench(FakeBench):
    def warm(self) -> None:
        """Nothing is to be loaded."""


class _TimedMeasurer(FakeMeasurer):
    seconds = 0.0


@contextmanager
def shipping_worker(folder: Path, _device: str = "cpu") -> Iterator[int]:
    """A worker in this process on the shipped records; its process, of which nobody says when it is idle, is another
    one."""
    with Database.embedded(folder) as database:
        store = LayeredStore(database)
        worker = Worker(JobQueue(database), store, OneEngine(store), lease_s=600.0)
        with working(worker), sleeping() as process:
            yield process.pid


def ship_problems(folder: Path, configs: Mapping[str, int]) -> None:
    """Ship so many configs of each problem, as measured here."""
    family, candidates = FAMILIES["x86"], list[Candidate]()
    for text, count in configs.items():
        gemm = Gemm.parse(text)
        space = (config for config in family.space(gemm, HERE) if is_valid(gemm, config, HERE))
        times = [(config, 10.0 + number) for number, config in enumerate(itertools.islice(space, count))]
        candidates += measured_on(HERE, gemm, times)
    ship(folder, HERE, candidates)


def write_suite(folder: Path, name: str, *problems: str) -> str:
    """The path of a suite's file."""
    path = folder / f"{name}.json"
    path.write_text(json.dumps({"name": name, "source": "this test", "gemms": problems}))
    return str(path)


def test_problems_of_suites_are_answered_from_shipped_records_without_a_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = [f"{m}x67x71:f16:nt" for m in (61, 63, 65, 67)]
    ship_problems(tmp_path / "shipped", dict(zip(shapes, (SEARCHED, SEARCHED - 1, SEARCHED, SEARCHED), strict=True)))
    monkeypatch.setattr(shipped, "FOLDER", tmp_path / "shipped")
    monkeypatch.setattr(first_answer, "worker", shipping_worker)
    monkeypatch.setattr(service_working, "IDLE_SECONDS", 0.01)
    file = tmp_path / service_speed.FILE
    of_all = write_suite(tmp_path, "of_all", *shapes, "69x67x71:f16:nt")
    again = ["--rows", "suites", "--suites", of_all]
    assert first_answer.main([*QUICKEST, *again, "--out", str(file)]) == 0
    (row,) = load(file)["rows"]
    assert row["figure"] == "shipped kernel, cpu, warm, of_all"
    assert (row["problems"], row["trials"], row["commit"]) == ([shapes[2]], 0, "abc"), "the first is not kept"
    assert (row["shipped_problems"], row["suite_problems"]) == (3, 5), "of one too few were shipped, of one none"
    assert list(service_speed.faults(load(file))) == []
    assert "warm, of_all; 3 of 5 problems shipped; " in service_speed.service(file.parent, tmp_path)


def test_a_row_of_a_suite_has_as_many_trials_as_its_answers_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the answers that are kept: the first is not."""
    shapes = [f"{m}x67x71:f16:nt" for m in (61, 63, 65)]
    tried = dict(zip(map(Gemm.parse, shapes), (7, 0, 2), strict=True))
    monkeypatch.setattr(first_answer, "shipped_problems", lambda _database, gemms, _device: list(gemms))
    monkeypatch.setattr(first_answer, "await_idle", lambda _pid: None)
    monkeypatch.setattr(first_answer, "shipped_answer", lambda *asked: (Turn(1.0, 1.0, 1.0), tried[asked[2]]))
    suites = ["--suites", write_suite(tmp_path, "tried", *shapes)]
    file = tmp_path / service_speed.FILE
    options = parser(None)
    options.add_argument("--device", default="cpu")
    options.add_argument("--suites", nargs="+")
    given = options.parse_args([*QUICKEST, "--turns", "2", *suites, "--out", str(file)])
    with Database.embedded(tmp_path) as database, server(tmp_path) as service:
        first_answer.measure_suites(Figures(given), service, database, 0, given)
    (row,) = load(file)["rows"]
    assert (row["problems"], row["trials"]) == (shapes[1:], 2)
    assert f"{row['figure']} was answered by searches, of 2 trials" in list(service_speed.faults(load(file)))


def test_without_shipped_records_there_is_no_row_of_a_suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipped, "FOLDER", tmp_path / "shipped")
    monkeypatch.setattr(first_answer, "worker", shipping_worker)
    suite = write_suite(tmp_path, "of_none", "61x67x71:f16:nt", "63x67x71:f16:nt")
    with pytest.raises(ServiceError, match="suite of_none has 0 problems to ask for on cpu, of at least 2"):
        first_answer.main([*QUICKEST, "--rows", "suites", "--suites", suite])


def test_an_answer_of_a_search_is_none_of_shipped_records(tmp_path: Path) -> None:
    gemm = Gemm.parse("61x67x71:f16:nt")
    with Database.embedded(tmp_path) as database, server(tmp_path) as service:
        engine = ScriptedEngine(SqlStore(database), candidates=2)
        engine.gate.set()
        engine.fallback_gate.set()
        worker = Worker(JobQueue(database), engine.store, engine, lease_s=600.0)
        with working(worker), pytest.raises(ServiceError, match=r"ended with None and tried 2 candidates"):
            first_answer.shipped_answer(service, database, gemm, "cpu")


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


def suite_row() -> dict[str, Any]:
    turns = [Turn(0.5, 2000.0, 2000.0), Turn(0.4, 2500.0, 2500.0)]
    about = {"problems": ["1x2x3", "2x2x3"], "trials": 0, "suite_problems": 9, "shipped_problems": 8}
    return service_speed.row_of("shipped kernel", about, turns, [Turn(2000.0, 16.0, 40.0)] * 2)


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        ({"problems": ["1x2x3"]}, "shipped kernel has 2 samples of 1 problems"),
        ({"problems": ["1x2x3", "1x2x3"]}, "shipped kernel has samples of one problem twice"),
        ({"trials": 4}, "shipped kernel was answered by searches, of 4 trials"),
    ],
)
def test_what_is_wrong_with_the_row_of_a_suite_is_told(damage: dict[str, Any], sentence: str) -> None:
    row = suite_row()
    assert list(service_speed.faults({"rows": [row]})) == []
    (told,) = service_speed.faults({"rows": [row | damage]})
    assert told.startswith(sentence)


def test_the_table_has_the_days_of_its_rows(tmp_path: Path) -> None:
    file = tmp_path / service_speed.FILE
    about = environment(HERE, None, "abc") | {"device": "Some CPU", "date": "2026-11-29T01:00:00+00:00"}

    def head(*days: str) -> str:
        rows = [suite_row() | {"figure": day, "at": f"{day}T01:00:00+00:00"} for day in days]
        write(file, figures_document(service_speed.SUITE, about, rows))
        return service_speed.service(tmp_path, tmp_path).partition("\n")[0].rpartition(" threads, ")[2]

    assert head("2026-11-28") == "2026-11-28"
    assert head("2026-11-29", "2026-11-27", "2026-11-28") == "2026-11-27 to 2026-11-29"
    assert head() == "2026-11-29"


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
