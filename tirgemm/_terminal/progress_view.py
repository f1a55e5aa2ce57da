"""Shows a ``ProgressTracker``: redrawn in place on a terminal; plain lines in pipes, logs and notebooks."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import IO, TYPE_CHECKING

from tirgemm.events import Event, EventHandler, FallbackStored, KernelSelected, Phase
from tirgemm.progress import ProgressTracker
from tirgemm.status import Status

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

LINE_SECONDS = 2.0
LOG_SECONDS = 10.0
# Events that end what was being done: the next one says what is done instead.
_FOLLOWED = (FallbackStored, KernelSelected)
_STATUS_STYLES = {
    Status.MEASURED: "green",
    Status.BUILD_FAILED: "yellow",
    Status.WRONG: "red",
    Status.TIMED_OUT: "yellow",
    Status.CRASHED: "red",
    Status.PRUNED: "dim",
}


class ProgressView:
    """Takes a tuning's events while it is open. This one shows nothing but what is said; others show them, too."""

    def __init__(self, tracker: ProgressTracker, write: Callable[[str], None]) -> None:
        self.tracker = tracker
        self._write = write

    def __call__(self, event: Event) -> None:
        self.tracker(event)

    def say(self, line: str) -> None:
        """Show a line of its own at once; safe from any thread."""
        self._write(line)

    def __enter__(self) -> ProgressView:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        pass


class LineView(ProgressView):
    """One line at every change of phase, and one every ``interval`` seconds while events come.

    Where no event comes for the first ``interval`` seconds, a line says what is waited for. Building and measuring
    alternate many times a minute: they count as one phase. ``write`` gets a line without its end.
    """

    def __init__(
        self,
        tracker: ProgressTracker,
        write: Callable[[str], None],
        *,
        interval: float = LINE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(tracker, write)
        self._interval = interval
        self._clock = clock
        self._lock = threading.Lock()
        self._first = threading.Timer(interval, self._show)
        self._first.daemon = True
        self._shown: Phase | None = None
        self._told_at = 0.0
        self._line = ""

    def __call__(self, event: Event) -> None:
        super().__call__(event)
        self._first.cancel()
        if not isinstance(event, _FOLLOWED):
            self._show()

    def __enter__(self) -> ProgressView:
        self._first.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._first.cancel()

    def _show(self) -> None:
        with self._lock:
            now, progress = self._clock(), self.tracker.progress
            phase = Phase.MEASURING if progress.searching else progress.phase
            late = now - self._told_at >= self._interval
            if str(progress) == self._line or (phase is self._shown and not late):
                return
            self._shown, self._told_at, self._line = phase, now, str(progress)
            self._write(self._line)


class LiveView(ProgressView):
    """Redraws the state in place while it changes: for a terminal. Needs rich, which the ``client`` extra brings."""

    def __init__(self, tracker: ProgressTracker, console: Console) -> None:
        from rich.live import Live

        super().__init__(tracker, partial(console.print, markup=False, highlight=False, soft_wrap=True))
        self._live: Live = Live(get_renderable=self._draw, console=console, refresh_per_second=8, transient=True)

    def __enter__(self) -> ProgressView:
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._live.stop()

    def _draw(self) -> RenderableType:
        return picture(self.tracker)


def picture(tracker: ProgressTracker) -> RenderableType:
    """The state as rich draws it: phase and times, a bar, the best so far, what became of the candidates."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    now = tracker.progress
    left = f", at most {now.seconds_left:.0f} s left" if now.seconds_left is not None else ""
    head = Text.assemble((tracker.title, "bold"), f"  {now.activity}  {now.elapsed:.0f} s{left}")
    grid = Table.grid(padding=(0, 2))
    if now.total:
        grid.add_row("candidates", ProgressBar(now.total, now.done, width=30))
    name, figures = now.figures
    if figures:
        grid.add_row(name, Text(figures, "bold"))
        grid.add_row("", Text(now.config))
    if tracker.statuses:
        outcomes = [(f"{n} {status}", _STATUS_STYLES[status]) for status, n in tracker.statuses.most_common()]
        grid.add_row("outcomes", Text(", ").join(Text(words, style) for words, style in outcomes))
    if tracker.pruned:
        rules = sorted(tracker.pruned.items(), key=lambda rule: -rule[1])
        grid.add_row("ruled out", Text(", ".join(f"{name} {count}" for name, count in rules)))
    return Group(head, grid)


def console_view(tracker: ProgressTracker, console: Console, *, quiet: bool = False) -> ProgressView:
    """The view for a command: in place on a terminal, else lines on ``console``, or none where ``quiet``."""
    if console.is_terminal and not console.is_dumb_terminal:
        return LiveView(tracker, console)
    write = _writer(console.file, tracker)
    return ProgressView(tracker, write) if quiet else LineView(tracker, write)


def python_view(title: str, progress: bool | None, *, phase: Phase = Phase.STARTING) -> ProgressView:
    """The view for a call from Python: ``True`` shows progress, ``False`` none, None shows it in a notebook.

    A notebook gets lines on stdout, a terminal a display in place on stderr, anything else lines on stderr.
    """
    tracker = ProgressTracker(title, phase=phase)
    notebook = in_notebook()
    if not (notebook if progress is None else progress):
        return ProgressView(tracker, _writer(sys.stderr, tracker))
    if notebook:
        return LineView(tracker, _writer(sys.stdout, tracker))
    with contextlib.suppress(ModuleNotFoundError):  # rich is an extra; lines need nothing
        from rich.console import Console

        return console_view(tracker, Console(stderr=True, highlight=False))
    return LineView(tracker, _writer(sys.stderr, tracker))


def both(view: ProgressView, on_event: EventHandler | None) -> EventHandler:
    """An event handler that shows an event and then hands it to the caller's own handler."""

    def tell(event: Event) -> None:
        view(event)
        if on_event is not None:
            on_event(event)

    return tell


def in_notebook() -> bool:
    """Whether this process is the kernel of a Jupyter notebook, by what is imported already."""
    get_ipython = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return get_ipython is not None and type(get_ipython()).__name__ == "ZMQInteractiveShell"


def _writer(file: IO[str], tracker: ProgressTracker) -> Callable[[str], None]:
    """Writes ``  12.3 s  LINE``, the first one with the title. A pipe whose reader has gone ends no tuning."""
    first = True

    def write(line: str) -> None:
        nonlocal first
        title = f"{tracker.title}: " if first and tracker.title else ""
        first = False
        with contextlib.suppress(OSError, ValueError):
            file.write(f"{tracker.progress.elapsed:7.1f} s  {title}{line}\n")
            file.flush()

    return write
