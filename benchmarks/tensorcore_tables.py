"""Tables of the families ``mma`` and ``wmma``: steps, searches, what they reach; for the markers of render.py.

``TABLES`` maps the name after ``tensorcore/`` to the function that writes the Markdown.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from benchmarks.tensorcore_steps import STEPS
from service.results import Document, Row, load
from tirgemm.gemm import Gemm
from tirgemm.tuning.measured_configs import MeasuredConfigs
from tirgemm.tuning.selection import ratio_low

_BASELINES = ("torch.matmul", "cublaslt_best", "triton", "cutlass")
_BESIDE = ("torch.matmul", "cublaslt_best", "cutlass")
_NOT_YET = "Not measured yet: `python benchmarks/tensorcore_steps.py` writes `benchmarks/results/DEVICE/tensorcore_steps.sustained.json` on a GPU."


def steps(results: Path) -> str:
    """Every step of every problem of every device's file: TFLOP/s, what it gains over its parent, shares of baselines."""
    found = sorted([*results.glob("*/tensorcore_steps.*.json"), *results.glob("*/tensorcore_steps.*.json.gz")])
    return "\n\n".join(_document(load(path)) for path in found) or _NOT_YET


def _document(document: Document) -> str:
    about = document["environment"]
    parts = [f"{about['device']}, {document['regime']}, {about['date'][:10]}:"]
    for gemm in dict.fromkeys(row["gemm"] for row in document["rows"]):
        rows = {row["variant"]: row for row in document["rows"] if row["gemm"] == gemm}
        parts.append(_table(gemm, rows))
    return "\n\n".join(parts)


def _table(gemm: str, rows: dict[str, Row]) -> str:
    present = [name for name in _BASELINES if any(name in row["baselines"] for row in rows.values())]
    head = [f"`{gemm}`", "parent", "changed", "TFLOP/s", "× parent", "at least", *(f"× {name}" for name in present)]
    lines = [_line(head), _line(["---"] * 3 + ["---:"] * (len(head) - 3))]
    for step in STEPS:
        if (row := rows.get(step.name)) is None:
            continue
        parent = f"`{step.parent}`" if step.parent else ""
        if row["status"] != "measured":
            lines.append(
                _line([f"`{step.name}`", parent, f"{row['status']}: {row['message']}", *[""] * (len(head) - 3)])
            )
            continue
        mine = row["baselines"].get(step.parent) if step.parent else None
        gain = f"{mine['ratio']:.3f}" if mine else ""
        low = f"{ratio_low(tuple(mine['samples_us']), tuple(row['samples_us'])):.3f}" if mine else ""
        shares = [f"{row['baselines'][name]['ratio']:.3f}" if name in row["baselines"] else "" for name in present]
        lines.append(_line([f"`{step.name}`", parent, step.changed, f"{row['tflops']:.0f}", gain, low, *shares]))
    return "\n".join(lines)


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def searched(results: Path) -> str:
    """The fastest config of every problem that a search over ``mma`` or ``wmma`` measured, beside its reference."""
    parts = []
    for path in sorted([*results.glob("*/mma.configs.json.gz"), *results.glob("*/wmma.configs.json.gz")]):
        found = MeasuredConfigs.load(path)
        for session in found.sessions:
            parts += _fastest(found, session.gemm, session.regime)
    if not parts:
        return "Not searched yet: `python benchmarks/search_configs.py mma --family mma` on a GPU."
    head = ["family", "problem", "regime", "configs", "us", "TFLOP/s", "× torch.matmul", "fastest"]
    lines = [_line(head), _line(["---"] * 3 + ["---:"] * 4 + ["---"])]
    return "\n".join([*lines, *dict.fromkeys(parts)])


def _fastest(found: MeasuredConfigs, gemm: Gemm, regime: str) -> list[str]:
    """One line; none where nothing was measured."""
    times = {config: us for config, us in found.times(gemm, regime).items() if us}
    reference = found.reference_us(gemm, regime)
    if not times or not reference:
        return []
    best = min(times, key=lambda config: times[config])
    knobs = ", ".join(f"{name}={value}" for name, value in best.knobs if name in _TELLING)
    rate = gemm.flops / times[best] / 1e6
    numbers = [str(len(times)), f"{times[best]:.1f}", f"{rate:.0f}", f"{reference / times[best]:.3f}"]
    return [_line([f"`{best.family}`", f"`{gemm}`", regime, *numbers, f"`{knobs}`"])]


def rates(results: Path) -> str:
    """What ``mma`` and ``wmma`` reach at the sizes of their goals: of the baselines in one run, and of the ceiling of mma.sync."""
    lines: list[str] = []
    for path in sorted([*results.glob("*/mma.sustained.json*"), *results.glob("*/wmma.sustained.json*")]):
        document = load(path)
        ceiling = _ceiling(path.parent)
        for row in document["rows"]:
            if row["status"] != "measured":
                lines.append(
                    _line([f"`{document['suite']}`", f"`{row['gemm']}`", row["variant"], row["message"], *[""] * 5])
                )
                continue
            ratios = [row["baselines"].get(name, {}).get("ratio") for name in _BESIDE]
            lines.append(
                _line([
                    f"`{row['family']}`", f"`{row['gemm']}`", row["variant"], f"{row['median_us']:.1f}", f"{row['tflops']:.0f}",
                    *("" if ratio is None else f"{ratio:.3f}" for ratio in ratios),
                    f"{row['tflops'] / ceiling:.0%}" if ceiling else "",
                ])
            )  # fmt: skip
    if not lines:
        return "Not measured yet: `tirgemm bench mma --family mma` on a GPU."
    head = ["family", "problem", "config", "us", "TFLOP/s", *(f"× {name}" for name in _BESIDE), "of mma.sync's ceiling"]
    return "\n".join([_line(head), _line(["---"] * 3 + ["---:"] * 6), *lines])


def _ceiling(folder: Path) -> float | None:
    """The most that mma.sync reached out of registers, fp16 with fp32 sums, sustained: TFLOP/s; None where it was not measured."""
    path = folder / "mma_ceiling.json"
    if not path.is_file():
        return None
    rows = load(path)["rows"]
    return max((row["tflops"] for row in rows if row["kind"] == "f16" and row["regime"] == "sustained"), default=None)


_TELLING = ("tile_m", "tile_n", "tile_k", "warps_m", "warps_n", "stages", "shared", "pad")
TABLES: dict[str, Callable[[Path], str]] = {"steps": steps, "searched": searched, "rates": rates}
