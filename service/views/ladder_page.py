"""The ladder as one HTML page that needs nothing else: no script, no style sheet, no font from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tirgemm.bench.ladder_report import RungFigures, knobs_of
from tirgemm.gemm import Gemm
from tirgemm.service.pages import render
from tirgemm.service.views.ladder_terminal import LOADS_LEGEND, figures, knobs, loads


@dataclass(frozen=True, slots=True)
class _Bar:
    """A rung's or a baseline's speed; ``length`` is its share of the fastest, ``shares`` its ratio to each baseline."""

    name: str
    tflops: float
    length: float
    shares: dict[str, float]
    is_rung: bool


@dataclass(frozen=True, slots=True)
class _Rung:
    """A rung with the rungs that follow from it."""

    name: str
    changed: str
    lines: tuple[str, ...]
    measured: str
    is_slower: bool
    children: tuple[_Rung, ...]


@dataclass(frozen=True, slots=True)
class _Ladder:
    """One problem's ladder; ``shares`` are the baselines that its bars are compared with."""

    gemm: Gemm
    bars: tuple[_Bar, ...]
    shares: tuple[str, ...]
    rungs: tuple[_Rung, ...]

    @property
    def key(self) -> tuple[tuple[str, str], ...]:
        """The classes of the bars with their meanings, and the columns'."""
        baselines = (("theirs", "a baseline's, in the same run"),) if not all(bar.is_rung for bar in self.bars) else ()
        columns = ((f"× {name}", "its median time over the rung's; above 1 the rung is faster") for name in self.shares)
        return (
            ("ours", "a rung's speed, by its median time"),
            *baselines,
            *(("", f"{name}: {meaning}") for name, meaning in columns),
        )


MeasuredLadders = Sequence[tuple[Gemm, Sequence[RungFigures], dict[str, float]]]


def page(groups: Sequence[tuple[MeasuredLadders, str]]) -> str:
    """The page of some problems' ladders, each with its baselines' TFLOP/s, by the places where they were taken."""
    return render(
        "ladder.html",
        title="The simt ladder",
        groups=[(place, [_ladder(*ladder) for ladder in ladders]) for ladders, place in groups],
        loads_legend=LOADS_LEGEND,
        knobs=next((knobs_of(gemm) for ladders, _ in groups for gemm, _, _ in ladders), ()),
    )


def _ladder(gemm: Gemm, entries: Sequence[RungFigures], baselines: dict[str, float]) -> _Ladder:
    speeds = [(entry.step.name, entry.tflops, entry.shares, True) for entry in entries if entry.tflops]
    if speeds:
        speeds += [(name, tflops, {}, False) for name, tflops in baselines.items()]
    most = max((tflops for _, tflops, _, _ in speeds), default=0.0)
    bars = tuple(_Bar(name, tflops, tflops / most, shares, is_rung) for name, tflops, shares, is_rung in speeds)
    return _Ladder(gemm, bars, tuple(sorted({name for bar in bars for name in bar.shares})), _branch(entries, None))


def _branch(entries: Sequence[RungFigures], parent: str | None) -> tuple[_Rung, ...]:
    """The rungs under ``parent``, each with its own; a rung whose parent is missing hangs from the root."""
    names = {entry.step.name for entry in entries}
    return tuple(
        _Rung(
            entry.step.name,
            entry.step.rung.changed,
            tuple(filter(None, (knobs(entry), (elements := loads(entry)) and f"loads for one FMA: {elements}"))),
            figures(entry),
            entry.not_slower is False,
            _branch(entries, entry.step.name),
        )
        for entry in entries
        if (entry.step.rung.parent if entry.step.rung.parent in names else None) == parent
    )
