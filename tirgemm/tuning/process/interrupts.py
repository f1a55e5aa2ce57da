"""Ctrl-C during a search: the first press ends it with the best kernel so far, the second drops it."""

from __future__ import annotations

import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol

from tirgemm._terminal.progress_view import both, in_notebook, python_view
from tirgemm.errors import Interrupted
from tirgemm.events import EventHandler
from tirgemm.progress import Progress

GRACE_SECONDS = 0.5
FORCED_EXIT_SECONDS = 1.0


class SearchInterrupted(UserWarning):
    """A search was ended by Ctrl-C: what it returned is the best kernel until then."""


class Flag(Protocol):
    """What work asks now and then: whether it is to be given up. A ``threading.Event`` is one."""

    def is_set(self) -> bool: ...


class Delayed:
    """A Flag that is set once ``flag`` has been seen set for ``seconds``."""

    def __init__(self, flag: Flag, seconds: float) -> None:
        self._flag = flag
        self._seconds = seconds
        self._seen: float | None = None

    def is_set(self) -> bool:
        if not self._flag.is_set():
            return False
        self._seen = time.monotonic() if self._seen is None else self._seen
        return time.monotonic() - self._seen >= self._seconds


class StopSignal:
    """The Flag of one tuning: set once ``cancel`` is, or, while it searches, ``stop``.

    ``stop`` counts from ``grace_s`` seconds on: what is measured by then is kept, and a measuring process that is
    killed costs more than that to start again. ``finishing`` is set when the search is over: from then on only
    ``cancel`` counts.
    """

    def __init__(self, cancel: threading.Event, stop: threading.Event, grace_s: float = GRACE_SECONDS) -> None:
        self.cancel = cancel
        self.stop = stop
        self.finishing = False
        self._stopped = Delayed(stop, grace_s)

    @property
    def requested(self) -> bool:
        """Whether either is set: no new work is begun."""
        return self.cancel.is_set() or self.stop.is_set()

    @property
    def stopping(self) -> bool:
        """Whether the search is to end with the best kernel so far."""
        return self.stop.is_set() and not self.cancel.is_set()

    def is_set(self) -> bool:
        return self.cancel.is_set() or (not self.finishing and self._stopped.is_set())


@contextmanager
def stop_on_interrupt(
    stop: threading.Event,
    acknowledge: Callable[[], None],
    *,
    force_exit: Callable[[], None] | None = None,
    at_once: bool = False,
) -> Iterator[None]:
    """Within the block the first Ctrl-C calls ``acknowledge`` and sets ``stop``; the second, with ``at_once`` the first
    too, raises KeyboardInterrupt.

    Does nothing outside the main thread, and where Ctrl-C would not raise KeyboardInterrupt: an application that
    handles SIGINT keeps its own handler. ``acknowledge`` is called from a thread, at once, even while the main thread
    is inside a library; it must not raise. ``force_exit`` is called a second after a second Ctrl-C that the main thread
    has not heard.
    """
    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    presses, free = 0, 0 if at_once else 1

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal presses
        presses += 1
        stop.set()
        if presses > free:
            signal.default_int_handler(number, frame)

    watcher = _Watcher(stop, acknowledge, force_exit)
    signal.signal(signal.SIGINT, handle)
    try:
        with watcher:
            yield
    except Exception as error:
        if presses > free:  # what a library has made of one in its callback
            raise KeyboardInterrupt from error
        raise
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if presses > free:  # one that a library's callback has swallowed
        raise KeyboardInterrupt


@contextmanager
def interruptible_tuning(
    title: str, progress: bool | None, on_event: EventHandler | None, stop: threading.Event | None
) -> Iterator[tuple[EventHandler, threading.Event]]:
    """A tuning that a Python caller waits for: the event handler and the ``stop`` to run it with.

    Progress is shown as ``python_view`` says. Where the caller gave no ``stop``, Ctrl-C (in a notebook: interrupt) sets
    one, and the block's end warns of it with SearchInterrupted; KeyboardInterrupt where there was no kernel to end
    with.
    """
    with python_view(title, progress) as view:
        tell = both(view, on_event)
        if stop is not None:
            yield tell, stop
            return
        stop = threading.Event()
        try:
            again = "interrupt again" if in_notebook() else "press Ctrl-C again"
            with stop_on_interrupt(stop, lambda: view.say(acknowledgement(view.tracker.progress, again))):
                yield tell, stop
        except Interrupted as error:
            raise KeyboardInterrupt(str(error)) from error
    if stop.is_set():
        # The frames between: this generator, contextlib's, and the function that was called.
        warnings.warn(
            f"the search for {title} was interrupted: its kernel is the best of what was measured until then",
            SearchInterrupted,
            stacklevel=4,
        )


def acknowledgement(progress: Progress, again: str = "press Ctrl-C again") -> str:
    """What the first Ctrl-C is answered with; ``again`` says how to do it a second time."""
    if not progress.measured:
        return "stopping: no kernel is certified yet, so that none will be written"
    return f"stopping: selecting the best of {progress.measured} measured; {again} to drop it"


class _Watcher:
    """A thread that hears of SIGINT from the C handler itself, through a pipe (``signal.set_wakeup_fd``)."""

    def __init__(
        self, stop: threading.Event, acknowledge: Callable[[], None], force_exit: Callable[[], None] | None
    ) -> None:
        self._stop = stop
        self._acknowledge = acknowledge
        self._force_exit = force_exit
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="tirgemm-interrupt", daemon=True)

    def __enter__(self) -> None:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._before = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(self._before)
        self._closed.set()
        os.close(self._writer)
        self._thread.join()
        os.close(self._reader)

    def _watch(self) -> None:
        presses = 0
        while number := os.read(self._reader, 1):
            if self._before != -1:  # whoever listened before still hears of it
                os.write(self._before, number)
            if number[0] != signal.SIGINT:
                continue
            presses += 1
            if presses == 1:
                self._stop.set()
                self._acknowledge()
            elif self._force_exit is not None and not self._closed.wait(FORCED_EXIT_SECONDS):
                self._force_exit()
