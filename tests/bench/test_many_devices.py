"""The measurement of jobs on several devices, on workers that a test drives, and the check and table of its file."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.many_devices import document as many_devices
from benchmarks.many_devices import measure, rehearsal, suites
from benchmarks.many_devices.document import QueueRun
from benchmarks.many_devices.suites import join, shares_of, shares_of_cpus, write_share
from tests.service.support import CPU, ScriptedEngine
from tests.waiting import PATIENCE_S, until
from tirgemm import Config, Gemm
from tirgemm.bench.results import ResultsFile, environment, load, unmeasured_row
from tirgemm.bench.suite_file import Suite
from tirgemm.device import Device
from tirgemm.errors import DeviceUnavailable, InvalidRequest, ServiceError
from tirgemm.events import EventHandler
from tirgemm.service.jobs.worker import Worker
from tirgemm.status import Status
from tirgemm.tuning.budget import Budget
from tirgemm.tuning.records import Candidate, KernelRecord, SampleSet
from tirgemm.tuning_db import Database, JobQueue, JobRequest, SqlStore


class TimedEngine(ScriptedEngine):
    """An engine that has measured for 0.05 s a job, in which it tried two candidates and left one out."""

    measured_s = 0.0

    def measuring_seconds(self) -> list[float]:
        return [self.measured_s]

    def tune(
        self,
        request: JobRequest,
        on_event: EventHandler,
        cancel: threading.Event,
        between_batches: Callable[[], None],
    ) -> KernelRecord:
        time.sleep(0.12)  # longer than an idle engine takes to look for a job
        self.measured_s += 0.05
        for number, status in enumerate((Status.MEASURED, Status.WRONG, Status.PRUNED)):
            config = Config("x86", (("tile_m", 8 * (1 + number)),))
            self.store.add_candidate(Candidate(request.gemm, request.device.key, request.regime, config, status))
        return super().tune(request, on_event, cancel, between_batches)


class Fleet:
    """So many engines, whose jobs end at once."""

    def __init__(self, store: SqlStore, count: int, fail: bool) -> None:
        self._engines = [TimedEngine(store) for _ in range(count)]
        for engine in self._engines:
            engine.fallback_gate.set()
            engine.gate.set()
            engine.fail_with = ServiceError("this engine fails") if fail else None

    def engines(self) -> list[TimedEngine]:
        return self._engines

    def close(self) -> None:
        for engine in self._engines:
            engine.close()


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> dict[str, bool]:
    """Workers of the measurement are threads, on two devices of a kind; they fail where ``fail`` is set."""
    told = {"fail": False}
    fleets: list[Fleet] = []
    workers: list[Worker] = []

    @contextmanager
    def worker(folder: Path, served: Sequence[Device], options: argparse.Namespace) -> Iterator[None]:
        assert options.processes == 3
        with Database.embedded(folder) as database:
            store = SqlStore(database)
            fleets.append(Fleet(store, len(served), told["fail"]))
            workers.append(Worker(JobQueue(database), store, fleets[-1], lease_s=600.0))
            thread = threading.Thread(target=workers[-1].run)
            thread.start()
            try:
                yield
            finally:
                workers[-1].stop()
                thread.join(PATIENCE_S)

    def reported(queue: JobQueue) -> None:
        workers[-1]._register()  # as it does every two seconds
        spent = [engine.measured_s for engine in fleets[-1].engines()]
        until(lambda: [seconds for told in queue.live_workers(600) for seconds in told.measuring] == spent)

    monkeypatch.setattr(measure, "worker", worker)
    monkeypatch.setattr(measure, "devices", lambda: [CPU, CPU])
    # Only the times tell two signs of life apart, and those are of whole seconds in a record.
    monkeypatch.setattr(measure, "_await_report", reported)
    return told


OPTIONS = ("--kind", "cpu", "--jobs", "3", "--processes", "3", "--turns", "2", "--commit", "abc")


def test_the_same_jobs_are_run_on_one_device_and_on_all_of_the_host(tmp_path: Path, scripted: dict[str, bool]) -> None:
    file = tmp_path / "machine" / many_devices.FILE
    assert not scripted["fail"]
    assert measure.main([*OPTIONS, "--out", str(file)]) == 0
    document = load(file)
    assert list(many_devices.faults(document)) == []
    assert [row["figure"] for row in document["rows"]] == ["3 jobs on 1 device", "3 jobs on 2 devices"]
    for row, devices in zip(document["rows"], (1, 2), strict=True):
        assert (row["devices"], row["jobs"], row["commit"], len(row["samples"])) == (devices, 3, "abc", 2)
        assert all(sum(run["measuring_s"]) == pytest.approx(0.15) for run in row["samples"])
        assert [run["candidates"] for run in row["samples"]] == [6, 6]
    assert "| 3 jobs on 2 devices | quick | 1000x4104x4104:f16:nt | " in many_devices.jobs(file.parent, tmp_path)


ONE_JOB = (*OPTIONS[:2], "--jobs", "1", *OPTIONS[4:], "--effort", "standard", "--size", "4136", "4096", "4096")


def test_rows_of_another_setting_stay_in_the_file(tmp_path: Path, scripted: dict[str, bool]) -> None:
    file = tmp_path / many_devices.FILE
    assert not scripted["fail"]
    measure.main([*OPTIONS, "--out", str(file)])
    before = load(file)["rows"]
    measure.main([*ONE_JOB, "--out", str(file)])
    measure.main([*ONE_JOB, "--commit", "abd", "--devices", "2", "--trials", "40", "--turns", "1", "--out", str(file)])
    held = load(file)
    assert list(many_devices.faults(held)) == []
    assert held["environment"]["commit"] == "abd"
    assert held["rows"][:2] == before
    assert [(row["figure"], row["commit"], len(row["samples"])) for row in held["rows"]] == [
        ("3 jobs on 1 device", "abc", 2),
        ("3 jobs on 2 devices", "abc", 2),
        ("1 job on 1 device, standard, 4136x4096x4096:f16:nt", "abc", 2),
        ("1 job on 2 devices, standard, 4136x4096x4096:f16:nt", "abc", 2),
        ("1 job on 1 device, standard, 40 trials, 4136x4096x4096:f16:nt", "abd", 1),
        ("1 job on 2 devices, standard, 40 trials, 4136x4096x4096:f16:nt", "abd", 1),
    ]
    measure.main([*OPTIONS, "--commit", "abe", "--turns", "1", "--out", str(file)])
    assert [row["commit"] for row in load(file)["rows"]] == ["abe", "abe", "abc", "abc", "abd", "abd"]


def test_each_turn_has_problems_of_its_own_and_the_same_before_them_on_any_devices(
    tmp_path: Path, scripted: dict[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted, submit = list[str](), measure.submit
    assert not scripted["fail"]

    def noted(queue: JobQueue, gemm: Gemm, device: Device, budget: Budget) -> str:
        submitted.append(f"{gemm.m_max} {budget.trials}")
        return submit(queue, gemm, device, budget)

    monkeypatch.setattr(measure, "submit", noted)
    measure.main([*ONE_JOB, "--out", str(tmp_path / many_devices.FILE)])
    first, second = ["4144 24", "4152 24", "4136 64"], ["4152 24", "4160 24", "4144 64"]
    assert submitted == [*first, *first, *second, *second]


def test_a_file_of_another_machine_is_left_as_it_is(tmp_path: Path, scripted: dict[str, bool]) -> None:
    file = tmp_path / many_devices.FILE
    assert not scripted["fail"]
    text = '{"environment": {"device_key": "cuda:sm_90a:nvidia-h200:132"}, "rows": []}'
    file.write_text(text)
    with pytest.raises(InvalidRequest, match="was measured on cuda:sm_90a:nvidia-h200:132, not on cpu:"):
        measure.main([*OPTIONS, "--out", str(file)])
    assert file.read_text() == text


def test_runs_that_the_file_has_are_not_run_again(
    tmp_path: Path, scripted: dict[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    file, ran, run_queue = tmp_path / many_devices.FILE, list[int](), measure.run_queue
    assert not scripted["fail"]

    def interrupted(served: Sequence[Device], options: Any, turn: int, most: int) -> QueueRun:
        ran.append(len(served))
        if len(ran) == 3:
            raise KeyboardInterrupt
        return run_queue(served, options, turn, most)

    monkeypatch.setattr(measure, "run_queue", interrupted)
    with pytest.raises(KeyboardInterrupt):
        measure.main([*OPTIONS, "--out", str(file)])
    assert [len(row["samples"]) for row in load(file)["rows"]] == [1, 1]
    measure.main([*OPTIONS, "--out", str(file), "--resume"])
    assert ran == [1, 2, 1, 1, 2]
    assert [len(row["samples"]) for row in load(file)["rows"]] == [2, 2]
    assert list(many_devices.faults(load(file))) == []
    for others in (("--jobs", "2"), ("--commit", "abd")):
        ran[:] = [0, 0, 0]
        measure.main([*OPTIONS, *others, "--turns", "1", "--out", str(file), "--resume"])
        assert ran[3:] == [1, 2], "of other jobs, or another commit"


def test_runs_beside_others_on_one_device_than_the_file_has_now_are_run_again(
    tmp_path: Path, scripted: dict[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command that does not go on from the file begins the runs on one device anew."""
    file, ran, run_queue = tmp_path / many_devices.FILE, list[int](), measure.run_queue
    assert not scripted["fail"]

    def noted(served: Sequence[Device], options: Any, turn: int, most: int) -> QueueRun:
        ran.append(len(served))
        return replace(run_queue(served, options, turn, most), seconds=100.0 + len(ran))

    monkeypatch.setattr(measure, "run_queue", noted)
    monkeypatch.setattr(measure, "devices", lambda: [CPU, CPU, CPU])
    measure.main([*OPTIONS, "--devices", "2", "--out", str(file)])
    measure.main([*OPTIONS, "--turns", "1", "--devices", "3", "--out", str(file)])
    assert ran == [1, 2, 1, 2, 1, 3]
    measure.main([*OPTIONS, "--turns", "1", "--devices", "2", "--resume", "--out", str(file)])
    assert ran[6:] == [2], "its earlier partner is gone"
    rows = {row["devices"]: row for row in load(file)["rows"]}
    assert [run["seconds"] for run in rows[2]["alone"]] == [105.0]
    assert list(many_devices.faults(load(file))) == []


def test_a_job_that_fails_ends_the_measurement(scripted: dict[str, bool]) -> None:
    scripted["fail"] = True
    with pytest.raises(ServiceError, match=r"did not end as done.*this engine fails"):
        measure.main(OPTIONS)


def test_devices_that_are_not_here_are_refused(scripted: dict[str, bool]) -> None:
    del scripted
    with pytest.raises(DeviceUnavailable, match="3 devices were asked for; this host has 2"):
        measure.main([*OPTIONS, "--devices", "3"])
    with pytest.raises(DeviceUnavailable, match="no cuda device"):
        measure.main(["--kind", "cuda"])


ABOUT = {"jobs": 4, "devices": 2, "effort": "quick", "trials": None, "first_gemm": "1000x4104x4104:f16:nt"}


def some_rows() -> dict[str, Any]:
    runs, alone = [QueueRun(10.0, (6.0, 5.0)), QueueRun(12.0, (7.0, 7.0))], [QueueRun(22.0, (11.0,))] * 3
    return {"rows": [many_devices.row_of(ABOUT, runs, alone)]}


def test_the_speedup_is_that_of_the_pairs() -> None:
    (row,) = some_rows()["rows"]
    assert (row["seconds"], row["speedup"]) == (11.0, pytest.approx((2.2 + 22 / 12) / 2))
    assert row["measuring_share"] == pytest.approx((0.55 + 7 / 12) / 2)
    assert "candidates" not in row, "of runs that did not count them"


def test_the_table_says_of_each_row_what_it_was_measured_with(tmp_path: Path) -> None:
    made = {"processes": 64, "at": "2026-11-27T17:31:59+00:00"}
    (queue,) = some_rows()["rows"]
    about = {"jobs": 1, "devices": 2, "effort": "standard", "trials": 40, "first_gemm": "4136x4096x4096:f16:nt"}
    runs, alone = [QueueRun(8.0, (6.0, 4.0), 40), QueueRun(10.0, (6.0, 6.0), 41)], [QueueRun(20.0, (15.0,), 44)] * 2
    one = many_devices.row_of(about, runs, alone) | {"processes": 16, "at": "2026-11-29T01:02:03+00:00"}
    document = {"environment": {"device": "NVIDIA H200"}, "rows": [queue | made, one]}
    (tmp_path / many_devices.FILE).write_text(json.dumps(document))
    assert (one["candidates"], one["candidates_per_s"]) == (40.5, pytest.approx(4.55))
    assert many_devices.jobs(tmp_path, tmp_path).splitlines()[4:] == [
        "| 4 jobs on 2 devices | quick | 1000x4104x4104:f16:nt | 2026-11-27 | 64 | 11 | 2.02 |  |  | 0.57 | 2 |",
        "| 1 job on 2 devices | standard, 40 trials | 4136x4096x4096:f16:nt | 2026-11-29 | 16 | 9 | 2.25 | 40 | 4.5 "
        "| 0.61 | 2 |",
    ]


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda rows: rows[0].update(speedup=2.5), "4 jobs on 2 devices: speedup is 2.5; the samples give 2.01"),
        (lambda rows: rows[0]["alone"].pop(), "4 jobs on 2 devices has 2 runs beside 1 on one device"),
        (lambda rows: rows[0]["samples"].clear(), "4 jobs on 2 devices has 0 runs beside 2 on one device"),
        (
            lambda rows: rows[0]["samples"][0].update(measuring_s=[6.0]),
            "4 jobs on 2 devices has a run of 10.0 s that measured for [6.0] s",
        ),
        (lambda rows: rows[0]["samples"][0].update(candidates=3), "4 jobs on 2 devices has a run of 3 candidates"),
        (
            lambda rows: rows[0].update(effort="standard"),
            "4 jobs on 2 devices is of the setting 4 jobs on 2 devices, s",
        ),
        (lambda rows: rows.append(rows[0]), "4 jobs on 2 devices is there twice"),
    ],
)
def test_what_is_wrong_with_a_file_is_told(damage: Callable[[Any], None], sentence: str) -> None:
    document = some_rows()
    assert list(many_devices.faults(document)) == []
    damage(document["rows"])
    assert [words for words in many_devices.faults(document) if words.startswith(sentence)]


def test_where_nothing_was_measured_the_table_says_how_to(tmp_path: Path) -> None:
    assert "python -m benchmarks.many_devices.measure" in many_devices.jobs(tmp_path, tmp_path)


def test_shares_of_a_suite_are_joined_in_its_order_with_what_was_measured_before(tmp_path: Path) -> None:
    suite = Suite("three", "x", tuple(Gemm(8, 8, 8 * k) for k in (1, 2, 3)))
    texts = [str(gemm) for gemm in suite.gemms]
    about = environment(CPU, None, "0" * 40)
    before = ResultsFile(tmp_path / "before" / "three.sustained.json.gz", "three", "sustained", about, resume=False)
    (tmp_path / "before").mkdir()
    before.put(unmeasured_row(suite.gemms[2], None, "quick", "skipped", "earlier"))
    folders = [tmp_path / str(number) for number in range(2)]
    for gemms, folder in zip(shares_of(suite, 2), folders, strict=True):
        write_share(suite, gemms, folder, tmp_path / "before")
    shares = [Suite.read(folder / "three.json") for folder in folders]
    assert [[str(gemm) for gemm in share.gemms] for share in shares] == [[texts[0], texts[2]], [texts[1]]]
    for number, (folder, share) in enumerate(zip(folders, shares, strict=True)):
        path = folder / "results" / "three.sustained.json.gz"
        file = ResultsFile(path, "three", "sustained", about, resume=True)
        assert [row["gemm"] for row in file.rows] == [[texts[2]], []][number], "each has the rows of its own shapes"
        file.put(unmeasured_row(share.gemms[0], None, "quick", "skipped", str(number)))
        read = SampleSet(
            (100.0 + number,), "selection", conditions={"at": "2026-11-27T02:00:00+00:00", "bytes": 1 << 30}
        )
        assert file.add_stream(read) > 0
        file.save()
    (written,) = join(suite, [folder / "results" for folder in folders], tmp_path / "before")
    rows, streams = (load(written)[name] for name in ("rows", "streams"))
    assert [stream["samples_us"] for stream in streams] == [[100.0], [101.0]], "both, although of one second"
    assert [(row["gemm"], row["message"]) for row in rows] == list(zip(texts, ["0", "1", "earlier"], strict=True))
    assert {row["commit"] for row in rows} == {"0" * 40}


def test_what_was_measured_before_an_interrupt_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each program writes a row, then the last to do so has this one told to end."""
    suite = Suite("two", "x", tuple(Gemm(8, 8, 8 * k) for k in (1, 2)))
    about = environment(CPU, None, "0" * 40)

    def measuring(folder: Path, _: Sequence[Suite]) -> list[str]:
        (gemm,) = Suite.read(folder / "two.json").gemms
        file = ResultsFile(tmp_path / f"{folder.name}.json", "two", "sustained", about, resume=False)
        file.put(unmeasured_row(gemm, None, "quick", "skipped", folder.name))
        code = "import os, pathlib, shutil, signal, sys, time\n"
        code += f"shutil.copy({str(file.path)!r}, {str(folder / 'results' / 'two.sustained.json')!r})\n"
        code += f"done = pathlib.Path({str(tmp_path)!r}); (done / ({folder.name!r} + '.done')).touch()\n"
        code += "if len(list(done.glob('*.done'))) == 2: os.kill(os.getppid(), signal.SIGTERM)\n"
        return [sys.executable, "-c", code + "time.sleep(600)"]

    monkeypatch.setattr(suites, "_bench", measuring)
    monkeypatch.setattr(suites, "suite_named", lambda _: suite)
    monkeypatch.setattr(suites, "same_devices", lambda _: [CPU, CPU])
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(KeyboardInterrupt):
            suites.main(["two", "--out", str(tmp_path / "out")])
    finally:
        signal.signal(signal.SIGTERM, before)
    rows = load(tmp_path / "out" / "two.sustained.json")["rows"]
    assert [(row["gemm"], row["message"]) for row in rows] == [
        (str(gemm), str(i)) for i, gemm in enumerate(suite.gemms)
    ]


def test_devices_share_the_cpus_evenly() -> None:
    cpus = sorted(os.sched_getaffinity(0))
    assert shares_of_cpus(len(cpus)) == [[cpu] for cpu in cpus]
    assert shares_of_cpus(len(cpus) + 1) == [cpus] * (len(cpus) + 1)


def test_problems_of_one_kernel_set_stay_together() -> None:
    gemms = tuple(Gemm(m, n, 64) for n in (64, 128, 192) for m in (1, 2))
    shares = shares_of(Suite("sets", "x", gemms), 2, sets=True)
    assert [[(gemm.m_max, gemm.n) for gemm in share] for share in shares] == [
        [(1, 64), (2, 64), (1, 192), (2, 192)],
        [(1, 128), (2, 128)],
    ]


def test_a_rehearsal_runs_jobs_on_made_up_devices(capsys: pytest.CaptureFixture[str]) -> None:
    assert rehearsal.main(["--jobs", "3", "--devices", "2", "--processes", "4", "--pace", "0.02"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["jobs"], told["devices"], len(told["busy_s"])) == (3, 2, 2)
    assert 0 < told["first_answers_s"] <= told["seconds"]
    assert 0 < sum(told["busy_s"]) <= 2 * told["seconds"]
    assert told["cpu_s"] > 0
