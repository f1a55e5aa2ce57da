"""Progress: what the events sum up to, in which words, and how it is shown on a terminal, in a pipe and in a
notebook."""

from __future__ import annotations

import io
import queue
import sys
import types
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from tests.waiting import PATIENCE_S
from tirgemm._terminal.progress_view import (
    LineView,
    LiveView,
    ProgressView,
    console_view,
    in_notebook,
    picture,
    python_view,
)
from tirgemm.events import (
    CandidateRecorded,
    Done,
    Downloaded,
    Event,
    FallbackStored,
    Phase,
    SearchStarted,
    event_from_json,
)
from tirgemm.progress import Progress, ProgressTracker, role_description, role_name
from tirgemm.timings import BaselineTime, NotTimed, Timing, Timings

SHAPE = "33x17x19:f16:nt"


def phase(name: str, detail: str = "", left: float | None = None) -> Event:
    return event_from_json("phase", {"phase": name, "detail": detail, "seconds_left": left})


def candidate(
    tried: int, us: float | None, best: float, status: str = "measured", left: float | None = None
) -> CandidateRecorded:
    data = {
        "status": status,
        "trials": 4,
        "of": 4,
        "us": us,
        "best_us": best,
        "best": f"x86(a={best})",
        "default_us": 12.0,
        "tried": tried,
        "measured": tried,
        "seconds_left": left,
    }
    return CandidateRecorded.from_json(data)


EVENTS: tuple[Event, ...] = (
    event_from_json(
        "started", {"gemm": SHAPE, "budget": {"trials": 4, "seconds": 9.0}, "recorded": 0, "tried": 0, "measured": 0}
    ),
    phase("default"),
    phase("waiting", "another process measures on it, pid 7"),
    phase("default"),
    event_from_json(
        "fallback", {"kernel": "1", "config": "x86(a=1)", "timings": {"sustained": {"median_us": 12.0}, "default": {}}}
    ),
    phase("starting", "the search"),
    phase("building", left=9.0),
    event_from_json(
        "batch", {"proposed": 3, "trials": 4, "pruned": {"registers": 7, "too_small": 2}, "seconds_left": 8.5}
    ),
    phase("measuring", left=7.5),
    candidate(2, 9.0, 9.0, left=7.0),
    candidate(3, None, 9.0, "crashed", left=6.0),
    candidate(4, 6.0, 6.0, left=5.0),
    phase("choosing", "among the best 3"),
    phase("certifying"),
    event_from_json("selected", {"kernel": "2", "config": "x86(a=3)", "timings": {}}),
    event_from_json("done", {"kernel": "2", "config": "x86(a=3)", "timings": {}}),
)


class Clock:
    """A clock that is set."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def told(events: tuple[Event, ...], *, seconds: float = 0.5, interval: float = 2.0) -> list[str]:
    """The lines of a LineView where an event comes every ``seconds``."""
    clock, lines = Clock(), list[str]()
    view = LineView(ProgressTracker(SHAPE, clock=clock), lines.append, interval=interval, clock=clock)
    for event in events:
        clock.now += seconds
        view(event)
    return lines


def test_every_phase_is_told_once_in_order_and_in_plain_words() -> None:
    assert told(EVENTS, seconds=0.1) == [
        "starting",
        "building the default kernel",
        "waiting for the device (another process measures on it, pid 7)",
        "building the default kernel",
        "starting the search, best 12.00 us (1.00 x the default)",
        "building, 1 of 4 tried, best 12.00 us (1.00 x the default), at most 9 s left",
        "choosing among the best 3, best 6.00 us (2.00 x the default)",
        "certifying, best 6.00 us (2.00 x the default)",
        "done, the search's best 6.00 us (2.00 x the default)",
    ]


def test_the_end_tells_the_kernels_config_and_figures_by_the_race_that_reports_them() -> None:
    reported = Timing(6.25, baselines={"default": BaselineTime(6.5, 1.04), "numpy": BaselineTime(50.0, 8.0)})
    timings = Timings({"sustained": NotTimed("a GPU went away"), "isolated": reported})
    events = (*EVENTS[:-1], Done(kernel="70ed", config="x86(a=2)", timings=timings))
    assert told(events)[-1] == "done, the kernel takes 6.25 us (1.04 x the default)"
    tracker, shown = ProgressTracker(SHAPE), io.StringIO()
    for event in events:
        tracker(event)
    assert tracker.to_json()["best"] != "x86(a=2)", "of the search"
    Console(file=shown, width=80).print(picture(tracker))
    lines = [line.split() for line in shown.getvalue().splitlines()]
    assert lines[2:4] == [["the", "kernel", "takes", "6.25", "us", "(1.04", "x", "the", "default)"], ["x86(a=2)"]]


def test_a_default_that_no_search_follows_is_not_told_as_the_best_of_a_search() -> None:
    done = event_from_json("done", {"kernel": "1", "config": "x86(a=1)", "timings": {}})
    assert told((*EVENTS[:5], done), seconds=0.1)[-1] == "done, best 12.00 us (1.00 x the default)"


def test_a_phase_that_lasts_is_told_every_two_seconds_and_not_more_often() -> None:
    lines = told(EVENTS[:6] + EVENTS[6:12], seconds=1.0)
    assert lines[-2:] == [
        "measuring 1 of 4, best 12.00 us (1.00 x the default), at most 8 s left",
        "measuring 3 of 4, best 9.00 us (1.33 x the default), at most 6 s left",
    ]
    many = tuple(replace(candidate(n, 9.0, 9.0), of=1000) for n in range(1000))
    assert len(told(many, seconds=0.01)) == 5, "a thousand candidates in ten seconds"


def test_what_is_waited_for_is_told_where_no_event_comes() -> None:
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    tracker = ProgressTracker(phase=Phase.QUEUED)
    with LineView(tracker, lines.put, interval=0.01):
        assert lines.get(timeout=PATIENCE_S) == "waiting for a worker"
    silent: list[str] = []
    with LineView(tracker, silent.append, interval=600.0):
        pass
    assert silent == []


def test_no_word_of_ours_is_in_what_a_user_reads() -> None:
    for seconds in (0.1, 3.0):
        text = "\n".join(told(EVENTS, seconds=seconds)).lower()
        assert "fallback" not in text
        assert "batch" not in text
    assert role_description("fallback") == "the default kernel (served meanwhile)"
    assert role_name("fallback") == "default"
    assert role_description("tuned") == role_name("tuned") == "tuned"


def test_a_portable_kernel_is_called_so() -> None:
    assert role_name("tuned", portable=True) == "portable"
    assert role_description("tuned", portable=True).startswith("tuned, portable: ")
    assert role_name("fallback", portable=False) == "default"


def test_a_shipped_kernel_ahead_of_a_search_is_the_best_and_no_default() -> None:
    timings = Timings({"sustained": Timing(5.0)})
    for role, default in (("fallback", 5.0), ("tuned", None)):
        tracker = ProgressTracker()
        tracker(FallbackStored(kernel="1", role=role, config="x86", timings=timings))
        assert (tracker.progress.best_us, tracker.progress.default_us) == (5.0, default)


def test_seconds_that_are_left_run_down_between_events_and_end_with_the_search() -> None:
    clock = Clock()
    tracker = ProgressTracker(clock=clock)
    tracker(phase("measuring", left=7.5))
    clock.now += 3.0
    assert tracker.progress.seconds_left == 4.5
    assert tracker.progress.elapsed == 3.0
    clock.now += 30.0
    assert tracker.progress.seconds_left == 0.0
    tracker(phase("choosing"))
    assert tracker.progress.seconds_left is None


def test_the_sum_of_a_tuning_s_events() -> None:
    tracker = ProgressTracker(SHAPE)
    for event in EVENTS[:-2]:
        tracker(event)
    now = tracker.progress
    assert (now.phase, now.done, now.total, now.measured) == (Phase.CERTIFYING, 4, 4, 4)
    assert (now.best_us, now.best, now.default_us, now.speed) == (6.0, "x86(a=6.0)", 12.0, 2.0)
    document = tracker.to_json()
    assert document.pop("elapsed_s") >= 0
    assert document == {
        "trials": 4,
        "best_us": 6.0,
        "best": "x86(a=6.0)",
        "statuses": {"measured": 2, "crashed": 1},
        "pruned": {"registers": 7, "too_small": 2},
    }


def test_a_resumed_search_counts_what_is_recorded() -> None:
    tracker = ProgressTracker()
    started = {
        "budget": {"trials": 32},
        "recorded": 14,
        "tried": 12,
        "measured": 11,
        "best_us": 5.0,
        "default_us": 10.0,
    }
    tracker(SearchStarted.from_json(started))
    tracker(phase("measuring"))
    assert str(tracker.progress) == "measuring 12 of 32, best 5.00 us (2.00 x the default)"
    assert tracker.progress.measured == 11


def test_a_service_that_tells_no_phases_is_understood_from_its_other_events() -> None:
    tracker = ProgressTracker(phase=Phase.QUEUED)
    phases = [tracker.progress.phase]
    events: tuple[Event, ...] = (
        event_from_json("fallback", {"timings": {}}),
        event_from_json("started", {"budget": {"trials": 4, "seconds": 9}}),
        event_from_json("batch", {"proposed": 2, "trials": 3, "pruned": {}}),
        event_from_json("candidate", {"trials": 1, "status": "measured"}),
        event_from_json("selected", {}),
        event_from_json("failed", {"error": "build_failed: too\x1b[2J bad\n"}),
    )
    for event in events:
        tracker(event)
        phases.append(tracker.progress.phase)
    assert phases == [
        Phase.QUEUED,
        Phase.QUEUED,
        Phase.STARTING,
        Phase.BUILDING,
        Phase.MEASURING,
        Phase.CERTIFYING,
        Phase.FAILED,
    ]
    assert str(tracker.progress) == "failed: build_failed: too [2J bad "


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"phase": "dreaming"},
        {"budget": 3, "timings": [], "pruned": 4, "best_us": "x", "trials": -1, "of": None},
        {"timings": {"a": {"median_us": float("nan")}}, "seconds_left": float("inf"), "status": "odd", "best_us": 0},
    ],
)
def test_nothing_that_a_service_says_ends_the_display(data: dict[str, Any]) -> None:
    tracker = ProgressTracker()
    for kind in (
        "started",
        "phase",
        "fallback",
        "batch",
        "candidate",
        "selected",
        "job",
        "download",
        "done",
        "standing",
    ):
        tracker(event_from_json(kind, data))
    assert str(tracker.progress) == "done"


def test_what_is_downloaded_is_told_in_kibibytes() -> None:
    tracker = ProgressTracker()
    tracker(Downloaded(bytes=5000, total=180_000))
    assert str(tracker.progress) == "downloading 5 of 176 KiB"


def test_a_pipe_gets_whole_lines_without_control_characters() -> None:
    pipe = io.StringIO()
    console = Console(file=pipe, width=40)
    with console_view(ProgressTracker(SHAPE), console) as view:
        assert isinstance(view, LineView)
        for event in EVENTS:
            view(event)
        view.say("stopping")
    lines = pipe.getvalue().splitlines()
    assert pipe.getvalue().endswith("\n")
    assert all(line.isprintable() for line in lines), "neither escapes nor carriage returns"
    assert lines[0].endswith(f" s  {SHAPE}: starting"), "the first line says what is tuned"
    assert lines[-1].endswith(" s  stopping")
    assert SHAPE not in "".join(lines[1:])


def test_a_pipe_whose_reader_has_gone_ends_no_tuning() -> None:
    class Broken(io.StringIO):
        def write(self, _text: str) -> int:
            raise BrokenPipeError

    with console_view(ProgressTracker(SHAPE), Console(file=Broken())) as view:
        for event in EVENTS:
            view(event)
    assert view.tracker.progress.phase is Phase.DONE


def test_quiet_says_only_what_is_said() -> None:
    pipe = io.StringIO()
    with console_view(ProgressTracker(), Console(file=pipe), quiet=True) as view:
        view(EVENTS[0])
        assert pipe.getvalue() == ""
        view.say("stopping")
    assert pipe.getvalue().endswith("stopping\n")


def test_a_terminal_is_redrawn_in_place_with_the_best_the_outcomes_and_the_rules() -> None:
    clock = Clock()
    tracker = ProgressTracker(SHAPE, clock=clock)
    for event in EVENTS[:-4]:
        clock.now += 1.5
        tracker(event)
    shown = io.StringIO()
    Console(file=shown, width=80).print(picture(tracker))
    text = shown.getvalue()
    for words in (
        f"{SHAPE}  measuring 4 of 4  18 s, at most 5 s left",
        "6.00 us (2.00 x the default)",
        "x86(a=6.0)",
        "2 measured, 1 crashed",
        "registers 7, too_small 2",
    ):
        assert words in text
    assert all(len(line.rstrip()) <= 80 for line in text.splitlines())


def test_the_terminal_s_view_draws_and_cleans_up() -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100, _environ={"TERM": "xterm"})
    view = console_view(ProgressTracker(SHAPE), console)
    assert isinstance(view, LiveView)
    with view:
        for event in EVENTS[:-4]:
            view(event)
        view.say("stopping: [brackets] are kept")
    assert "x86(a=6.0)" in screen.getvalue(), "drawn once more at the end, at the least"
    assert "stopping: [brackets] are kept" in screen.getvalue()
    assert screen.getvalue().count("\x1b[?25h") == 1, "the cursor is shown again"


def notebook(monkeypatch: pytest.MonkeyPatch, shell: str = "ZMQInteractiveShell") -> None:
    fake = types.ModuleType("IPython")
    monkeypatch.setattr(fake, "get_ipython", type(shell, (), {}), raising=False)
    monkeypatch.setitem(sys.modules, "IPython", fake)


def test_a_notebook_is_known_by_its_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert not in_notebook()
    assert "IPython" not in sys.modules, "looking imports nothing"
    notebook(monkeypatch, "TerminalInteractiveShell")
    assert not in_notebook()
    notebook(monkeypatch)
    assert in_notebook()


@pytest.mark.parametrize(
    ("inside", "progress", "out", "err"),
    [
        (False, None, False, False),
        (False, False, False, False),
        (False, True, False, True),
        (True, None, True, False),
        (True, False, False, False),
        (True, True, True, False),
    ],
)
def test_progress_shows_by_itself_in_a_notebook_and_elsewhere_on_request(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    inside: bool,
    progress: bool | None,
    out: bool,
    err: bool,
) -> None:
    if inside:
        notebook(monkeypatch)
    with python_view(SHAPE, progress) as view:
        for event in EVENTS:
            view(event)
    said = capsys.readouterr()
    assert (bool(said.out), bool(said.err)) == (out, err)
    assert all(line.isprintable() for line in (said.out + said.err).splitlines())
    assert type(view) is (LineView if out or err else ProgressView)


def test_progress_is_a_value() -> None:
    assert str(Progress(Phase.MEASURING, done=12, total=32, best_us=6.0, default_us=6.72, seconds_left=83.2)) == (
        "measuring 12 of 32, best 6.00 us (1.12 x the default), at most 84 s left"
    )
    assert str(Progress()) == "starting"
