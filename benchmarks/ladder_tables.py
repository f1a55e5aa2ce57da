"""The tables of docs/ladder.md: what the rungs load, computed, and what they took, from the results files.

``TABLES`` maps the name after ``ladder/`` in a marker of render.py to the function that writes the table's Markdown.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from service.ladder_report import Entry, described, fastest, reported
from service.ladder_view import knobs
from service.results import Document, load
from tirgemm.families.simt.tiling import tiling
from tirgemm.families.simt.wavefronts import fragment_wavefronts
from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device

# The articles' own shape, whose configs are those of every problem of the suite.
SHAPE = Gemm.parse("16384x16384x16384:f32:nn:alpha:beta")
_NOT_YET = "Not measured yet: `tirgemm ladder --suite ladder` writes `benchmarks/results/DEVICE/ladder.sustained.json` on a GPU."
# "same opcodes" is what an earlier version told apart.
_CODE = {
    "equal": "equal",
    "same opcodes": "the parent's opcodes, as often",
    "reordered": "the parent's instructions in another order",
    "different": "",
}


def loads(results: Path, suites: Path) -> str:
    """What each rung loads for an FMA, as written, and what its fragments' loads take of the banks."""
    del results, suites
    lines = _head(
        ["rung", "parent", "knobs that change", "global elements", "global instructions", "shared elements",
         "shared instructions", "wavefronts of a warp's fragments"], 3,
    )  # fmt: skip
    for entry in described(SHAPE, named_device("sm_90a")):
        found, config = entry.step.loads, entry.step.config
        assert found is not None
        assert config is not None
        cut = tiling(SHAPE, config)
        passes = str(fragment_wavefronts(cut)) if cut.reads == "fragments" else ""
        numbers = [found.global_elements, found.global_instructions, found.shared_elements, found.shared_instructions]
        parent = entry.step.rung.parent or ""
        changed = knobs(entry) if parent else ""
        lines.append(
            _line(
                [
                    f"`{entry.step.name}`",
                    f"`{parent}`" if parent else "",
                    changed,
                    *(f"{n:.4g}" for n in numbers),
                    passes,
                ]
            )
        )
    return "\n".join(lines)


def measured(results: Path, suites: Path) -> str:
    """Every rung of every problem of every device's results file of the ladder."""
    suite = json.loads((suites / "ladder.json").read_text())
    parts = []
    for path in sorted([*results.glob("*/ladder.*.json"), *results.glob("*/ladder.*.json.gz")]):
        document = load(path)
        for text in suite["gemms"]:
            entries = reported(document["rows"], Gemm.parse(text))
            reasons = {
                row["message"] for row in document["rows"] if row["gemm"] == text and row["status"] != "measured"
            }
            if any(row["status"] == "measured" for row in document["rows"] if row["gemm"] == text):
                parts.append(f"{_place(document)}: `{text}`\n\n{_figures(entries)}")
            elif entries:
                parts.append(f"`{text}`: no rung was measured: {'; '.join(sorted(reasons))}.")
    return "\n\n".join(parts) or _NOT_YET


def compiled(results: Path, suites: Path) -> str:
    """What the compiler made of each rung, as the cubins of the measurement have it: the suite's first problem."""
    suite = json.loads((suites / "ladder.json").read_text())
    parts = []
    for path in sorted([*results.glob("*/ladder.*.json"), *results.glob("*/ladder.*.json.gz")]):
        document = load(path)
        entries = [e for e in reported(document["rows"], Gemm.parse(suite["gemms"][0])) if "fma_share" in e.conditions]
        if entries:
            parts.append(f"{_place(document)}: `{suite['gemms'][0]}`\n\n{_machine_code(entries)}")
    return "\n\n".join(parts) or _NOT_YET


def best(results: Path, suites: Path) -> str:
    """The fastest rung of each problem against each baseline."""
    suite = json.loads((suites / "ladder.json").read_text())
    parts = []
    for path in sorted([*results.glob("*/ladder.*.json"), *results.glob("*/ladder.*.json.gz")]):
        document = load(path)
        found = [(text, fastest(reported(document["rows"], Gemm.parse(text)))) for text in suite["gemms"]]
        names = sorted({name for _, entry in found if entry for name in entry.shares})
        lines = _head(["problem", "fastest rung", "TFLOP/s", *(f"× {name}" for name in names)], 2)
        lines += [
            _line(
                [
                    f"`{text}`",
                    f"`{entry.step.name}`",
                    f"{entry.tflops:.2f}",
                    *(_number(entry.shares.get(name)) for name in names),
                ]
            )
            for text, entry in found
            if entry is not None
        ]
        parts.append(f"{_place(document)}\n\n" + "\n".join(lines))
    return "\n\n".join(parts) or _NOT_YET


def _figures(entries: list[Entry]) -> str:
    names = sorted({name for entry in entries for name in entry.shares})
    head = ["rung", "parent", "ms", "TFLOP/s", *(f"× {name}" for name in names), "× parent", "at least", "not slower"]
    lines = _head(head, 2)
    for entry in entries:
        parent = f"`{entry.step.rung.parent}`" if entry.step.rung.parent else ""
        if entry.us is None or entry.tflops is None:
            reason = f"{entry.status}: {entry.message}".replace("|", "\\|")
            lines.append(_line([f"`{entry.step.name}`", parent, reason, *[""] * (len(head) - 3)]))
            continue
        verdict = {None: "", True: "yes", False: "**no**"}[entry.not_slower]
        shares = [_number(entry.shares.get(name)) for name in names]
        lines.append(_line([
            f"`{entry.step.name}`", parent, f"{entry.us / 1e3:.4g}", f"{entry.tflops:.2f}", *shares, _number(entry.gain),
            _number(entry.gain_low), verdict,
        ]))  # fmt: skip
    return "\n".join(lines)


def _machine_code(entries: list[Entry]) -> str:
    lines = _head(
        [
            "rung",
            "registers",
            "FMAs among the loop's instructions",
            "LDS for an FMA",
            "LDG for an FMA",
            "beside the parent's code",
        ],
        1,
    )
    for entry in entries:
        found = entry.conditions
        lines.append(_line([
            f"`{entry.step.name}`", str(found["registers"]), f"{found['fma_share']:.3f}", f"{found['lds_per_fma']:.4g}",
            f"{found['ldg_per_fma']:.4g}", _CODE[entry.code] if entry.code else "",
        ]))  # fmt: skip
    return "\n".join(lines)


def _place(document: Document) -> str:
    environment = document["environment"]
    versions = [f"{key} {environment[key]}" for key in ("driver", "cuda", "tvm", "torch") if environment.get(key)]
    commit = str(environment.get("commit") or "")[:12]
    return ", ".join([environment["device"], document["regime"], *versions, commit, environment["date"][:10]])


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _head(cells: list[str], left: int) -> list[str]:
    return [_line(cells), _line(["---" if at < left else "---:" for at in range(len(cells))])]


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


TABLES: dict[str, Callable[[Path, Path], str]] = {
    "loads": loads, "measured": measured, "compiled": compiled, "best": best,
}  # fmt: skip
