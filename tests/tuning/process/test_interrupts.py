"""Ctrl-C during a search: when it is heard, what it ends, and whose signal handler it is."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import threading
import time
import warnings
from types import SimpleNamespace
from typing import Any

import pytest

from tests.waiting import PATIENCE_S
from tirgemm.errors import Cancelled, Interrupted
from tirgemm.events import Done, Event, FallbackStored, Phase
from tirgemm.progress import Progress
from tirgemm.tuning.process import interrupts
from tirgemm.tuning.process.interrupts import (
    SearchInterrupted,
    StopSignal,
    acknowledgement,
    interruptible_tuning,
    stop_on_interrupt,
)


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def press_unheard() -> None:
    """A press that the C handler hears and the main thread does not, as one that is inside a library."""
    listener = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(listener)
    os.write(listener, bytes([signal.SIGINT]))


def test_the_first_press_is_acknowledged_and_the_block_goes_on() -> None:
    stop, said = threading.Event(), threading.Event()
    with stop_on_interrupt(stop, said.set):
        press()
        assert stop.wait(PATIENCE_S)
        assert said.wait(PATIENCE_S)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_press_is_acknowledged_while_the_main_thread_is_inside_a_library() -> None:
    threads: queue.SimpleQueue[threading.Thread] = queue.SimpleQueue()
    stop = threading.Event()
    with stop_on_interrupt(stop, lambda: threads.put(threading.current_thread())):
        press_unheard()
        assert threads.get(timeout=PATIENCE_S) is not threading.main_thread()
        assert stop.is_set()


def test_the_second_press_interrupts() -> None:
    def work() -> None:
        stop = threading.Event()
        with stop_on_interrupt(stop, lambda: None):
            press()
            assert stop.wait(PATIENCE_S)
            press()
            time.sleep(PATIENCE_S)
            raise AssertionError("not interrupted")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize(("presses", "error"), [(1, OSError), (2, KeyboardInterrupt)])
def test_a_second_press_of_which_a_library_makes_an_error_of_its_own_is_one(
    presses: int, error: type[BaseException]
) -> None:
    def work() -> None:
        stop = threading.Event()
        with stop_on_interrupt(stop, lambda: None):
            for _ in range(presses):
                with contextlib.suppress(KeyboardInterrupt):
                    press()
                    assert stop.wait(PATIENCE_S)
            raise OSError("user-defined function raised exception")

    with pytest.raises(error):
        work()


def test_a_second_press_that_a_callback_swallows_is_not_lost() -> None:
    def work() -> None:
        stop = threading.Event()
        with stop_on_interrupt(stop, lambda: None):
            press()
            assert stop.wait(PATIENCE_S)
            with contextlib.suppress(KeyboardInterrupt):
                press()
                time.sleep(PATIENCE_S)

    with pytest.raises(KeyboardInterrupt):
        work()


@pytest.mark.parametrize("made", [None, RuntimeError("parallel_for_dynamic error")])
def test_the_first_press_interrupts_at_once_where_that_is_asked_for(made: Exception | None) -> None:
    """Also one that a library swallows, or makes an error of its own of."""

    def work() -> None:
        stop, said = threading.Event(), threading.Event()
        with stop_on_interrupt(stop, said.set, at_once=True):
            with contextlib.suppress(KeyboardInterrupt):
                press()
                time.sleep(PATIENCE_S)
            assert said.wait(PATIENCE_S)
            if made is not None:
                raise made

    with pytest.raises(KeyboardInterrupt):
        work()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_press_that_the_main_thread_does_not_hear_is_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts, "FORCED_EXIT_SECONDS", 0.01)
    forced = threading.Event()
    with stop_on_interrupt(threading.Event(), lambda: None, force_exit=forced.set):
        press_unheard()
        assert not forced.wait(0.1), "the first is not forced"
        press_unheard()
        assert forced.wait(PATIENCE_S)


def test_a_handler_of_the_application_s_own_stays() -> None:
    heard: list[int] = []

    def own(number: int, _frame: Any) -> None:
        heard.append(number)

    before = signal.signal(signal.SIGINT, own)
    stop = threading.Event()
    try:
        with stop_on_interrupt(stop, lambda: None):
            assert signal.getsignal(signal.SIGINT) is own
            press()
    finally:
        signal.signal(signal.SIGINT, before)
    assert heard == [signal.SIGINT]
    assert not stop.is_set()


def test_another_thread_installs_nothing() -> None:
    actual: list[Any] = []

    def work() -> None:
        with stop_on_interrupt(threading.Event(), lambda: None):
            actual.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(PATIENCE_S)
    assert actual == [signal.default_int_handler]


def test_whoever_listened_to_signals_before_still_hears_them_and_again_afterwards() -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer)
    try:
        stop = threading.Event()
        with stop_on_interrupt(stop, lambda: None):
            press()
            assert stop.wait(PATIENCE_S)
            assert os.read(reader, 1) == bytes([signal.SIGINT])
        assert signal.set_wakeup_fd(before) == writer
    finally:
        signal.set_wakeup_fd(before)
        os.close(reader)
        os.close(writer)


def test_work_ends_at_once_when_cancelled_and_after_its_grace_when_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(interrupts, "time", SimpleNamespace(monotonic=lambda: now[0]))
    cancel, stop = threading.Event(), threading.Event()
    end = StopSignal(cancel, stop, grace_s=0.05)
    assert [end.is_set(), end.requested, end.stopping] == [False, False, False]
    stop.set()
    assert (end.requested, end.stopping) == (True, True)
    assert not end.is_set()
    now[0] = 0.04
    assert not end.is_set()
    now[0] = 0.05
    assert end.is_set()
    end.finishing = True
    assert not end.is_set(), "what finishes a stopped search is not stopped"
    cancel.set()
    assert end.is_set()
    assert not end.stopping


def test_what_a_press_is_answered_with() -> None:
    assert acknowledgement(Progress(Phase.MEASURING, measured=12)) == (
        "stopping: selecting the best of 12 measured; press Ctrl-C again to drop it"
    )
    assert "no kernel is certified yet" in acknowledgement(Progress(Phase.DEFAULT))


def test_a_python_caller_is_warned_that_the_search_was_interrupted(capsys: pytest.CaptureFixture[str]) -> None:
    heard: list[Event] = []
    fallback, done = FallbackStored(), Done()

    def work() -> None:
        with interruptible_tuning("1x2x3", None, heard.append, None) as (tell, stop):
            tell(fallback)
            press()
            assert stop.wait(PATIENCE_S)
            tell(done)

    with pytest.warns(SearchInterrupted, match="the search for 1x2x3 was interrupted") as warned:
        work()
    assert heard == [fallback, done]
    assert capsys.readouterr().err.endswith(
        "1x2x3: stopping: selecting the best of 1 measured; press Ctrl-C again to drop it\n"
    )
    assert warned[0].filename == __file__, "it names the caller's line"


def test_a_python_caller_whose_search_had_no_kernel_is_interrupted() -> None:
    def work() -> None:
        with interruptible_tuning("1x2x3", None, None, None) as (_, stop):
            press()
            assert stop.wait(PATIENCE_S)
            raise Interrupted("stopped before its first kernel was certified")

    with pytest.raises(KeyboardInterrupt, match="before its first kernel"):
        work()


def test_a_caller_who_stops_the_search_keeps_ctrl_c() -> None:
    own = threading.Event()
    own.set()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with interruptible_tuning("1x2x3", None, None, own) as (_, stop):
            assert stop is own
            assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with pytest.raises(Cancelled), interruptible_tuning("1x2x3", None, None, None):
        raise Cancelled("by a colleague")
