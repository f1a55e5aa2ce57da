"""The measuring process's life as ``Measurer`` decides it: what a cancel costs, and when another is started."""

from __future__ import annotations

import errno
import pickle
import re
import sys
import threading
from collections.abc import Callable, Iterator
from enum import IntEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tirgemm.artifact import Signer, Trust
from tirgemm.device import Device
from tirgemm.errors import Cancelled, DeviceUnavailable, DoesNotFit, LaunchFailed
from tirgemm.tuning.driver import cuda
from tirgemm.tuning.measure import MeasurementCrashed, Measurer, Verification, child
from tirgemm.tuning.measure.requests import Request
from tirgemm.tuning.process.child_rpc import ChildDied, ChildProcess
from tirgemm.tuning.process.interrupts import Flag

DEVICE = Device("cpu", "x86-64-v3", "planted", 1, 2**30, uuid="cpu-planted")
RIGHT = Verification(True, 0.0, (), "planted", "0" * 64)
LONG_S = 1e6


class Planted:
    """A measuring process that does what the test says while it measures, and dies of a cancel as a real one does."""

    busy_s = 0.0

    def __init__(self, during: Callable[[], object]) -> None:
        self.alive = True
        self.asked = 0
        self._during = during

    def request(self, message: object, *, cancel: Flag | None = None, **_: Any) -> tuple[Verification, None]:
        del message
        self.asked += 1
        self._during()
        if cancel is not None and cancel.is_set():
            self.kill()
            raise Cancelled("killed")
        return RIGHT, None

    def kill(self) -> None:
        self.alive = False


class Processes:
    """Starts planted processes; ``cancel`` is set while one measures."""

    def __init__(self) -> None:
        self.started: list[Planted] = []
        self.cancel = threading.Event()

    def __call__(self, _device: Device, _lock_dir: Path) -> Planted:
        self.started.append(Planted(self.cancel.set))
        return self.started[-1]


@pytest.fixture
def processes() -> Processes:
    return Processes()


@pytest.fixture
def graced(processes: Processes, tmp_path: Path) -> Iterator[Measurer]:
    with Measurer(DEVICE, Signer.generate().public, lock_dir=tmp_path, start=processes, grace_s=LONG_S) as measurer:
        yield measurer


def test_what_ends_within_the_grace_of_a_cancel_is_answered_and_its_process_lives(
    graced: Measurer, processes: Processes
) -> None:
    assert graced.verify(b"", cancel=processes.cancel) == RIGHT
    assert processes.cancel.is_set()
    assert processes.started[0].alive


def test_without_a_grace_a_cancel_kills(processes: Processes, tmp_path: Path) -> None:
    measurer = Measurer(DEVICE, Signer.generate().public, lock_dir=tmp_path, start=processes)
    with measurer, pytest.raises(Cancelled, match="killed"):
        measurer.verify(b"", cancel=processes.cancel)
    assert not processes.started[0].alive


def test_what_was_cancelled_before_is_not_asked_for_and_kills_nothing(graced: Measurer, processes: Processes) -> None:
    graced.warm()
    processes.cancel.set()
    with pytest.raises(Cancelled):
        graced.verify(b"", cancel=processes.cancel)
    assert [(each.alive, each.asked) for each in processes.started] == [(True, 0)]


def test_a_device_that_cannot_be_opened_is_unusable_until_a_new_process_opens_it(tmp_path: Path) -> None:
    faults = [DeviceUnavailable("GPU-1 cannot be opened"), None]
    started: list[Planted] = []

    def fail_once() -> None:
        if (fault := faults.pop(0)) is not None:
            raise fault

    def start(_device: Device, _lock_dir: Path) -> Planted:
        started.append(Planted(fail_once))
        return started[-1]

    with Measurer(DEVICE, Signer.generate().public, lock_dir=tmp_path, start=start) as measurer:

        def unusable() -> bool:
            return measurer.unusable

        assert not unusable()
        with pytest.raises(DeviceUnavailable):
            measurer.verify(b"")
        assert unusable()
        measurer.require_usable()
        assert not unusable()
    assert [each.asked for each in started] == [1, 1]


def test_a_device_whose_process_does_not_start_cannot_be_used(tmp_path: Path) -> None:
    def start(_device: Device, _lock_dir: Path) -> Planted:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    with (
        Measurer(DEVICE, Signer.generate().public, lock_dir=tmp_path, start=start) as measurer,
        pytest.raises(DeviceUnavailable, match=r"does not start: .*temporarily unavailable"),
    ):
        measurer.require_usable()


@pytest.mark.parametrize("kills", [1, 2])
def test_a_process_that_is_killed_is_asked_once_more_and_says_nothing_of_the_kernel(kills: int, tmp_path: Path) -> None:
    started: list[Planted] = []

    def die() -> None:
        if len(started) <= kills:
            started[-1].kill()
            raise ChildDied("signal 9 (SIGKILL)", "")

    def start(_device: Device, _lock_dir: Path) -> Planted:
        started.append(Planted(die))
        return started[-1]

    with Measurer(DEVICE, Signer.generate().public, lock_dir=tmp_path, start=start) as measurer:
        if kills == 1:
            assert measurer.verify(b"") == RIGHT
        else:
            with pytest.raises(DoesNotFit, match=r"signal 9 \(SIGKILL\): where memory is short") as caught:
                measurer.verify(b"")
            assert caught.value.outcome is None
    assert [each.asked for each in started] == [1, 1]


def test_a_gpu_without_memory_is_no_fault_of_a_kernel_and_ends_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_nbytes: int) -> tuple[IntEnum]:
        return (status,)

    bindings = SimpleNamespace(driver=SimpleNamespace(cuMemAlloc=refuse))
    monkeypatch.setitem(sys.modules, "cuda.bindings", bindings)
    Result = IntEnum("Result", {"CUDA_ERROR_OUT_OF_MEMORY": 2, "CUDA_ERROR_ILLEGAL_ADDRESS": 700})
    status = Result["CUDA_ERROR_OUT_OF_MEMORY"]
    with pytest.raises(DoesNotFit, match=r"^cuMemAlloc answers CUDA_ERROR_OUT_OF_MEMORY \(2\): end what") as caught:
        cuda.Memory(64)
    assert isinstance(caught.value, cuda.CudaError), "a GPU that cannot be opened for it is tried again"
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    status = Result["CUDA_ERROR_ILLEGAL_ADDRESS"]
    with pytest.raises(cuda.CudaError) as broken:
        cuda.Memory(64)
    assert not isinstance(broken.value, DoesNotFit)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (LaunchFailed("no 6144 bytes of workspace on cuda:0: CUDA_ERROR_OUT_OF_MEMORY (2)"), DoesNotFit),
        (LaunchFailed("no 6144 bytes of workspace"), DoesNotFit),
        (MemoryError("Unable to allocate 2.00 GiB"), DoesNotFit),
        (LaunchFailed("cuLaunchKernelEx failed: CUDA_ERROR_INVALID_VALUE (1)"), MeasurementCrashed),
    ],
)
def test_memory_that_is_not_to_be_had_is_no_fault_of_a_kernel(
    error: Exception, kind: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error

    process = child._Process(cast("Any", SimpleNamespace(alive=lambda: None, waiting=lambda _: None)))
    monkeypatch.setattr(process, "_load", lambda *_: SimpleNamespace(gemm="7x5x3:f32:nn"))
    monkeypatch.setattr(process, "_work", fail)
    with pytest.raises(kind, match=re.escape(str(error))):
        process(Request(DEVICE, Trust.of(), tmp_path, b""))


def test_a_process_gives_back_what_a_request_held_that_failed() -> None:
    failing = ChildProcess("tests.tuning.measure.failing_child")
    try:
        with pytest.raises(DoesNotFit):
            failing.request("race", timeout_s=60.0)
        assert not failing.request("held", timeout_s=60.0), "the same race with shared operands would find no memory"
    finally:
        failing.kill()


def test_a_process_that_died_is_started_again_by_warming(graced: Measurer, processes: Processes) -> None:
    graced.warm()
    graced.warm()
    assert len(processes.started) == 1
    processes.started[0].kill()
    graced.warm()
    assert [each.alive for each in processes.started] == [False, True]
