"""Knob tables: the choices of the fastest recorded configs, and how much slower a shape is without them.

usage: knob_tables.py FILE.jsonl.gz...     records files; one table for each regime, as Markdown

A shape counts for a choice where its fastest measured config has it and another choice was measured too. "Without it"
compares with the fastest config of any other choice. A search tries some tens of configs of a shape for a few
hundredths of a second each, so a gap of a percent or two says nothing, and other knobs differ too: the table says what
the data is compatible with, no more.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.tables import candidates_of, table
from tirgemm.config import Config, Value
from tirgemm.gemm import REGIMES, Gemm, Regime
from tirgemm.tuning.records import Candidate
from tirgemm.tuning.records.comparable_times import comparable_times
from tirgemm.tuning_db.shipped import problems_file
from tirgemm.tuning_db.transfer import read_candidates

# Classes of shapes by m, each up to and including its number.
CLASSES = ((16, "m <= 16"), (128, "m <= 128"), (1023, "m < 1024"), (2**31, "m >= 1024"))
# Shapes with fewer configs that were right say little.
LEAST_CONFIGS = 5
# A knob that means nothing without a choice of another.
_NEEDS = {"reduction": ("split", 1)}

Times = dict[Config, float]


def knobs(folder: Path, suites: Path) -> str:
    """The tables of a device's folder: of the family ``wgmma`` in the records that are shipped of it."""
    return tables([candidate for candidate in _shipped(folder.name) if candidate.config.family == "wgmma"])


def _shipped(device: str) -> Sequence[Candidate]:
    """The records that are shipped of a device, if there are any."""
    path = problems_file(device)
    return candidates_of(path) if path.is_file() else []


def tables(candidates: Sequence[Candidate]) -> str:
    """A table for each regime that has shapes; empty where none has."""
    parts = []
    for regime in REGIMES:
        shapes = list(times_of(candidates, regime))
        if shapes:
            configs = sum(len(times) for _, times in shapes)
            parts.append(f"{regime}; {len(shapes)} shapes, {configs} configs\n\n{_table(shapes)}")
    return "\n\n".join(parts)


def times_of(candidates: Sequence[Candidate], regime: Regime) -> Iterable[tuple[Gemm, Times]]:
    """Every shape with the microseconds of its configs that were right, where there are enough."""
    problems: dict[Gemm, list[Candidate]] = {}
    for candidate in candidates:
        if candidate.regime == regime:
            problems.setdefault(candidate.gemm, []).append(candidate)
    for gemm, recorded in problems.items():
        times: Times = {config: us for config, us in comparable_times(recorded).items() if us is not None}
        if len(times) >= LEAST_CONFIGS:
            yield gemm, times


def knob_worth(folder: Path, suites: Path) -> str:
    """What each value of each knob is worth, by family, over every recorded shape and regime: see ``worth``."""
    families: dict[str, list[Candidate]] = {}
    for candidate in _shipped(folder.name):
        families.setdefault(candidate.config.family, []).append(candidate)
    lines = [
        line
        for family, candidates in sorted(families.items())
        for line in worth(family, [times for regime in REGIMES for _, times in times_of(candidates, regime)])
    ]
    return table(["family", "knob", "value: its worth on the shape that needs it most", "never in the fastest"], lines)


def worth(family: str, shapes: Sequence[Times]) -> Iterable[list[str]]:
    """A row for each knob: how much slower the worst shape whose fastest config has a value is without that value.

    A value that every measured config of a shape has says nothing there; where that is so of every shape it is "all".
    """
    tried: dict[str, dict[Value, None]] = {}
    most: dict[tuple[str, Value], float | None] = {}
    for times in ({c: us for c, us in each.items() if c.family == family} for each in shapes):
        if len(times) < LEAST_CONFIGS:
            continue
        best = min(times, key=lambda config: times[config])
        for config in times:
            for name, value in config.knobs:
                tried.setdefault(name, {})[value] = None
        for (name, value), loss in _losses(times, best):
            known = most.setdefault((name, value), loss)
            if loss is not None:
                most[name, value] = max(loss, known or 0.0)
    for name, values in tried.items():
        ordered = sorted(values, key=_order)
        worths = [f"{v}: {'all' if (w := most[name, v]) is None else f'{w:.1%}'}" for v in ordered if (name, v) in most]
        yield [family, name, ", ".join(worths), ", ".join(str(v) for v in ordered if (name, v) not in most)]


def _table(shapes: Sequence[tuple[Gemm, Times]]) -> str:
    wins: dict[tuple[str, Value], list[tuple[int, float]]] = {}
    names: dict[str, None] = {}
    for gemm, times in shapes:
        best = min(times, key=lambda config: times[config])
        names |= dict.fromkeys(name for name, _ in best.knobs)
        for knob, loss in _losses(times, best):
            if loss is not None:
                wins.setdefault(knob, []).append((_class(gemm), loss))
    head = ["knob", "choice", *(label for _, label in CLASSES), "without it, mean", "most"]
    lines = [
        [name, str(choice), *_cells(wins[name, choice])]
        for name in names
        for choice in sorted((c for n, c in wins if n == name), key=_order)
    ]
    return table(head, lines, 2)


def _losses(times: Times, best: Config) -> Iterable[tuple[tuple[str, Value], float | None]]:
    """Each knob of the fastest config that means something, with its value, and how much slower the fastest with
    another value is, if there is one."""
    timed = [(dict(config.knobs), us) for config, us in times.items()]
    for name, value in best.knobs:
        needed, idle = _NEEDS.get(name, ("", None))
        if not needed or best[needed] != idle:
            without = [us for knobs, us in timed if knobs.get(name) != value]
            yield (name, value), min(without) / times[best] - 1 if without else None


def _cells(ranked: Sequence[tuple[int, float]]) -> list[str]:
    counts = [sum(number == at for number, _ in ranked) for at in range(len(CLASSES))]
    losses = [loss for _, loss in ranked]
    return [*(str(count or "") for count in counts), f"{statistics.fmean(losses):+.1%}", f"{max(losses):+.1%}"]


def _class(gemm: Gemm) -> int:
    return next(number for number, (most, _) in enumerate(CLASSES) if gemm.m_max <= most)


def _order(choice: Value) -> tuple[int, str]:
    return (choice, "") if isinstance(choice, int) else (0, str(choice))


if __name__ == "__main__":
    print(tables([candidate for text in sys.argv[1:] for candidate in read_candidates(Path(text))]))
