"""What ``tirgemm bench`` says meanwhile where nobody sees a bar: that a shape begins, and what its search is at."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console
from rich.progress import Progress

from tirgemm.events import Event, Phase, PhaseEntered, SearchStarted
from tirgemm.gemm import Gemm
from tirgemm.service.commands.bench import _Teller

SHAPE = Gemm.parse("33x17x19:f16:nt")
STARTED = SearchStarted.from_json({"gemm": str(SHAPE), "budget": {"trials": 4, "seconds": 9.0}})
EVENTS: tuple[Event, ...] = (
    PhaseEntered(phase=Phase.WAITING),
    STARTED,
    PhaseEntered(phase=Phase.BUILDING),
    PhaseEntered(phase=Phase.CERTIFYING),
)


def told(*, terminal: bool, quiet: bool) -> str:
    """What stands on the console after two shapes, the first of which was searched; the second is being built."""
    console = Console(file=StringIO(), force_terminal=terminal, width=120)
    with Progress(console=console, auto_refresh=False) as progress:
        teller = _Teller(progress, progress.add_task("tiny"), quiet=quiet)
        teller.on_shape(SHAPE, 1, 2)
        for event in EVENTS:
            teller.on_event(event)
        teller.on_shape(Gemm.parse("1x7x5:f32:nn"), 2, 2)
        teller.on_event(PhaseEntered(phase=Phase.BUILDING))  # no search that has told that it starts
        before_the_end = console.file
        assert isinstance(before_the_end, StringIO)
        return before_the_end.getvalue()


def test_a_pipe_is_told_each_shape_as_it_begins_and_each_change_of_its_search() -> None:
    assert told(terminal=False, quiet=False).splitlines() == [
        f"{SHAPE}: shape 1 of 2",
        f"{SHAPE}: waiting for the device",
        f"{SHAPE}: starting",
        f"{SHAPE}: building, 0 of 4 tried",
        f"{SHAPE}: certifying",
        "1x7x5:f32:nn: shape 2 of 2",
        "1x7x5:f32:nn: building",
    ]


@pytest.mark.parametrize(("terminal", "quiet"), [(True, False), (False, True)])
def test_a_terminal_has_its_bar_and_json_nothing(terminal: bool, quiet: bool) -> None:
    assert "shape 1 of 2" not in told(terminal=terminal, quiet=quiet)
