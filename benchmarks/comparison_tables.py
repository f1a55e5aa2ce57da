"""Tables that compare rows of one file: of suite ``breadth``, problems that change one thing with the problem that they
change; of any suite, what the efforts choose and how long they take, and what two searches from nothing choose; the
ways to call a kernel."""

from __future__ import annotations

import math
from pathlib import Path

from benchmarks.suite_tables import AVERAGED, mean_of_means
from benchmarks.tables import documents, geomean, named, not_yet, number, of_file, place, refusal, table
from tirgemm.bench.effort_answers import AGAIN, EFFORTS
from tirgemm.bench.results import Document, load
from tirgemm.bench.suite_file import Suite
from tirgemm.gemm import REGIMES, Gemm, Regime

BASELINES = ("torch.matmul", "torch.compile", "cublaslt_best")
ANSWER_BASELINES = ("torch.matmul", "cublaslt_best")
# The variant that is shown.
VARIANT = "quick"
# Two kernels of a problem whose times differ by no more than this are as good.
WITHIN = 0.02


def plain(gemm: Gemm) -> Gemm:
    """The problem of the same sizes whose fp16 matrices are dense, A's rows and B's columns contiguous, without
    epilogue."""
    return Gemm(gemm.m_max, gemm.n, gemm.k)


def breadth(folder: Path, suites: Path) -> str:
    """Each problem's time, its speed in FLOP/s over that of the plain problem, and over the baselines'."""
    for document in documents(folder.parent, "breadth.sustained", folder.name):
        rows = {row["gemm"]: row for row in document["rows"] if row["variant"] == VARIANT}
        lines, ratios = [], []
        for gemm in Suite.read(suites / "breadth.json").gemms:
            row, base = rows.get(str(gemm)), rows.get(str(plain(gemm)))
            if row is None or row["status"] != "measured":
                lines.append(
                    [f"`{gemm}`", "not measured" if row is None else refusal(row), *[""] * (1 + len(BASELINES))]
                )
                continue
            share = row["tflops"] / base["tflops"] if base and base["status"] == "measured" else None
            beside = [row["baselines"].get(name, {}).get("ratio") for name in BASELINES]
            ratios.append([share, *beside])
            lines.append([f"`{gemm}`", number(row["median_us"], 2), *map(number, ratios[-1])])
        lines.append(
            ["**geometric mean (least)**", "", *(geomean(list(column)) for column in zip(*ratios, strict=True))]
        )
        head = ["gemm", "us", "speed / `f16:nt`", *(f"× {name}" for name in BASELINES)]
        return f"{VARIANT}: {place(document)}\n\n{table(head, lines, 1)}"
    return not_yet("tirgemm bench breadth --variants zero_shot,quick")


def repeated(folder: Path, suites: Path) -> str:
    """How far the kernels lie apart that two ``standard`` searches of a problem chose, raced side by side."""
    lines = []
    for document in (load(path) for regime in REGIMES for path in sorted(folder.glob(f"*.{regime}.json*"))):
        measured = {(row["gemm"], row["variant"]): row for row in document["rows"] if row.get("status") == "measured"}
        pairs = [
            (row, measured.get((gemm, "standard"))) for (gemm, variant), row in measured.items() if variant == AGAIN
        ]
        both = [(again, first) for again, first in pairs if first is not None]
        if not both:
            continue
        apart = [abs(math.log(again["median_us"] / first["median_us"])) for again, first in both]
        same = sum(again["config_hash"] == first["config_hash"] for again, first in both)
        within = sum(each <= math.log(1 + WITHIN) for each in apart)
        worst = f"{math.exp(max(apart)) - 1:.1%}"
        share = f"{within} ({within / len(both):.0%})"
        lines.append([document["suite"], document["regime"], str(len(both)), str(same), share, worst])
    head = ["suite", "regime", "problems", "same config", f"within {WITHIN:.0%}", "farthest apart"]
    command = f"tirgemm bench twice-116 --variants zero_shot,quick,standard,{AGAIN}"
    return table(head, lines, 2) if lines else not_yet(command)


def answers(folder: Path, suites: Path) -> str:
    """What each effort chooses for the problems of the averaged suites, from nothing, beside the baselines and the
    default; suites with rows of these variants in a regime, and the mean over all where none is missing."""
    columns = [
        *(f"× {name}" for name in ANSWER_BASELINES),
        *(f"behind {name}" for name in ANSWER_BASELINES),
        "× default",
    ]
    head = ["suite; problems", "variant", "date", *columns]
    parts = [
        f"{regime}; geometric mean (least)\n\n{table(head, lines, 3)}"
        for regime in REGIMES
        if (lines := _answers_in(folder, regime))
    ]
    command = "tirgemm bench square deepgemm llama skinny --recorded --variants default,tuned,zero_shot,quick,standard"
    return "\n\n".join(parts) or not_yet(command)


def _answers_in(folder: Path, regime: Regime) -> list[list[str]]:
    lines = []
    averaged: dict[str, list[list[list[float | None]]]] = {}
    for name in AVERAGED:
        for document in documents(folder.parent, f"{name}.{regime}", folder.name):
            for variant in [one for one in EFFORTS if one != AGAIN]:
                rows = [row for row in document["rows"] if row["variant"] == variant and row["status"] == "measured"]
                names = (*ANSWER_BASELINES, "default")
                ratios = {n: [row["baselines"].get(n, {}).get("ratio") for row in rows] for n in names}
                behind = [str(sum(ratio is not None and ratio < 1 for ratio in ratios[n])) for n in ANSWER_BASELINES]
                if rows:
                    figures = [*(geomean(ratios[n]) for n in ANSWER_BASELINES), *behind, geomean(ratios["default"])]
                    lines.append([f"{name}; {len(rows)}", variant, document["environment"]["date"][:10], *figures])
                    averaged.setdefault(variant, []).append(list(ratios.values()))
    for variant, of_suites in averaged.items():
        if len(of_suites) == len(AVERAGED):
            over_torch, over_cublaslt, over_default = map(mean_of_means, zip(*of_suites, strict=True))
            lines.append(["**mean over the suites**", variant, "", over_torch, over_cublaslt, "", "", over_default])
    return lines


def answer_seconds(folder: Path, suites: Path) -> str:
    """Seconds from the request to the certified kernel, by a worker whose processes are warm: each problem whose
    answers were clocked, by effort."""
    efforts = [name for name in EFFORTS if name != AGAIN]
    parts = []
    for document in (document for name in AVERAGED for document in documents(folder.parent, f"{name}.*", folder.name)):
        clocked: dict[str, dict[str, float]] = {}
        for row in document["rows"]:
            if row.get("seconds") is not None:
                clocked.setdefault(row["gemm"], {})[row["variant"]] = row["seconds"]
        lines = [[f"`{gemm}`", *(number(of.get(name), 1) for name in efforts)] for gemm, of in clocked.items()]
        if lines:
            parts.append(f"{document['suite']}: {place(document)}\n\n{table(['gemm', *efforts], lines, 1)}")
    return "\n\n".join(parts) or not_yet("tirgemm bench square --variants zero_shot,quick,standard --clock")


@of_file("calls.json", "python benchmarks/call_overhead.py [--device cpu]")
def calls(document: Document) -> str:
    """What call_overhead.py wrote: a table for each problem."""
    about, parts = document["environment"], []
    for gemm in dict.fromkeys(row.get("gemm", document["gemm"]) for row in document["rows"]):
        rows = [row for row in document["rows"] if row.get("gemm", document["gemm"]) == gemm]
        figures = [[r["way"], f"`{r['call']}`", f"{r['median_us']:.2f}", f"{r['min_us']:.2f}"] for r in rows]
        head = f"one call of `{gemm}` from Python on {about['device']}, torch {about['torch']}"
        parts.append(f"{head}\n\n{table(['way', 'call', 'us, median', 'us, least'], figures, 2)}")
    return "\n\n".join(parts)


TABLES = named(breadth, repeated, answers, answer_seconds, calls)
