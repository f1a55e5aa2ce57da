"""The measuring process's life as ``Measurer`` decides it: what a cancel costs, and when another is started."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tirgemm.artifact import Signer
from tirgemm.device import Device
from tirgemm.errors import Cancelled, DeviceUnavailable
from tirgemm.tuning.measure import Measurer, Verification
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


def test_a_process_that_died_is_started_again_by_warming(graced: Measurer, processes: Processes) -> None:
    graced.warm()
    graced.warm()
    assert len(processes.started) == 1
    processes.started[0].kill()
    graced.warm()
    assert [each.alive for each in processes.started] == [False, True]
