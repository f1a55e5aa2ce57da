"""Tables of suites: one suite's rows, and over all suites of a device means, every shape, share of the read bandwidth.

Each is computed from results files and nothing else. The tuned variant is what counts as ours.
"""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.knob_tables import knob_worth, knobs
from benchmarks.tables import documents, geomean, named, not_yet, number, of_file, place, refusal, table
from tirgemm.bench.held_out import (
    EARLIER_SEEDS,
    GRID_NAME,
    JUDGE_SEEDS,
    NEWEST_SEEDS,
    READ_SEEDS,
    Sides,
    siblings,
    sides_of,
)
from tirgemm.bench.results import Document, Row, spread
from tirgemm.bench.suite_file import Suite
from tirgemm.families.common.alignment import access_width
from tirgemm.gemm import DTYPE_BYTES, REGIMES, Gemm, Operand, Regime
from tirgemm.tuning_db.shipped.records import ShippedRecords

# The suites whose geometric means are averaged, and those that stand for themselves.
AVERAGED, OTHERS = ("square", "deepgemm", "llama", "skinny"), ("odd",)
BASELINES = ("torch.matmul", "cublaslt_best", "triton")
LEAST_WEIGHTS, MOST_M = 25e6, 16
# k up to which a large D takes longer to write than to compute.
_SHORT_K = 128
LARGE = "from 4096 on"


@dataclass(frozen=True)
class SuiteRows:
    """The rows of one suite in one regime by variant and gemm, with the suite's shapes and groups."""

    name: str
    gemms: tuple[str, ...]
    groups: dict[str, list[str]]
    document: Document

    def row(self, variant: str, gemm: str) -> Row:
        matching = (row for row in self.document["rows"] if (row["variant"], row["gemm"]) == (variant, gemm))
        return next(matching, {"status": "missing", "message": "", "baselines": {}})

    def ratio(self, gemm: str, variant: str, baseline: str) -> float | None:
        """Speed over a baseline's, or over the default's; None where either was not measured."""
        entry = self.row(variant, gemm)["baselines"].get(baseline)
        return float(entry["ratio"]) if entry else None

    @property
    def untuned(self) -> str:
        """The variant that was not searched: ``default``, or ``zero_shot``, its like, where that alone was measured."""
        return "default" if any(row["variant"] == "default" for row in self.document["rows"]) else "zero_shot"

    def narrow(self) -> list[Row]:
        """The tuned rows of m <= 16 whose run measured reading alone."""
        rows = [self.row("tuned", gemm) for gemm in self.gemms if Gemm.parse(gemm).m_max <= MOST_M]
        return [row for row in rows if row["status"] == "measured" and row["conditions"].get("read_gbps")]

    def columns(self, gemms: Sequence[str]) -> list[list[float | None]]:
        """Ratios: the tuned variant's to each baseline, the default's to the first, the default's to the tuned
        one's."""
        ratios = [[self.ratio(gemm, "tuned", name) for gemm in gemms] for name in BASELINES]
        share = [1 / ratio if (ratio := self.ratio(gemm, "tuned", "default")) else None for gemm in gemms]
        return [*ratios, [self.ratio(gemm, self.untuned, BASELINES[0]) for gemm in gemms], share]


def suites_of(folder: Path, suites: Path, regime: Regime) -> list[SuiteRows]:
    """The suites of a device's results folder in a regime, in the order of the tables."""
    suite_rows = []
    for name in (*AVERAGED, *OTHERS):
        for document in documents(folder.parent, f"{name}.{regime}", folder.name):
            suite = json.loads((suites / f"{name}.json").read_text())
            gemms = tuple(str(Gemm.parse(text)) for text in suite["gemms"])
            groups = {group: [str(Gemm.parse(t)) for t in texts] for group, texts in suite.get("groups", {}).items()}
            if name == "square":
                groups[LARGE] = [gemm for gemm in gemms if Gemm.parse(gemm).m_max >= 4096]
            suite_rows.append(SuiteRows(name, gemms, groups, document))
    return suite_rows


def of_suite(document: Document, suites: Path) -> str:
    """One results file: what it was taken on, its rows, and means over all and over the suite's groups."""
    rows = document["rows"]
    path = suites / f"{document['suite']}.json"
    groups = json.loads(path.read_text()).get("groups", {}) if path.is_file() else {}
    names = sorted({name for row in rows for name in row["baselines"]})
    default = {row["gemm"]: row["config_hash"] for row in rows if row["variant"] == "default"}
    lines = []
    for row in rows:
        head = [f"`{row['gemm']}`", row["variant"]]
        if row["status"] != "measured":
            lines.append([*head, refusal(row), *[""] * (4 + len(names))])
            continue
        knobs = ", ".join(f"{name} {value}" for name, value in row["config"]["knobs"].items())
        is_best = row["variant"] != "default" and default.get(row["gemm"]) == row["config_hash"]
        config = "the default is the best" if is_best else f"{row['family']}: {knobs}"
        figures = [f"{row['median_us']:.2f}", f"{spread(row):.1%}", f"{row['tflops']:.4g}", f"{row['error']:.2g}"]
        lines.append([*head, config, *figures, *(number(row["baselines"].get(n, {}).get("ratio")) for n in names)])
    for variant in sorted({row["variant"] for row in rows}):
        for group, gemms in {"**all**": [row["gemm"] for row in rows], **groups}.items():
            of = [row for row in rows if row["variant"] == variant and row["gemm"] in gemms]
            lines.append([f"{group}, geometric mean (least)", variant, *[""] * 5, *_means_beside(of, names)])
    head = ["gemm", "variant", "config", "us", "between races", "TFLOP/s", "error / bound", *(f"× {n}" for n in names)]
    return f"{document['suite']}: {place(document)}\n\n{table(head, lines, 3)}"


def summary(folder: Path, suites: Path) -> str:
    """Geometric mean and least by suite and group, against each baseline, both variants; the mean over the suites."""
    parts = []
    for regime in REGIMES:
        lines, averaged = [], []
        for suite in suites_of(folder, suites, regime):
            lines.append([f"**{suite.name}**", *map(geomean, suite.columns(suite.gemms))])
            lines += [[group, *map(geomean, suite.columns(gemms))] for group, gemms in suite.groups.items()]
            averaged += [suite.columns(suite.gemms)] if suite.name in AVERAGED else []
        if len(averaged) == len(AVERAGED):
            lines.append([f"**mean over {', '.join(AVERAGED)}**", *map(mean_of_means, zip(*averaged, strict=True))])
        if lines:
            head = ["suite", *(f"tuned × {name}" for name in BASELINES), "default × torch.matmul", "default / tuned"]
            parts.append(f"{regime}; geometric mean (least)\n\n{table(head, lines, 1)}")
    return "\n\n".join(parts) or _NOT_YET


def mean_of_means(columns: Sequence[Sequence[float | None]]) -> str:
    """The geometric mean of the suites' geometric means, with the least over all shapes."""
    suites = [[ratio for ratio in ratios if ratio is not None] for ratios in columns]
    if not all(suites):
        return ""
    mean = statistics.geometric_mean([statistics.geometric_mean(ratios) for ratios in suites])
    return f"**{mean:.3f}** ({min(map(min, suites)):.3f})"


def shapes(folder: Path, suites: Path) -> str:
    """Every shape of every suite: times, how far the races lie apart, speed, ratios."""
    parts = []
    for regime in REGIMES:
        for suite in suites_of(folder, suites, regime):
            lines = []
            for gemm in suite.gemms:
                default, tuned = suite.row(suite.untuned, gemm), suite.row("tuned", gemm)
                if tuned["status"] != "measured":
                    lines.append([f"`{gemm}`", refusal(tuned), *[""] * (5 + len(BASELINES))])
                    continue
                times = [number(default.get("median_us"), 2), number(tuned["median_us"], 2), f"{spread(tuned):.1%}"]
                ratios = [number(column[0]) for column in suite.columns([gemm])]
                lines.append([f"`{gemm}`", *times, f"{tuned['tflops']:.4g}", str(tuned["clock_mhz"] or ""), *ratios])
            names = [*(f"× {name}" for name in BASELINES), "default × torch.matmul", "default / tuned"]
            head = ["gemm", "default us", "tuned us", "between races", "TFLOP/s", "clock MHz", *names]
            parts.append(f"{suite.name}: {place(suite.document)}\n\n{table(head, lines, 1)}")
    return "\n\n".join(parts) or _NOT_YET


def held_out(folder: Path, suites: Path) -> str:
    """Problems that nothing was fitted to: what each effort's kernels reach of the baselines, aligned rows apart, and
    without the problems whose m, n and k are shipped; each suite, and together those that were read one by one, and
    those that one program was measured on."""
    parts, recorded = [], {sides_of(gemm) for file in ShippedRecords().files() for gemm in file.gemms}
    for regime in REGIMES:
        names = (*(f"{kind}-{seed}" for kind in ("judge", "twice") for seed in JUDGE_SEEDS), GRID_NAME)
        files = [(name, one) for name in names for one in documents(folder.parent, f"{name}.{regime}", folder.name)]
        suite_rows = {name: one["rows"] for name, one in files}
        for seeds in (READ_SEEDS, *EARLIER_SEEDS, NEWEST_SEEDS):
            judged = [name for name in suite_rows if name in {f"judge-{seed}" for seed in seeds}]
            if len(judged) > 1:
                suite_rows[f"**{', '.join(judged)} together**"] = [row for name in judged for row in suite_rows[name]]
        lines = [
            [f"{name}, {which}; {len(these)}", variant, *_beside_baselines(these), *_without_siblings(these, recorded)]
            for name, rows in suite_rows.items()
            for variant in dict.fromkeys(row["variant"] for row in rows)
            for which, these in _by_alignment([row for row in rows if row["variant"] == variant])
        ]
        if lines:
            columns = [*(f"× {name}" for name in BASELINES[:2]), *(f"behind {name}" for name in BASELINES[:2])]
            columns += ["without siblings", *(f"of these × {name}" for name in BASELINES[:2])]
            head = f"{regime}; geometric mean (least)"
            parts.append(f"{head}\n\n{table(['problems', 'variant', *columns], lines, 2)}")
    return "\n\n".join(parts) or not_yet("tirgemm bench judge-102 --variants zero_shot,quick,standard")


def _by_alignment(rows: Sequence[Row]) -> list[tuple[str, Sequence[Row]]]:
    """All rows, and those of problems with aligned rows, each with its words."""
    return [("all", rows), ("rows of whole 16 bytes", [r for r in rows if has_aligned_rows(Gemm.parse(r["gemm"]))])]


def _beside_baselines(rows: Sequence[Row]) -> list[str]:
    """Mean and least ratio to the first two baselines, then in how many rows each is ahead."""
    beside = [[row["baselines"][name] for row in rows if name in row["baselines"]] for name in BASELINES[:2]]
    return [*_means_beside(rows, BASELINES[:2]), *(str(sum(b["ratio"] < 1 for b in of_one)) for of_one in beside)]


def _without_siblings(rows: Sequence[Row], recorded: set[Sides]) -> list[str]:
    """Of the rows whose m, n and k are not recorded how many there are, then mean and least ratio to two baselines."""
    known = set(siblings((Gemm.parse(row["gemm"]) for row in rows), recorded))
    others = [row for row in rows if Gemm.parse(row["gemm"]) not in known]
    return [str(len(others)), *_means_beside(others, BASELINES[:2])]


def has_aligned_rows(gemm: Gemm) -> bool:
    """Whether every row of every operand begins at a multiple of 16 bytes."""
    operands: tuple[Operand, ...] = ("a", "b", "d")
    sizes = {"a": gemm.dtype, "b": gemm.dtype, "d": gemm.out}
    return all(access_width(gemm, operand) * DTYPE_BYTES[sizes[operand]] >= 16 for operand in operands)


def versions(folder: Path, suites: Path) -> str:
    """Defaults and tuned kernels of two versions of the program, raced side by side, problem by problem."""
    for document in documents(folder.parent, "redesign.sustained", folder.name):
        names = ("before_default", "default", "before_tuned", "tuned")
        gemms = [str(gemm) for gemm in Suite.read(suites / "redesign.json").gemms]
        rows = SuiteRows("redesign", tuple(gemms), {}, document)
        pairs = (("default", "before_default"), ("tuned", "before_tuned"))
        gains = {gemm: [rows.ratio(gemm, *pair) for pair in pairs] for gemm in gemms}
        lines = [
            [f"`{gemm}`", *(number(rows.row(name, gemm).get("median_us"), 2) for name in names)]
            + [number(ratio) for ratio in (*gains[gemm], *(rows.ratio(gemm, v, BASELINES[0]) for v, _ in pairs))]
            for gemm in gemms
        ]
        beside = [[rows.ratio(gemm, variant, BASELINES[0]) for gemm in gemms] for variant, _ in pairs]
        means = [geomean(list(column)) for column in (*zip(*gains.values(), strict=True), *beside)]
        lines.append(["**geometric mean (least)**", "", "", "", "", *means])
        head = ["gemm", "default before, us", "after", "tuned before, us", "after", "default, gain", "tuned, gain"]
        head += [f"{variant} × {BASELINES[0]}" for variant, _ in pairs]
        before = document["environment"]["before_commit"]
        return f"before: `{before}`; {place(document)}\n\n{table(head, lines, 1)}"
    return "Measured once, on another device."


def bandwidth(folder: Path, suites: Path) -> str:
    """Shapes of m <= 16: bytes over time against reading alone; those of few weights with their floor instead."""
    lines = []
    for regime in REGIMES:
        shares = []
        narrow = {row["gemm"]: row for suite in suites_of(folder, suites, regime) for row in suite.narrow()}
        for row in sorted(narrow.values(), key=lambda row: -Gemm.parse(row["gemm"]).nbytes):
            gemm, read = Gemm.parse(row["gemm"]), row["conditions"]["read_gbps"]
            reached = gemm.nbytes / row["median_us"] / 1e3
            counts = gemm.span("b") * DTYPE_BYTES[gemm.dtype] >= LEAST_WEIGHTS
            shares += [reached / read] if counts else []
            figures = [f"{gemm.nbytes / 1e6:.1f}", f"{row['median_us']:.2f}", f"{gemm.nbytes / read / 1e3:.2f}"]
            lines.append([f"`{gemm}`", regime, *figures, f"{reached:.0f}", f"{reached / read:.1%}" if counts else ""])
        if shares:
            mean = f"**{statistics.geometric_mean(shares):.1%}** (least {min(shares):.1%}, {len(shares)} shapes)"
            lines.append(["**all of at least 25 MB of weights**", regime, "", "", "", "", mean])
    head = ["gemm", "regime", "MB", "us", "floor us", "GB/s", "share of reading alone"]
    return table(head, lines, 2) if lines else _NOT_YET


def stores(folder: Path, suites: Path) -> str:
    """Kernels of the suite ``holes`` with short k: D's bytes over their time, against writing alone."""
    lines = []
    for document in documents(folder.parent, "holes.sustained", folder.name):
        write = statistics.median(stream["write_gbps"] for stream in document["streams"])
        for row in document["rows"]:
            gemm = Gemm.parse(row["gemm"])
            if row["status"] == "measured" and gemm.k <= _SHORT_K:
                written = gemm.span("d") * DTYPE_BYTES[gemm.out]
                rate = written / row["median_us"] / 1e3
                figures = [f"{written / 1e6:.1f}", f"{row['median_us']:.2f}", f"{rate:.0f}", f"{rate / write:.1%}"]
                lines.append([f"`{gemm}`", row["variant"], *figures])
    head = ["gemm", "variant", "MB of D", "us", "GB/s of D", "share of writing alone"]
    return table(head, lines, 2) if lines else not_yet("tirgemm bench holes --variants zero_shot,quick")


@of_file("proposal_sources.json", "python benchmarks/proposal_sources.py")
def proposals(document: Document) -> str:
    """Sources of proposals at equal trials: the best time over the optimum, geometric means over spaces and seeds."""
    groups: dict[str, dict[str, list[list[float]]]] = {}
    spaces: dict[tuple[str, str], set[str]] = {}
    for row in document["rows"]:
        _, _, known = row["space"].partition(" ")
        group = row["space"] if row["space"].endswith("complete") else f"recorded configs of `wgmma`, {known}"
        groups.setdefault(group, {}).setdefault(row["source"], []).extend(row["over_optimum"])
        spaces.setdefault((group, row["source"]), set()).add(row["space"])
    lines = [
        [f"{group}; {(of := len(spaces[group, source]))} x {len(over) // of} searches", source]
        + [f"{statistics.geometric_mean(values):.3f}" for values in zip(*over, strict=True)]
        for group, sources in groups.items()
        for source, over in sources.items()
    ]
    return table(
        ["space", "source", *(f"{trials} trial{'s' * (trials > 1)}" for trials in document["trials"])], lines, 2
    )


# What ranks, as rows of zero_shot_folds.py name it.
RANKED_BY = {"estimate": "estimate", "others": "model of the other device", "model": "model"}


@of_file("zero_shot_folds.json", "python benchmarks/zero_shot_folds.py RECORDS")
def zero_shot(document: Document) -> str:
    """First choices for shapes whose (n, k) was held out, by the estimate and by the ranking model."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in document["rows"]:
        of = ("suites" if row["published"] else "other problems") + ("" if row["covered"] else ", not covered")
        groups.setdefault((of, row["regime"]), []).append(row)
    lines = []
    for (of, regime), rows in sorted(groups.items(), key=lambda item: ("not" in item[0][0], item[0])):
        for name, ranked_by in RANKED_BY.items():
            if all(name in row for row in rows):
                shares = zip(*(row[name] for row in rows), strict=True)
                lines.append([f"{regime}, {of}; {len(rows)}", ranked_by, *(geomean(list(values)) for values in shares)])
    head = [
        "problems",
        "ranked by",
        *(f"best of first {first}" if first > 1 else "first" for first in document["first"]),
    ]
    return table(head, lines, 2)


@of_file("effort_replay.json", "python benchmarks/effort_replay.py")
def efforts(document: Document) -> str:
    """Rules that end a search, replayed on recorded configs: trials spent, and what is lost."""
    lines = [
        [rule, f"{ending['trials']:.1f}", str(ending["most_trials"])]
        + [f"{100 * (ending[over] - 1):.2f} %" for over in ("over_optimum", "worst_over_optimum")]
        for rule, ending in document["summary"].items()
    ]
    return table(["ended by", "trials", "at most", "behind the best recorded", "at most"], lines, 1)


def sets(folder: Path, suites: Path) -> str:
    """Kernel sets beside the kernel that is tuned for the very m, and the first baselines, by n and k."""
    parts = []
    for suite, regime in itertools.product(("rows", "rows_70b"), REGIMES):
        for document in documents(folder.parent, f"{suite}.{regime}", folder.name):
            names = [n for n in ("tuned", *BASELINES[:2]) if any(n in row["baselines"] for row in document["rows"])]
            groups: dict[str, list[Row]] = {}
            for row in document["rows"]:
                gemm = Gemm.parse(row["gemm"])
                groups.setdefault(f"{gemm.n} x {gemm.k}", []).append(row)
            lines = [
                [name, str(len(rows)), *_means_beside(rows, names), _worst_m(rows, names[0])]
                for name, rows in [*groups.items(), ("**all**", document["rows"])]
            ]
            head = ["n x k", "values of m", "× tuned for that m", *(f"× {name}" for name in names[1:]), "least at m"]
            asked = sorted({row.get("conditions", {}).get("effort") for row in document["rows"]} - {None})
            words = [f"{suite}: {place(document)}", *(f"both asked for with effort {effort}" for effort in asked)]
            parts.append(f"{'; '.join(words)}; geometric mean (least)\n\n{table(head, lines, 1)}")
    return "\n\n".join(parts) or not_yet("python benchmarks/kernel_sets/race.py")


def invariant(folder: Path, suites: Path) -> str:
    """Invariant kernels beside ours without that restriction, and the baselines, by the suite that shapes are from."""
    names, parts = ("unrestricted", "torch.matmul", "cublaslt_unsplit", "triton_invariant"), []
    for regime in REGIMES:
        for document in documents(folder.parent, f"invariant.{regime}", folder.name):
            rows = document["rows"]
            of = {name: set(map(str, Suite.read(suites / f"{name}.json").gemms)) for name in ("llama", "deepgemm")}
            lines = [
                [f"{name}; {len(these)}", variant, *_means_beside(these, names)]
                for variant in dict.fromkeys(row["variant"] for row in rows)
                for name in (*of, "**all**")
                if (these := [r for r in rows if r["variant"] == variant and _free(r) in of.get(name, {_free(r)})])
            ]
            head = ["shapes", "variant", *(f"× {name}" for name in names)]
            parts.append(f"{place(document)}; geometric mean (least)\n\n{table(head, lines, 2)}")
    return "\n\n".join(parts) or not_yet("tirgemm bench invariant")


def _free(row: Row) -> str:
    """The problem of a row without ``invariant``."""
    return str(Gemm.parse(row["gemm"]).with_(invariant=False))


def _means_beside(rows: Sequence[Row], names: Sequence[str]) -> list[str]:
    """Mean and least of the ratios to each baseline."""
    return [geomean([row["baselines"].get(name, {}).get("ratio") for row in rows]) for name in names]


def _worst_m(rows: Sequence[Row], name: str) -> str:
    """The m of the least ratio to a baseline."""
    ratios = {row["gemm"]: row["baselines"][name]["ratio"] for row in rows if name in row["baselines"]}
    return str(Gemm.parse(min(ratios, key=ratios.__getitem__)).m_max) if ratios else ""


_NOT_YET = not_yet("tirgemm bench square deepgemm llama skinny odd")
TABLES = named(
    *(summary, shapes, bandwidth, stores, knobs, knob_worth, proposals),
    *(zero_shot, efforts, held_out, versions, sets, invariant),
)
