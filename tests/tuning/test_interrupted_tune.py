"""``tirgemm tune`` as a process: waiting for a device that another process measures on, and Ctrl-C at every stage."""

from __future__ import annotations

import os
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tirgemm.artifact import Signer, Trust, read
from tirgemm.detect import device
from tirgemm.gemm import Gemm
from tirgemm.tuning.process.locks import DeviceLock
from tirgemm.tuning.records import Status
from tirgemm.tuning_db import Database, SqlStore

GEMM = "19x23x29:f32:nt"  # built in a tenth of a second
CPU = device("cpu")
# A guard against a hang, not a claim: every step is waited for by what it prints.
PATIENCE = 300.0
# SIGINT may be ignored where the tests run in the background; an ignored signal stays so across exec.
RUN = (
    "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); "
    "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
)


# What a cell of a notebook does whose user interrupts it at the third candidate.
CELL = """
import os, signal, sys, types, warnings
import numpy as np
shell = types.ModuleType("IPython")
shell.get_ipython = type("ZMQInteractiveShell", (), {})
sys.modules["IPython"] = shell
signal.signal(signal.SIGINT, signal.default_int_handler)
import tirgemm

def on_event(event):
    if event.kind == "candidate" and event.standing.tried == 3:
        os.kill(os.getpid(), signal.SIGINT)

with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    kernel = tirgemm.tune("19x23x29:f32:nt", "cpu", budget=tirgemm.Budget(trials=4000, seconds=3600), on_event=on_event)
print("warned:", *(w.category.__name__ for w in warned))
print("kernel:", kernel.record.interrupted, kernel.record.certificate.passed, kernel.record.trials >= 3)
a, b = np.ones((19, 29), np.float32), np.ones((23, 29), np.float32)
print("called:", bool((kernel(a, b) == 29).all()))
print("handler:", signal.getsignal(signal.SIGINT) is signal.default_int_handler)
"""


class Tune:
    """A running ``tirgemm tune`` that would go on for an hour, with its stderr line by line."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.out = folder / "kernel.tirgemm"
        arguments = ["--device", "cpu", "--trials", "4000", "--seconds", "3600", "--data", str(folder / "data")]
        arguments += ["--lock-dir", str(folder / "locks"), "--output", str(self.out)]
        self.process = subprocess.Popen(
            [sys.executable, "-c", RUN, "-m", "tirgemm.service.cli", "tune", GEMM, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[str] = []
        self._queue: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def wait_for(self, wanted: Callable[[str], object]) -> str:
        """The first line from now on that is ``wanted``."""
        while True:
            line = self._queue.get(timeout=PATIENCE)
            assert line, f"it ended instead: {self.lines}"
            if wanted(line):
                return line

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def ended(self) -> tuple[int, str]:
        """Exit code and stdout."""
        assert self.process.stdout is not None
        out = self.process.stdout.read()
        return self.process.wait(PATIENCE), out

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))
            self._queue.put(line)
        self._queue.put("")


@pytest.fixture
def tune(tmp_path: Path) -> Iterator[Callable[[], Tune]]:
    started: list[Tune] = []

    def start() -> Tune:
        started.append(Tune(tmp_path))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.wait()


@contextmanager
def measuring(folder: Path) -> Iterator[None]:
    """This process holds the device, as one that measures does."""
    with DeviceLock(CPU.lock_key, folder / "locks"):
        yield


def tried(line: str) -> int:
    """How many candidates a line of progress says were tried."""
    match = re.search(r"(\d+) of 4000", line)
    return int(match[1]) if match else 0


def test_a_search_waits_aloud_goes_on_and_ends_at_ctrl_c_with_the_best_so_far_certified_and_written(
    tune: Callable[[], Tune], tmp_path: Path
) -> None:
    with measuring(tmp_path):
        run = tune()
        run.wait_for(lambda line: "waiting for the device (another process measures on it, pid " in line)
    run.wait_for(lambda line: "building the default kernel" in line)
    run.wait_for(lambda line: tried(line) >= 3)
    run.interrupt()
    told = run.wait_for(lambda line: "stopping: selecting the best of" in line)
    assert "press Ctrl-C again to drop it" in told
    code, out = run.ended()
    assert code == 130
    assert str(run.out) in out
    assert "certified" in out
    assert all(line.isprintable() for line in run.lines), "a pipe gets no control characters"
    assert run.lines[-1].split("  ")[-1].startswith("done, the kernel takes ")
    with Database.embedded(tmp_path / "data") as database:
        store = SqlStore(database)
        record = store.kernel(Gemm.parse(GEMM), CPU.key, "sustained")
        kept = [c for c in store.candidates(Gemm.parse(GEMM), CPU.key, "sustained") if c.status is not Status.PRUNED]
    assert record is not None
    assert (record.role, record.interrupted, record.trials) == ("tuned", True, len(kept))
    assert len(kept) >= 3
    assert f"interrupted after {len(kept)} of 4000 candidates; the same command goes on from there" in out
    key = Signer.load_or_create(tmp_path / "data" / "signing.key").public
    manifest = read(run.out, Trust.of(key)).manifest
    assert manifest.kernel_sha256 == record.kernel_sha256
    assert manifest.certificate is not None
    assert manifest.certificate["passed"]


def test_a_second_ctrl_c_drops_it_and_leaves_nothing_half_written(tune: Callable[[], Tune], tmp_path: Path) -> None:
    run = tune()
    run.wait_for(lambda line: tried(line) >= 2)
    with measuring(tmp_path):  # what selects must wait
        run.interrupt()
        run.wait_for(lambda line: "press Ctrl-C again" in line)
        run.interrupt()
        code, out = run.ended()
    assert (code, out) == (130, "")
    assert run.lines[-1] == "error: interrupted"
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == []
    with Database.embedded(tmp_path / "data") as database:
        kept = SqlStore(database).candidates(Gemm.parse(GEMM), CPU.key, "sustained")
    assert len(kept) >= 2, "the records stay"


def test_ctrl_c_before_the_first_kernel_says_that_there_is_none_and_writes_nothing(
    tune: Callable[[], Tune], tmp_path: Path
) -> None:
    with measuring(tmp_path):
        run = tune()
        run.wait_for(lambda line: "waiting for the device" in line)
        run.interrupt()
        run.wait_for(lambda line: "stopping: no kernel is certified yet, so that none will be written" in line)
        code, out = run.ended()
    assert (code, out) == (130, "")
    assert re.fullmatch(rf"error: tuning of {GEMM} was stopped before its first kernel was certified", run.lines[-1])
    assert not run.out.exists()


def test_an_interrupted_notebook_cell_gets_the_best_so_far_with_a_warning(tmp_path: Path) -> None:
    environment = os.environ | {"XDG_DATA_HOME": str(tmp_path), "TIRGEMM_LOCK_DIR": str(tmp_path / "locks")}
    done = subprocess.run(
        [sys.executable, "-c", CELL], env=environment, capture_output=True, text=True, timeout=2 * PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[-4:] == ["warned: SearchInterrupted", "kernel: True True True", "called: True", "handler: True"]
    assert all(line.isprintable() for line in lines)
    told = [line.partition(" s  ")[2] for line in lines[:-4]]
    assert told[0] == f"{GEMM}: starting", "progress shows by itself"
    assert any(line.startswith("stopping: selecting the best of") for line in told)
    assert "interrupt again to drop it" in done.stdout
    assert told[-1].startswith("done, the kernel takes ")
