"""The ladder in a terminal: its tree with figures, and a bar for each rung."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from tirgemm._terminal.tables import Column, Paragraph, Table, wrapped
from tirgemm.bench.ladder_report import NOT_SLOWER, RungFigures
from tirgemm.gemm import Gemm

LOADS_LEGEND = "loads for one FMA (elements from global, from shared memory)"
_WIDTH = 40
_WIDTHS = (_WIDTH, 30, 20, 10)
_PARTS = " ▏▎▍▌▋▊▉█"
# A branch's guides by how deep they indent, and the room that a rung's words should have beside them.
_GUIDES = {4: ("├── ", "└── ", "│   "), 2: ("├ ", "└ ", "│ ")}
_ROOM = 32


def view(gemm: Gemm, entries: Sequence[RungFigures], baselines: dict[str, float]) -> RenderableType:
    """Tree and bars; ``baselines`` are their TFLOP/s by name, and stand among the bars."""
    parts: list[RenderableType] = [_Tree(gemm, tuple(entries))]
    if any(entry.tflops for entry in entries):
        parts += [Text(), _Bars(tuple(entries), baselines)]
    return Group(*parts)


@dataclass(frozen=True, slots=True)
class _Tree:
    """The rungs under their parents: what changed, loads per FMA, and what was measured.

    Where the tree is too deep for the console it indents less, and at last not at all: each rung then names its parent.
    """

    gemm: Gemm
    entries: tuple[RungFigures, ...]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Paragraph(f"{self.gemm}: {LOADS_LEGEND}")
        deepest = max((self._depth(entry) for entry in self.entries), default=0)
        room = options.max_width
        step = next((step for step in _GUIDES if step * deepest + _ROOM <= room), 0)
        for head, rest, entry in self._walk(None, "", step):
            lines = wrapped(_label(entry, named=not step), room - len(rest))
            for number, line in enumerate(lines):
                yield Text(head if number == 0 else rest, no_wrap=True, overflow="ignore").append_text(line)

    def _parent(self, entry: RungFigures) -> str | None:
        """The rung above; None where it is not shown."""
        above = entry.step.rung.parent
        return above if any(each.step.name == above for each in self.entries) else None

    def _depth(self, entry: RungFigures) -> int:
        above = next((each for each in self.entries if each.step.name == self._parent(entry)), None)
        return 1 if above is None else 1 + self._depth(above)

    def _walk(self, name: str | None, prefix: str, step: int) -> Iterator[tuple[str, str, RungFigures]]:
        """Every entry below ``name``, with what its first and its other lines begin with."""
        below = [entry for entry in self.entries if self._parent(entry) == name]
        for entry in below:
            ends = entry is below[-1]
            if step:
                branch, last, stem = _GUIDES[step]
                rest = prefix + (" " * step if ends else stem)
                yield prefix + (last if ends else branch), rest, entry
            else:
                rest = ""
                yield "", "  ", entry
            yield from self._walk(entry.step.name, rest, step)


@dataclass(frozen=True, slots=True)
class _Bars:
    """TFLOP/s as bars, the baselines last; short bars, or none, on a narrow console."""

    entries: tuple[RungFigures, ...]
    baselines: dict[str, float]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        tables = [self._table(width) for width in _WIDTHS]
        yield next((table for table in tables if table.width <= options.max_width), tables[-1])

    def _table(self, width: int) -> Table:
        measured = [(entry.step.name, entry.tflops, entry.shares) for entry in self.entries if entry.tflops]
        most = max([tflops for _, tflops, _ in measured] + list(self.baselines.values()))
        names = sorted({name for _, _, shares in measured for name in shares})
        table = Table("rung", Column("", optional=1), ">TFLOP/s", *(f">× {name}" for name in names))
        for rung, tflops, shares in measured:
            cells = [f"{shares[name]:.3f}" if name in shares else "" for name in names]
            table.add_row(rung, Text(bar(tflops / most, width), style="cyan"), f"{tflops:.2f}", *cells)
        for name, tflops in self.baselines.items():
            table.add_row(name, Text(bar(tflops / most, width), style="green"), f"{tflops:.2f}", *[""] * len(names))
        return table


def bar(share: float, width: int = _WIDTH) -> str:
    """A bar of ``share`` of the full ``width``, in eighths of a character."""
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    full, rest = divmod(eighths, 8)
    return _PARTS[8] * full + (_PARTS[rest] if rest else "")


def figures(entry: RungFigures) -> str:
    """Time, speed, and the ratio to the parent with its bound; or why there are none."""
    if entry.us is None or entry.tflops is None:
        said = entry.message or entry.step.refused
        return f"{entry.status or 'refused'}: {said}" if said else ""
    words = [f"{entry.us / 1e3:.4g} ms" if entry.us >= 1e3 else f"{entry.us:.4g} us", f"{entry.tflops:.2f} TFLOP/s"]
    if entry.gain is not None and entry.gain_low is not None:
        verdict = "" if entry.not_slower else f", SLOWER: not at least {NOT_SLOWER}"
        words.append(f"{entry.gain:.3f} x {entry.step.rung.parent} (at least {entry.gain_low:.3f}{verdict})")
    if entry.code == "equal":
        words.append("the compiler did it: machine code equal to the parent's")
    elif entry.code == "reordered":
        words.append("the compiler did it: the parent's instructions in another order")
    return ", ".join(words)


def loads(entry: RungFigures) -> str:
    """Elements for one FMA, as written; instructions where they are fewer."""
    figures = entry.step.loads
    if figures is None:
        return ""
    text = f"global {figures.global_elements:.4g}, shared {figures.shared_elements:.4g}"
    if figures.shared_instructions < figures.shared_elements:
        text += f" (in {figures.shared_instructions:.4g} instructions)"
    return text


def knobs(entry: RungFigures) -> str:
    """The knobs that differ from the parent's: ``lanes_n 1 -> 32``."""
    return ", ".join(f"{knob} {before} -> {after}" for knob, (before, after) in entry.step.knobs.items())


def _label(entry: RungFigures, named: bool) -> Text:
    label = Text()
    label.append(entry.step.name, style="bold")
    if named and entry.step.rung.parent is not None:
        label.append(f" (after {entry.step.rung.parent})")
    label.append(f"  {entry.step.rung.changed}")
    for line in (knobs(entry), loads(entry)):
        if line:
            label.append(f"\n{line}", style="dim")
    said = figures(entry)
    if said:
        label.append(f"\n{said}", style="red" if entry.not_slower is False else "")
    return label
