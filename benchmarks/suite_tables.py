"""Tables over all suites of a device: means, share of the read bandwidth, the worst shapes, every shape that is behind.

Each is computed from results files and nothing else. The tuned variant is what counts as ours.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.knob_tables import knobs
from benchmarks.reasons import Floors, reasons, spread
from service.results import load
from tirgemm.gemm import DTYPE_BYTES, REGIMES, Gemm

Row = dict[str, Any]

# The suites whose geometric means are averaged, and those that stand for themselves.
AVERAGED, OTHERS = ("square", "deepgemm", "llama", "skinny"), ("odd",)
BASELINES = ("torch.matmul", "cublaslt_best", "triton")
LEAST_WEIGHTS, MOST_M = 25e6, 16
WORST = 3
LARGE = "from 4096 on"


@dataclass(frozen=True)
class SuiteRows:
    """The rows of one suite in one regime by variant and gemm, with the suite's shapes and groups."""

    name: str
    gemms: tuple[str, ...]
    groups: dict[str, list[str]]
    rows: dict[tuple[str, str], Row]
    units: int

    def ratio(self, gemm: str, variant: str, baseline: str) -> float | None:
        """Speed over a baseline's, or over the default's; None where either was not measured."""
        found = self.rows.get((variant, gemm), {}).get("baselines", {}).get(baseline)
        return float(found["ratio"]) if found else None

    def measured(self, variant: str = "tuned") -> list[Row]:
        rows = [self.rows[variant, gemm] for gemm in self.gemms if (variant, gemm) in self.rows]
        return [row for row in rows if row["status"] == "measured"]


def suites_of(folder: Path, suites: Path, regime: str) -> list[SuiteRows]:
    """The suites of a device's results folder in a regime, in the order of the tables."""
    found = []
    for name in (*AVERAGED, *OTHERS):
        path = next(
            (p for p in (folder / f"{name}.{regime}.json", folder / f"{name}.{regime}.json.gz") if p.is_file()), None
        )
        if path is None:
            continue
        document, suite = load(path), json.loads((suites / f"{name}.json").read_text())
        gemms = tuple(str(Gemm.parse(text)) for text in suite["gemms"])
        groups = {group: [str(Gemm.parse(t)) for t in texts] for group, texts in suite.get("groups", {}).items()}
        if name == "square":
            groups[LARGE] = [gemm for gemm in gemms if Gemm.parse(gemm).m_max >= 4096]
        rows = {(row["variant"], row["gemm"]): row for row in document["rows"]}
        units = int(document["environment"]["device_key"].split(":")[3])
        found.append(SuiteRows(name, gemms, groups, rows, units))
    return found


def summary(folder: Path, suites: Path) -> str:
    """Geometric mean and least by suite and group, against each baseline, both variants; the mean over the suites."""
    parts = []
    for regime in REGIMES:
        found = suites_of(folder, suites, regime)
        if not found:
            continue
        head = ["suite", *(f"tuned × {name}" for name in BASELINES), "default × torch.matmul", "default / tuned"]
        lines = [f"{regime}; geometric mean (least)", "", *_head(head, 1)]
        for suite in found:
            lines.append(_line([f"**{suite.name}**", *_means(suite, suite.gemms)]))
            lines += [_line([group, *_means(suite, gemms)]) for group, gemms in suite.groups.items()]
        averaged = [suite for suite in found if suite.name in AVERAGED]
        if len(averaged) == len(AVERAGED):
            lines.append(_line([f"**mean over {', '.join(AVERAGED)}**", *_overall(averaged)]))
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def worst(folder: Path, suites: Path) -> str:
    """The slowest few shapes of every suite against torch.matmul."""
    lines = _head(["suite", "regime", "gemm", "us", *(f"× {name}" for name in BASELINES)], 3)
    for regime in REGIMES:
        for suite in suites_of(folder, suites, regime):
            rows = [row for row in suite.measured() if BASELINES[0] in row["baselines"]]
            rows.sort(key=lambda row: row["baselines"][BASELINES[0]]["ratio"])
            for row in rows[:WORST]:
                ratios = [_number(suite.ratio(row["gemm"], "tuned", name)) for name in BASELINES]
                lines.append(_line([suite.name, regime, f"`{row['gemm']}`", f"{row['median_us']:.2f}", *ratios]))
    return "\n".join(lines)


def shapes(folder: Path, suites: Path) -> str:
    """Every shape of every suite: times, speed, ratios."""
    head = [
        "gemm",
        "default us",
        "tuned us",
        "TFLOP/s",
        "clock MHz",
        *(f"× {name}" for name in BASELINES),
        "default / tuned",
    ]
    parts = []
    for regime in REGIMES:
        for suite in suites_of(folder, suites, regime):
            lines = [f"{suite.name}, {regime}", "", *_head(head, 1)]
            lines += [_line(_shape(suite, gemm)) for gemm in suite.gemms]
            parts.append("\n".join(lines))
    return "\n\n".join(parts)


def bandwidth(folder: Path, suites: Path) -> str:
    """Shapes of m <= 16: bytes over time against reading alone; those of few weights with their floor instead."""
    lines = _head(["gemm", "regime", "MB", "us", "floor us", "GB/s", "share of reading alone"], 2)
    for regime in REGIMES:
        shares = []
        for row in _narrow(suites_of(folder, suites, regime)):
            gemm, read = Gemm.parse(row["gemm"]), row["conditions"]["read_gbps"]
            reached = gemm.nbytes / row["median_us"] / 1e3
            counts = _weights(gemm) >= LEAST_WEIGHTS
            shares += [reached / read] if counts else []
            lines.append(_line([
                f"`{gemm}`", regime, f"{gemm.nbytes / 1e6:.1f}", f"{row['median_us']:.2f}",
                f"{gemm.nbytes / read / 1e3:.2f}", f"{reached:.0f}", f"{reached / read:.1%}" if counts else "",
            ]))  # fmt: skip
        if shares:
            mean = _geomean(shares)
            words = f"**{mean:.1%}** (least {min(shares):.1%}, {len(shares)} shapes)"
            lines.append(_line(["**all of at least 25 MB of weights**", regime, "", "", "", "", words]))
    return "\n".join(lines)


def behind(folder: Path, suites: Path) -> str:
    """Every shape that is slower than a baseline, with what the data says about it."""
    lines = _head(["gemm", "suite", "regime", "us", "spread", "slower than", "what the data says"], 3)
    counts = []
    for regime in REGIMES:
        found = suites_of(folder, suites, regime)
        every = [row for suite in found for row in suite.measured()]
        if not every:
            continue
        floors = Floors(min(row["median_us"] for row in every), found[0].units)
        listed = 0
        for suite in found:
            for row in suite.measured():
                slower = [
                    (name, ratio)
                    for name in BASELINES
                    if (ratio := suite.ratio(row["gemm"], "tuned", name)) and ratio < 1
                ]
                if not slower:
                    continue
                listed += 1
                words = ", ".join(f"{name} {ratio:.3f}" for name, ratio in slower)
                lines.append(_line([
                    f"`{row['gemm']}`", suite.name, regime, f"{row['median_us']:.2f}", f"{spread(row):.1%}", words,
                    reasons(row, floors),
                ]))  # fmt: skip
            for gemm in suite.gemms:
                row = suite.rows.get(("tuned", gemm), {"status": "missing", "message": ""})
                if row["status"] != "measured":
                    lines.append(
                        _line(
                            [f"`{gemm}`", suite.name, regime, "", "", row["status"], row["message"].replace("|", "\\|")]
                        )
                    )
        counts.append(f"{listed} of {len(every)} in {regime}")
    return "\n".join([f"Slower than a baseline: {'; '.join(counts) or 'nothing measured'}.", "", *lines])


TABLES: dict[str, Callable[[Path, Path], str]] = {
    "summary": summary, "worst": worst, "shapes": shapes, "bandwidth": bandwidth, "behind": behind,
    "knobs": knobs,
}  # fmt: skip


def _means(suite: SuiteRows, gemms: Sequence[str]) -> list[str]:
    cells = [_over([suite.ratio(gemm, "tuned", name) for gemm in gemms]) for name in BASELINES]
    cells.append(_over([suite.ratio(gemm, "default", BASELINES[0]) for gemm in gemms]))
    return [*cells, _over([_default_share(suite, gemm) for gemm in gemms])]


def _overall(suites: Sequence[SuiteRows]) -> list[str]:
    """The geometric mean of the suites' geometric means, with the least over all shapes."""
    columns: list[list[list[float | None]]] = []
    for suite in suites:
        found = [[suite.ratio(g, "tuned", name) for g in suite.gemms] for name in BASELINES]
        found.append([suite.ratio(g, "default", BASELINES[0]) for g in suite.gemms])
        columns.append([*found, [_default_share(suite, g) for g in suite.gemms]])
    cells = []
    for ratios in zip(*columns, strict=True):
        present = [[r for r in one if r is not None] for one in ratios]
        whole = all(present)
        least = min((r for one in present for r in one), default=math.nan)
        cells.append(f"**{_geomean([_geomean(one) for one in present]):.3f}** ({least:.3f})" if whole else "")
    return cells


def _default_share(suite: SuiteRows, gemm: str) -> float | None:
    """Speed of the default over the tuned one's, from the tuned one's own run."""
    ratio = suite.ratio(gemm, "tuned", "default")
    return 1 / ratio if ratio else None


def _shape(suite: SuiteRows, gemm: str) -> list[str]:
    default, tuned = (suite.rows.get((variant, gemm), {}) for variant in ("default", "tuned"))
    if tuned.get("status") != "measured":
        return [
            f"`{gemm}`",
            f"{tuned.get('status', 'missing')}: {tuned.get('message', '')}".replace("|", "\\|"),
            *[""] * 7,
        ]
    cells = [
        _number(default.get("median_us"), 2),
        _number(tuned["median_us"], 2),
        f"{tuned['tflops']:.4g}",
        str(tuned["clock_mhz"] or ""),
    ]
    ratios = [_number(suite.ratio(gemm, "tuned", name)) for name in BASELINES]
    return [f"`{gemm}`", *cells, *ratios, _number(_default_share(suite, gemm))]


def _narrow(found: Iterable[SuiteRows]) -> list[Row]:
    """Measured rows of m <= 16, each gemm once, the largest first."""
    rows = {row["gemm"]: row for suite in found for row in suite.measured() if row["conditions"].get("read_gbps")}
    chosen = [row for text, row in rows.items() if Gemm.parse(text).m_max <= MOST_M]
    return sorted(chosen, key=lambda row: -Gemm.parse(row["gemm"]).nbytes)


def _weights(gemm: Gemm) -> int:
    """Bytes of B."""
    return gemm.span("b") * DTYPE_BYTES[gemm.dtype]


def _over(ratios: Sequence[float | None]) -> str:
    """Geometric mean and least, and over how many where some are missing."""
    present = [ratio for ratio in ratios if ratio is not None]
    if not present:
        return ""
    partial = "" if len(present) == len(ratios) else f"; {len(present)} of {len(ratios)}"
    return f"{_geomean(present):.3f} ({min(present):.3f}{partial})"


def _geomean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def _number(value: float | None, digits: int = 3) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _head(cells: list[str], left: int) -> list[str]:
    return [_line(cells), _line(["---" if at < left else "---:" for at in range(len(cells))])]


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
