"""The build pool against builders that crash, hang, raise and are cancelled. No TVM: the builder is planted."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.traces.kept_spans import kept_spans
from tests.tuning.build.planted_builder import BUILDER, DEVICE, GEMM, answer, config
from tests.waiting import PATIENCE_S, until
from tirgemm.errors import BuildersUnusable, BuildFailed, Cancelled
from tirgemm.status import Status
from tirgemm.tuning.build import processes
from tirgemm.tuning.build.pool import BuildPool
from tirgemm.tuning.build.processes import BuildProcesses
from tirgemm.tuning.process import child_rpc, spans
from tirgemm.tuning.process.child_rpc import ChildProcess
from tirgemm.tuning.process.locks import DeviceLock
from tirgemm.tuning.records.memory_store import MemoryStore
from tirgemm.tuning.workbench import Workbench
from verification.service.processes import alive


@pytest.fixture
def locks(tmp_path: Path) -> Path:
    return tmp_path / "locks"


@pytest.fixture
def pool(tmp_path: Path, locks: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BuildPool]:
    (tmp_path / "planted_builder.py").write_text(BUILDER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with BuildPool(DEVICE, 1, lock_dir=locks, timeout_s=PATIENCE_S, builder="planted_builder:build") as pool:
        yield pool


def test_one_process_serves_many_builds_even_when_they_print(pool: BuildPool) -> None:
    answers = [answer(pool.submit(GEMM, config(what))) for what in ("a", "noise", "b")]
    assert [a[:3] for a in answers] == [(w, str(GEMM), "planted") for w in ("a", "noise", "b")]
    assert len({a[3] for a in answers}) == 1
    assert answers[0][3] != os.getpid()


def test_a_workbench_builds_with_the_builder_that_it_is_given(pool: BuildPool, locks: Path) -> None:
    pool.close()
    with Workbench(DEVICE, MemoryStore(), lock_dir=locks, processes=1, builder="planted_builder:build") as bench:
        built = answer(bench.build(GEMM, config("a")))
    assert built[:3] == ("a", str(GEMM), "planted")


def test_a_crashing_build_names_its_signal_and_the_next_one_works(pool: BuildPool) -> None:
    crash, after = pool.submit(GEMM, config("segfault")), pool.submit(GEMM, config("after"))
    with pytest.raises(BuildFailed, match=r"build process died: signal 11 \(SIGSEGV\).*about to read address 0"):
        crash.result(PATIENCE_S)
    assert answer(after)[0] == "after"


def test_a_build_whose_process_is_killed_is_built_once_more(pool: BuildPool, tmp_path: Path) -> None:
    once, always = pool.submit(GEMM, config(str(tmp_path / "killed"))), pool.submit(GEMM, config("killed"))
    assert answer(once)[0] == str(tmp_path / "killed")
    with pytest.raises(BuildFailed, match=r"build process died: signal 9 \(SIGKILL\)"):
        always.result(PATIENCE_S)
    assert answer(pool.submit(GEMM, config("after")))[0] == "after"


def test_a_hanging_build_is_killed_at_its_time_and_the_next_one_works(pool: BuildPool) -> None:
    pool.timeout_s = 0.2
    hang = pool.submit(GEMM, config("hang"))
    pool.timeout_s = PATIENCE_S
    after = pool.submit(GEMM, config("after"))
    with pytest.raises(BuildFailed, match=r"longer than 0\.2 s"):
        hang.result(PATIENCE_S)
    assert answer(after)[0] == "after"


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("refuse", "^ptxas: too many registers$"),
        ("invalid", "knob bm is 3"),
        ("bug", "ZeroDivisionError: in the builder"),
    ],
)
def test_an_exception_of_the_builder_is_a_failed_build_in_its_words(pool: BuildPool, what: str, words: str) -> None:
    with pytest.raises(BuildFailed, match=words) as raised:
        pool.submit(GEMM, config(what)).result(PATIENCE_S)
    assert raised.value.outcome is Status.BUILD_FAILED


def test_a_fault_of_the_machine_says_nothing_of_the_config(pool: BuildPool, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_process(*_: Any, **__: Any) -> ChildProcess:
        raise OSError("Cannot allocate memory")

    with pytest.raises(BuildersUnusable, match="this machine cannot build: No space left"):
        pool.submit(GEMM, config("no space")).result(PATIENCE_S)
    monkeypatch.setattr(processes, "ChildProcess", no_process)
    pool.submit(GEMM, config("segfault")).exception(PATIENCE_S)
    with pytest.raises(BuildersUnusable, match="build process: OSError: Cannot allocate memory") as raised:
        pool.submit(GEMM, config("after")).result(PATIENCE_S)
    assert raised.value.outcome is None


def test_nothing_builds_while_the_cpu_is_being_measured(pool: BuildPool, locks: Path) -> None:
    pool.submit(GEMM, config("first")).result(PATIENCE_S)
    pool.timeout_s = 3.0
    with DeviceLock("cpu", locks):
        waiting = pool.submit(GEMM, config("second"))
        time.sleep(3.6)  # longer than the build's own timeout, which must not run while it waits
        assert not waiting.done()
    assert answer(waiting)[0] == "second"


def test_closing_kills_what_builds_and_cancels_what_waits(pool: BuildPool) -> None:
    pool.timeout_s = 300.0
    pid = answer(pool.submit(GEMM, config("first")))[3]
    building, waiting = pool.submit(GEMM, config("hang")), pool.submit(GEMM, config("never"))
    until(building.running)
    pool.close()
    assert waiting.cancelled()
    with pytest.raises(BuildFailed, match="closed"):
        building.result(0)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_abandoning_kills_what_builds_cancels_what_waits_and_builds_what_comes_next(pool: BuildPool) -> None:
    pid = answer(pool.submit(GEMM, config("first")))[3]
    building, waiting = pool.submit(GEMM, config("hang")), pool.submit(GEMM, config("never"))
    until(building.running)
    pool.abandon()
    after = pool.submit(GEMM, config("after"))
    with pytest.raises(BuildFailed, match="given up"):
        building.result(PATIENCE_S)
    built = answer(after)
    assert built[0] == "after"
    assert built[3] != pid, "the process that hung was killed"
    assert waiting.cancelled()


def test_a_build_that_waits_for_the_device_says_so(pool: BuildPool, locks: Path) -> None:
    pool.submit(GEMM, config("first")).result(PATIENCE_S)
    with DeviceLock("cpu", locks):
        waiting = pool.submit(GEMM, config("second"))
        until(lambda: bool(pool.waiting))
        assert pool.waiting == f"another process measures on it, pid {os.getpid()}"
        assert not waiting.done()
    waiting.result(PATIENCE_S)
    assert pool.waiting == ""


def test_a_child_is_busy_while_it_works_and_not_while_it_waits(pool: BuildPool, locks: Path) -> None:
    assert pool.processes == 1  # the fixture has planted the builder
    child = ChildProcess("tirgemm.tuning.build.child", ["planted_builder:build", "cpu", str(locks), ""])
    request = (GEMM, config("nap"), DEVICE, ())
    lock = DeviceLock("cpu", locks)
    waited: list[float] = []

    def hold_on(reason: str) -> None:
        if reason:
            since = time.monotonic()
            time.sleep(0.5)
            waited.append(time.monotonic() - since)
            lock.release()

    try:
        child.request(request, timeout_s=PATIENCE_S)
        alone = child.busy_s
        lock.acquire()
        started = time.monotonic()
        child.request(request, timeout_s=PATIENCE_S, on_wait=hold_on)
        elapsed = time.monotonic() - started
    finally:
        child.kill()
    assert alone > 0
    assert len(waited) == 1
    assert 0 < child.busy_s - alone <= elapsed - waited[0]


def test_a_parent_that_had_no_turn_takes_what_its_child_told_meanwhile(
    pool: BuildPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert pool.processes == 1  # the fixture has planted the builder
    gate, ahead = tmp_path / "gate", [0.0]
    monkeypatch.setattr(child_rpc, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + ahead[0]))
    child = ChildProcess("tirgemm.tuning.build.child", ["planted_builder:build", "", "", ""])

    class Stopped:
        """Asked for in each turn of the parent, which is stopped for an hour once the child has shown life."""

        def is_set(self) -> bool:
            if child.busy_s > 0 and not gate.exists():
                gate.touch()
                select.select([child._receive_fd], [], [], PATIENCE_S)
                ahead[0] = 3600.0
            return False

    try:
        request = (GEMM, config(f"behind {gate}"), DEVICE, ())
        assert child.request(request, timeout_s=PATIENCE_S, cancel=Stopped())[3] == child._process.pid
    finally:
        child.kill()


def test_a_process_that_is_ending_gives_its_builds_up(pool: BuildPool, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = ThreadPoolExecutor(1)
    ended.shutdown()  # as the interpreter does at its end, before threads such as those of the pool do
    monkeypatch.setattr(child_rpc, "_forker", ended)
    with pytest.raises(Cancelled, match="this process is ending"):
        pool.submit(GEMM, config("a")).result(PATIENCE_S)


def test_a_builder_that_cannot_be_imported_fails_the_build(locks: Path) -> None:
    with (
        BuildPool(DEVICE, 1, lock_dir=locks, builder="no_such_module:build") as pool,
        pytest.raises(BuildersUnusable, match=r"(?s)build process died: exit status 1.*no_such_module"),
    ):
        pool.submit(GEMM, config("a")).result(PATIENCE_S)


def test_processes_outlive_the_thread_that_started_the_pool(pool: BuildPool) -> None:
    thread = threading.Thread(target=pool.warm)
    thread.start()
    thread.join()
    first = answer(pool.submit(GEMM, config("a")))
    time.sleep(0.2)
    assert answer(pool.submit(GEMM, config("b")))[3] == first[3]


@pytest.fixture
def shared(tmp_path: Path, pool: BuildPool) -> Iterator[BuildProcesses]:
    assert pool.processes == 1  # the fixture has planted the builder
    processes = BuildProcesses(1, lock_dir=tmp_path / "locks", builder="planted_builder:build")
    yield processes
    processes.close()


def test_devices_that_share_processes_take_turns(shared: BuildProcesses, tmp_path: Path) -> None:
    other = DEVICE.with_(model="other")
    ended: list[str] = []
    with BuildPool(DEVICE, shared) as many, BuildPool(other, shared) as few:
        first = many.submit(GEMM, config(f"behind {tmp_path / 'gate'}"))
        later = [many.submit(GEMM, config(f"many {number}")) for number in range(4)]
        one = few.submit(GEMM, config("few"))
        for future in (first, *later, one):
            future.add_done_callback(lambda done: ended.append(answer(done)[0]))
        (tmp_path / "gate").touch()
        answers = [answer(future) for future in (first, *later, one)]
    assert len({built[3] for built in answers}) == 1, "one process"
    assert {built[2] for built in answers[:-1]} == {"planted"}
    assert answers[-1][2] == "other", "each build is for its own device"
    assert ended.index("few") <= 2, "one asker does not wait for all that another has asked for"


@pytest.fixture
def two(tmp_path: Path, pool: BuildPool) -> Iterator[BuildProcesses]:
    assert pool.processes == 1  # the fixture has planted the builder
    processes = BuildProcesses(2, lock_dir=tmp_path / "locks", builder="planted_builder:build")
    yield processes
    processes.close()


def test_what_is_built_in_idle_time_waits_for_all_that_is_asked_for(two: BuildProcesses, tmp_path: Path) -> None:
    gates = [tmp_path / f"gate {number}" for number in range(3)]
    with BuildPool(DEVICE, two, idle=True) as idle, BuildPool(DEVICE, two) as asked:
        first, second = (asked.submit(GEMM, config(f"behind {gate}")) for gate in gates[:2])
        spare = idle.submit(GEMM, config("spare"))
        third = asked.submit(GEMM, config(f"behind {gates[2]}"))
        gates[0].touch()
        until(third.running)
        assert not spare.running()
        for gate in gates:
            gate.touch()
        for future in (first, second, third, spare):
            future.result(PATIENCE_S)


def test_idle_time_is_half_of_the_processes(two: BuildProcesses, tmp_path: Path) -> None:
    gates = [tmp_path / f"gate {number}" for number in range(2)]
    with BuildPool(DEVICE, two, idle=True) as idle, BuildPool(DEVICE, two) as asked:
        first, second = (idle.submit(GEMM, config(f"behind {gate}")) for gate in gates)
        until(first.running)
        assert answer(asked.submit(GEMM, config("asked")))[0] == "asked"
        assert not second.running()
        for gate in gates:
            gate.touch()
        second.result(PATIENCE_S)


def test_processes_outlive_a_device_that_shares_them(shared: BuildProcesses) -> None:
    staying = BuildPool(DEVICE, shared)
    with BuildPool(DEVICE, shared, timeout_s=PATIENCE_S) as leaving:
        building, waiting = leaving.submit(GEMM, config("hang")), leaving.submit(GEMM, config("never"))
        theirs = staying.submit(GEMM, config("theirs"))
        until(building.running)
    assert answer(theirs)[0] == "theirs"
    with pytest.raises(BuildFailed, match="given up"):
        building.result(PATIENCE_S)
    assert answer(staying.submit(GEMM, config("next")))[0] == "next"
    assert waiting.cancelled()
    shared.close()
    with pytest.raises(BuildFailed, match="closed"):
        staying.submit(GEMM, config("late"))


def test_a_process_is_started_only_for_a_build_that_finds_none_idle(locks: Path, pool: BuildPool) -> None:
    assert pool.processes == 1  # the fixture has planted the builder
    with BuildPool(DEVICE, 2, lock_dir=locks, timeout_s=PATIENCE_S, builder="planted_builder:build") as two:
        two.warm()
        first = {answer(two.submit(GEMM, config(what)))[3] for what in "abc"}
        assert len(first) == 1
        hanging = two.submit(GEMM, config("hang"))
        two.submit(GEMM, config("d")).result(PATIENCE_S)
        assert not hanging.done(), "the other one was built beside it"


PARENT = """
import sys, time
from pathlib import Path
from tirgemm.tuning.process.child_rpc import ChildProcess
child = ChildProcess("tirgemm.tuning.build.child", ["planted_builder:build", "", "", ""])
print(child._process.pid, flush=True)
time.sleep(60)
"""


def test_a_build_process_dies_with_its_killed_parent(pool: BuildPool) -> None:
    assert pool.processes == 1  # the fixture has planted the builder
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        os.kill(child, 0)
        time.sleep(0.5)
        parent.send_signal(signal.SIGKILL)
    until(lambda: not alive(child))


def test_a_build_is_a_span_of_what_asked_for_it_and_compiling_one_of_the_child(pool: BuildPool) -> None:
    with kept_spans() as kept, spans.span("request"):
        pid = answer(pool.submit(GEMM, config("first")))[3]
        with pytest.raises(BuildFailed):
            pool.submit(GEMM, config("refuse")).result(PATIENCE_S)
    built, refused = kept.named("build", 2)
    compiled, failed = kept.named("compile", 2)
    assert kept.path(built) == ["build", "request"]
    assert kept.path(compiled) == ["compile", "build", "request"]
    assert compiled.attributes is not None
    assert compiled.attributes["process.pid"] == pid != os.getpid()
    times = [built.start_time, compiled.start_time, compiled.end_time, built.end_time]
    assert times == sorted(time or 0 for time in times)
    for span in (refused, failed):
        assert span.attributes is not None
        assert span.attributes["error.type"] == "BuildFailed"
