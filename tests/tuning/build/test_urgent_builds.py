"""What a first answer waits for goes before a search's builds, to a process that has built before. No TVM."""

from __future__ import annotations

import fcntl
import os
import resource
from concurrent.futures import Future
from pathlib import Path

import pytest

from tests.helpers.fake_workbench import FakeBench
from tests.tuning.build.planted_builder import BUILDER, DEVICE, GEMM, answer, config
from tests.tuning.tune.small_search import tuning
from tests.waiting import until
from tirgemm.config import Config
from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device
from tirgemm.tuning.build.binary import Binary
from tirgemm.tuning.build.child import REHEARSED as REHEARSED_GEMM
from tirgemm.tuning.build.pool import BuildPool
from tirgemm.tuning.build.processes import URGENT_IN_A_ROW, BuildProcesses
from tirgemm.tuning.process.child_rpc import Channel

PLANTED = "planted_builder:build"


@pytest.fixture(autouse=True)
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "planted_builder.py").write_text(BUILDER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


@pytest.fixture
def locks(tmp_path: Path) -> Path:
    return tmp_path / "locks"


def test_an_urgent_build_goes_before_all_that_was_asked_for_earlier(tmp_path: Path, locks: Path) -> None:
    ended: list[str] = []
    with BuildPool(DEVICE, 1, lock_dir=locks, builder=PLANTED) as pool:
        first = pool.submit(GEMM, config(f"behind {tmp_path / 'gate'}"))
        later = [pool.submit(GEMM, config(f"later {number}")) for number in range(3)]
        urgent = pool.submit(GEMM, config("urgent"), urgent=True)
        for future in (*later, urgent):
            future.add_done_callback(lambda done: ended.append(answer(done)[0]))
        until(first.running)
        (tmp_path / "gate").touch()
        until(lambda: len(ended) == 4)
    assert ended[0] == "urgent"


def test_urgent_builds_leave_others_a_turn(tmp_path: Path, locks: Path) -> None:
    ended: list[str] = []
    processes = BuildProcesses(1, lock_dir=locks, builder=PLANTED)
    try:
        with BuildPool(DEVICE, processes) as searching, BuildPool(DEVICE.with_(model="other"), processes) as answering:
            first = searching.submit(GEMM, config(f"behind {tmp_path / 'gate'}"))
            until(first.running)
            asked = [searching.submit(GEMM, config(f"asked {number}")) for number in range(2)]
            urgent = [
                answering.submit(GEMM, config(f"urgent {number}"), urgent=True) for number in range(3 * URGENT_IN_A_ROW)
            ]
            for future in (*asked, *urgent):
                future.add_done_callback(lambda done: ended.append(answer(done)[0]))
            (tmp_path / "gate").touch()
            until(lambda: len(ended) == len(asked) + len(urgent))
    finally:
        processes.close()
    places = [ended.index(f"asked {number}") for number in range(2)]
    assert places == [URGENT_IN_A_ROW, 2 * URGENT_IN_A_ROW + 1]


REHEARSED = """
import os
def build(gemm, config, device):
    with open(os.environ["BUILT"], "a") as file:
        print(os.getpid(), gemm, device.arch, file=file)
    return "", "", "", os.getpid()
"""


def test_a_process_that_nothing_is_asked_of_rehearses_a_build(
    tmp_path: Path, locks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rehearsed_builder.py").write_text(REHEARSED)
    built = tmp_path / "built"
    monkeypatch.setenv("BUILT", str(built))
    gpu = named_device("sm_90a")
    processes = BuildProcesses(1, lock_dir=locks, builder="rehearsed_builder:build", rehearsed=gpu)
    try:
        processes.warm()
        until(built.exists)
        with BuildPool(gpu, processes) as pool:
            process = answer(pool.submit(GEMM, config("asked")))[3]
        rehearsed, asked = built.read_text().splitlines()
        assert rehearsed == f"{process} {REHEARSED_GEMM} sm_90a"
        assert asked == f"{process} {GEMM} sm_90a"
    finally:
        processes.close()


def test_a_request_is_seen_on_a_descriptor_of_any_number() -> None:
    """A process inherits the numbers of its parent, which may have thousands open."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limits[0], 1100), limits[1]))
    here, there = os.pipe()
    high = fcntl.fcntl(here, fcntl.F_DUPFD, 1050)
    try:
        channel = Channel(high, there)
        assert not channel.has_request
        os.write(there, b"request")
        assert channel.has_request
    finally:
        for fd in (here, there, high):
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


class Heard(FakeBench):
    """Notes how urgent each build was."""

    def __init__(self) -> None:
        super().__init__()
        self.urgent: list[bool] = []

    def build(self, gemm: Gemm, config: Config, *, urgent: bool = False) -> Future[Binary]:
        self.urgent.append(urgent)
        return super().build(gemm, config, urgent=urgent)


def test_the_fallback_is_what_is_urgent() -> None:
    bench = Heard()
    tuned = tuning(bench, trials=4)
    tuned.fallback()
    assert bench.urgent == [True]
    tuned.run()
    assert len(bench.urgent) > 1
    assert not any(bench.urgent[1:])
