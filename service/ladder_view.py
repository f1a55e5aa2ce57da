"""The ladder in a terminal: its tree with figures, and a bar for each rung."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from service.ladder_report import NOT_SLOWER, Entry
from tirgemm.gemm import Gemm

_WIDTH = 40
_PARTS = " ▏▎▍▌▋▊▉█"


def view(gemm: Gemm, entries: Sequence[Entry], baselines: dict[str, float]) -> RenderableType:
    """Tree and bars; ``baselines`` are their TFLOP/s by name, and stand among the bars."""
    parts: list[RenderableType] = [tree(gemm, entries)]
    if any(entry.tflops for entry in entries):
        parts += [Text(), bars(entries, baselines)]
    return Group(*parts)


def tree(gemm: Gemm, entries: Sequence[Entry]) -> Tree:
    """The rungs under their parents: what changed, loads per FMA, and what was measured."""
    root = Tree(Text(f"{gemm}: loads for one FMA (elements from global, from shared memory)"))
    branches: dict[str | None, Tree] = {None: root}
    for entry in entries:
        parent = branches.get(entry.step.rung.parent, root)
        branches[entry.step.name] = parent.add(_label(entry))
    return root


def bars(entries: Sequence[Entry], baselines: dict[str, float]) -> Table:
    """TFLOP/s as bars, the baselines last."""
    measured = [(entry.step.name, entry.tflops, entry.shares) for entry in entries if entry.tflops]
    most = max([tflops for _, tflops, _ in measured] + list(baselines.values()))
    names = sorted({name for _, _, shares in measured for name in shares})
    table = Table("rung", "", "TFLOP/s", *(f"× {name}" for name in names), box=None, pad_edge=False)
    for column in table.columns[2:]:
        column.justify = "right"
    for rung, tflops, shares in measured:
        cells = [f"{shares[name]:.3f}" if name in shares else "" for name in names]
        table.add_row(rung, Text(bar(tflops / most), style="cyan"), f"{tflops:.2f}", *cells)
    for name, tflops in baselines.items():
        table.add_row(name, Text(bar(tflops / most), style="green"), f"{tflops:.2f}", *[""] * len(names))
    return table


def bar(share: float) -> str:
    """A bar of ``share`` of the full width, in eighths of a character."""
    eighths = round(max(0.0, min(1.0, share)) * _WIDTH * 8)
    full, rest = divmod(eighths, 8)
    return _PARTS[8] * full + (_PARTS[rest] if rest else "")


def figures(entry: Entry) -> str:
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


def loads(entry: Entry) -> str:
    """Elements for one FMA, as written; instructions where they are fewer."""
    found = entry.step.loads
    if found is None:
        return ""
    text = f"global {found.global_elements:.4g}, shared {found.shared_elements:.4g}"
    if found.shared_instructions < found.shared_elements:
        text += f" (in {found.shared_instructions:.4g} instructions)"
    return text


def knobs(entry: Entry) -> str:
    """The knobs that differ from the parent's: ``lanes_n 1 -> 32``."""
    return ", ".join(f"{knob} {before} -> {after}" for knob, (before, after) in entry.step.knobs.items())


def _label(entry: Entry) -> Text:
    label = Text()
    label.append(entry.step.name, style="bold")
    label.append(f"  {entry.step.rung.changed}")
    for line in (knobs(entry), loads(entry)):
        if line:
            label.append(f"\n{line}", style="dim")
    said = figures(entry)
    if said:
        label.append(f"\n{said}", style="red" if entry.not_slower is False else "")
    return label
