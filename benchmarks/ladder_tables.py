"""The tables of the ladder: what the rungs load, computed, and what they took, from the results files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from benchmarks.tables import documents, named, not_yet, number, place, refusal, table
from tirgemm.bench.ladder_report import RungFigures, described, fastest, reported
from tirgemm.families.simt.tiling import tiling
from tirgemm.families.simt.wavefronts import fragment_wavefronts
from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device
from tirgemm.service.views.ladder_terminal import knobs

# The articles' own shape, whose configs are those of every problem of the suite.
SHAPE = Gemm.parse("16384x16384x16384:f32:nn:alpha:beta")
_NOT_YET = not_yet("tirgemm ladder --suite ladder")
# What a rung's machine code has in common with its parent's.
_CODE = {"equal": "equal", "reordered": "the parent's instructions in another order"}


def loads(results: Path, suites: Path) -> str:
    """What each rung loads for an FMA, as written, and what its fragments' loads take of the banks."""
    lines = []
    for entry in described(SHAPE, named_device("sm_90a")):
        counts, config, parent = entry.step.loads, entry.step.config, entry.step.rung.parent
        assert counts is not None
        assert config is not None
        cut = tiling(SHAPE, config)
        passes = str(fragment_wavefronts(cut)) if cut.reads == "fragments" else ""
        numbers = (
            counts.global_elements,
            counts.global_instructions,
            counts.shared_elements,
            counts.shared_instructions,
        )
        head = [f"`{entry.step.name}`", f"`{parent}`" if parent else "", knobs(entry) if parent else ""]
        lines.append([*head, *(f"{count:.4g}" for count in numbers), passes])
    head = [
        "rung",
        "parent",
        "knobs that change",
        "global elements",
        "global instructions",
        "shared elements",
        "shared instructions",
        "wavefronts of a warp's fragments",
    ]
    return table(head, lines, 3)


def measured(results: Path, suites: Path) -> str:
    """Every rung of every problem of every device's results file of the ladder."""
    parts = [f"`{gemm}`; {where}\n\n{_figures(entries)}" for where, gemm, entries in _problems(results, suites)]
    return "\n\n".join(parts) or _NOT_YET


def compiled(results: Path, suites: Path) -> str:
    """What the compiler made of each rung, as the cubins of the measurement have it: the suite's first problem."""
    for where, gemm, entries in _problems(results, suites):
        lines = []
        for entry in entries:
            code = entry.conditions
            if "fma_share" not in code:
                continue
            figures = [f"{code['fma_share']:.3f}", f"{code['lds_per_fma']:.4g}", f"{code['ldg_per_fma']:.4g}"]
            beside = _CODE.get(entry.code or "", "")
            lines.append([f"`{entry.step.name}`", str(code["registers"]), *figures, beside])
        figures = ["FMAs among the loop's instructions", "LDS for an FMA", "LDG for an FMA"]
        names = ["rung", "registers", *figures, "beside the parent's code"]
        if lines:
            return f"`{gemm}`; {where}\n\n{table(names, lines, 1)}"
    return _NOT_YET


def best(results: Path, suites: Path) -> str:
    """The fastest rung of each problem against each baseline."""
    lines: dict[str, list[list[str]]] = {}
    for where, gemm, entries in _problems(results, suites):
        if (entry := fastest(entries)) is not None and entry.tflops is not None:
            shares = ", ".join(f"{share:.3f} × {name}" for name, share in sorted(entry.shares.items()))
            lines.setdefault(where, []).append([f"`{gemm}`", f"`{entry.step.name}`", shares, f"{entry.tflops:.2f}"])
    head = ["problem", "fastest rung", "speed", "TFLOP/s"]
    return "\n\n".join(f"{where}\n\n{table(head, of_place, 3)}" for where, of_place in lines.items()) or _NOT_YET


def _problems(results: Path, suites: Path) -> Iterator[tuple[str, str, list[RungFigures]]]:
    """Every problem of every results file of the ladder of which a rung was measured, after where it was."""
    suite = json.loads((suites / "ladder.json").read_text())
    for document in documents(results, "ladder.*"):
        for text in suite["gemms"]:
            entries = reported(document["rows"], Gemm.parse(text))
            if any(entry.us for entry in entries):
                yield place(document), text, entries


def _figures(entries: list[RungFigures]) -> str:
    names = sorted({name for entry in entries for name in entry.shares})
    lines = []
    for entry in entries:
        head = [f"`{entry.step.name}`", f"`{entry.step.rung.parent}`" if entry.step.rung.parent else ""]
        if entry.us is None or entry.tflops is None:
            lines.append([*head, refusal({"status": entry.status, "message": entry.message}), *[""] * (4 + len(names))])
            continue
        verdict = {None: "", True: "yes", False: "**no**"}[entry.not_slower]
        shares = [number(entry.shares.get(name)) for name in names]
        times = [f"{entry.us / 1e3:.4g}", f"{entry.tflops:.2f}"]
        lines.append([*head, *times, *shares, number(entry.gain), number(entry.gain_low), verdict])
    head = ["rung", "parent", "ms", "TFLOP/s", *(f"× {name}" for name in names), "× parent", "at least", "not slower"]
    return table(head, lines, 2)


TABLES = named(loads, measured, compiled, best)
