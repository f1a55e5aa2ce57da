"""The check of results files: figures, suites, commits, and the sources behind evidence.

Every median, ratio and summary follows from the samples; a suite is complete; what is measured was raced twice; a row's
commit is an ancestor of this checkout's, and older than the row; evidence is of kernels whose generated source is
today's, which is asked of ``SAMPLED`` kernels a file, always the same, or of all of them. Where the history is not here
commits are not checked, and the last line says so.

usage: check.py [--all] [FILE...]     default: every file under benchmarks/results, and the shipped records; exit code 1
where anything is wrong
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import mma_ceiling, proof_tables
from benchmarks.counted import document as counted
from benchmarks.counted import traffic
from benchmarks.history import History
from benchmarks.many_devices import document as many_devices
from benchmarks.models import document as models
from benchmarks.service_speed import document as service_speed
from benchmarks.suite_tables import RANKED_BY
from benchmarks.tables import candidates_of, differing, differs, repeated
from benchmarks.timeline import document as timelines
from tirgemm import Config, Gemm, TirgemmError
from tirgemm.bench.held_out import held_out
from tirgemm.bench.results import FORMAT, load, race
from tirgemm.bench.suite_file import Suite
from tirgemm.tuning.records import Candidate, Status
from tirgemm.tuning_db import shipped
from verification import evidence, sources

HERE = Path(__file__).resolve().parent
STATUSES = {"measured", "skipped", "build_failed", "wrong", "timed_out", "crashed"}
LEAST_ISOLATED, LEAST_RACES = 50, 2
# Kernels of an evidence file that are lowered again, unless all are asked for.
SAMPLED = 8
ORIGIN = ("commit", "at", "source_sha256")
ENVIRONMENT = ("device", "device_key", "python", "tvm", "torch", "tirgemm", "commit", "date")
FIELDS = (
    *ORIGIN,
    "races",
    "gemm",
    "family",
    "variant",
    "config_hash",
    "config",
    "status",
    "samples_us",
    "median_us",
    "tflops",
    "error",
    "clock_mhz",
    "power_w",
    "throttled",
    "workspace_bytes",
    "artifact_sha256",
    "baselines",
)


def main(arguments: list[str]) -> int:
    options = _options(arguments)
    paths = options.files or [*tracked(HERE / "results"), *tracked(shipped.FOLDER)]
    history = History(HERE.parent)
    wrong = [f"{path}: {sentence}" for path in paths for sentence in faults(path, history=history, every=options.all)]
    print("\n".join(wrong) if wrong else f"{len(paths)} results files are right")
    if history.unknown:
        print(f"commits are not checked: {history.unknown}")
    return 1 if wrong else 0


def tracked(results: Path) -> list[Path]:
    """Every results file of a folder, compressed ones and records files too."""
    return sorted([*results.rglob("*.json"), *results.rglob("*.json.gz"), *results.rglob("*.jsonl.gz")])


def faults(
    path: Path, suites: Path = HERE / "suites", *, history: History | None = None, every: bool = False
) -> list[str]:
    """Every sentence that is wrong about one results file; ``every`` kernel of evidence is lowered again, or a few."""
    history = history or History(HERE.parent)
    try:
        if path.name.endswith(".jsonl.gz"):
            return _records(path)
        document = load(path)
        if document.get("format") == evidence.FORMAT:
            head = _head(path, document, "family", "kind", ".json.gz")
            return [*head, *evidence.faults(document), *_evidence(document, history, every)]
        if document["suite"] == "calls":
            return [*_calls(document), *_origins(document["rows"], history)]
        for kind in (models, service_speed, many_devices, proof_tables, mma_ceiling, traffic):
            if document["suite"] == kind.SUITE:
                return [*_environment(document), *kind.faults(document), *_origins(document["rows"], history)]
        if document["suite"] == timelines.SUITE:
            sentences = [*_environment(document | {"rows": []}), *timelines.faults(document)]
            return [*sentences, *_origins([timelines.origin(document)], history)]
        if document["suite"] == "counters":
            return [*counted.faults(document), *_origins(document["cases"], history)]
        replayed = {"proposal_sources": _sources, "zero_shot_folds": _folds, "effort_replay": _replays}
        if document["suite"] in replayed:
            origin = document["environment"] | {"at": document["environment"]["date"], "status": "replayed"}
            sentences = [*_environment(document), *_origins([origin], history)]
            return [*sentences, *replayed[document["suite"]](document)]
        if document["format"] != FORMAT:
            return [f"its format is {document['format']}, not {FORMAT}: its rows do not name their commits"]
        suite = held_out(document["suite"]) or Suite.read(suites / f"{document['suite']}.json")
        return [
            *_head(path, document, "suite", "regime", ".json", ".json.gz"),
            *_complete(document, suite),
            *_rows(document),
            *_streams(document),
            *_pairs(document),
            *_same_kernels(document),
            *_summary(document),
            *_origins(document["rows"], history),
        ]
    except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError) as error:
        return [f"it is not a results file: {error!r}"]


def _replays(document: dict[str, Any]) -> Iterator[str]:
    """What is wrong with replayed searches: rules that end elsewhere than their expectations say, and the summary."""
    from benchmarks.effort_replay import RULES, ended, summary

    for row in document["rows"]:
        wrong = [rule for rule in RULES if row[rule] != ended(row["batches"], rule)]
        if wrong:
            yield f"{row['gemm']}: rule {wrong[0]} ends at {ended(row['batches'], wrong[0])}, not {row[wrong[0]]}"
    if document["summary"] != summary(document["rows"]):
        yield "its summary is not that of its rows"


def _origins(rows: Iterable[dict[str, Any]], history: History) -> Iterator[str]:
    """What is wrong with the commits, times and source hashes of rows: a sentence, and of how many rows it is true."""
    sentences: Counter[str] = Counter()
    for row in rows:
        sentences[history.problem(row.get("commit"), row.get("at"))] += 1
        if row.get("status", "measured") in ("measured", "counted") and len(row.get("source_sha256") or "") != 64:
            sentences["it has no source hash"] += 1
    yield from (f"{count} rows: {sentence}" for sentence, count in sentences.items() if sentence)


def _evidence(document: dict[str, Any], history: History, every: bool) -> Iterator[str]:
    rows = document["rows"]
    yield from _origins(rows, history)
    kernels = sources.kernels(rows)
    chosen = kernels if every else kernels[:SAMPLED]
    for row, reason in sources.stale(document["family"], document["kind"], chosen):
        yield f"{row['key']} is evidence of another kernel: {reason}"


def _head(path: Path, document: dict[str, Any], first: str, second: str, *endings: str) -> Iterator[str]:
    """What is wrong with the environment, and with a name that two fields of the head make, with one of ``endings``."""
    name = f"{document[first]}.{document[second]}"
    if path.name not in [name + ending for ending in endings]:
        yield f"its {first} and {second} make the name {name}{endings[0]}"
    yield from _environment(document)


def _environment(document: dict[str, Any]) -> Iterator[str]:
    for field in ENVIRONMENT:
        if field not in document["environment"]:
            yield f"environment lacks {field}"
    beside = {name for row in document["rows"] for name in row.get("baselines", ())}
    if "torch.matmul" in beside and not document["environment"].get("torch_settings"):
        yield "environment lacks torch_settings, under which torch.matmul was timed"


def _records(path: Path) -> list[str]:
    """A records file: it can be read, and a candidate has times where it was measured."""
    try:
        candidates = candidates_of(path)
    except TirgemmError as error:
        return [str(error)]
    return [
        f"{c.config} for {c.gemm}, {c.regime}, is {c.status} and took {us} us"
        for c, us in ((c, _took(c)) for c in candidates)
        if c.status is Status.MEASURED and not (us and us > 0)
    ]


def _took(candidate: Candidate) -> float | None:
    """Microseconds in a search or, of what was only raced behind one, there."""
    raced = [samples.median_us for samples in candidate.sample_sets if samples.reason == "report"]
    return candidate.search_us if candidate.search_us is not None or not raced else raced[-1]


def _folds(document: dict[str, Any]) -> Iterator[str]:
    """Every problem is there once; its shares are up to 1 and grow with how many of the first are looked at."""
    yield from repeated(f"{row['gemm']} {row['regime']}" for row in document["rows"])
    for row in document["rows"]:
        gemm = Gemm.parse(row["gemm"])
        if row["fold"] != f"{gemm.n}x{gemm.k}":
            yield f"{row['gemm']} lies in the fold {row['fold']}"
        for name in RANKED_BY.keys() & row.keys():
            shares = row[name]
            if (
                len(shares) != len(document["first"])
                or sorted(shares) != shares
                or not 0 < shares[0] <= shares[-1] <= 1
            ):
                yield f"{row['gemm']} {row['regime']}: the shares of its {name} are {shares}"


def _sources(document: dict[str, Any]) -> Iterator[str]:
    """After more trials the best is no slower, and never faster than the optimum."""
    for row in document["rows"]:
        for ratios in row["over_optimum"]:
            if len(ratios) != len(document["trials"]) or ratios != sorted(ratios, reverse=True) or ratios[-1] < 1:
                yield f"{row['space']}, {row['source']}: {ratios} over the optimum after {document['trials']} trials"


def _streams(document: dict[str, Any]) -> Iterator[str]:
    """The bandwidths of reading and writing alone follow from their samples; rows name one that was measured."""
    streams = document.get("streams", [])
    for number, stream in enumerate(streams):
        median = statistics.median(stream["samples_us"])
        yield from differs(f"median_us of stream {number}", stream["median_us"], median)
        yield from differs(f"read_gbps of stream {number}", stream["read_gbps"], stream["bytes"] / median / 1e3)
        if "write_us" in stream:
            wanted = stream["bytes"] / statistics.median(stream["write_us"]) / 1e3
            yield from differs(f"write_gbps of stream {number}", stream["write_gbps"], wanted)
    known = {stream["read_gbps"] for stream in streams}
    for row in document["rows"]:
        read = row.get("conditions", {}).get("read_gbps")
        if read is not None and read not in known:
            yield f"{row['gemm']}, {row['variant']}: its read_gbps {read} was not measured in this file"


def _pairs(document: dict[str, Any]) -> Iterator[str]:
    """Rows of one contest hold the same samples of default and baselines; isolated ones are enough."""
    default = _defaults(document)
    for row in document["rows"]:
        name, at = f"{row['gemm']}, {row['variant']}", row.get("conditions", {}).get("at")
        count = min((entry["samples"] for entry in row["races"]), default=0)
        if document["regime"] == "isolated" and row["status"] == "measured" and count < LEAST_ISOLATED:
            yield f"{name}: a race of {count} samples has fewer than {LEAST_ISOLATED}"
        other = default.get(row["gemm"], row)
        if at is None or row["variant"] == "default" or other.get("conditions", {}).get("at") != at:
            continue
        expected = {n: b["samples_us"] for n, b in other["baselines"].items()} | {"default": other["samples_us"]}
        differing = [n for n, b in row["baselines"].items() if n in expected and expected[n] != b["samples_us"]]
        if differing:
            yield f"{name}: samples of {', '.join(differing)} differ from the default's row of the same run"


def _defaults(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """By problem the row of its default, which is what zero-shot gives, too."""
    rows = document["rows"]
    return {row["gemm"]: row for name in ("zero_shot", "default") for row in rows if row["variant"] == name}


def _same_kernels(document: dict[str, Any]) -> Iterator[str]:
    """A row of the default's very config is the default: the same samples, a ratio of exactly 1. One that was raced at
    another time (``conditions.at``) than the default's row is compared with the default that was raced beside it."""
    defaults = _defaults(document)
    for row in document["rows"]:
        other = defaults.get(row["gemm"], row)
        if row is other or row["status"] != "measured" or row["config_hash"] != other["config_hash"]:
            continue
        own, at = row["baselines"].get("default", {}), row.get("conditions", {}).get("at")
        raced_together = at is None or at == other.get("conditions", {}).get("at")
        default_us = other["samples_us"] if raced_together else own.get("samples_us")
        if row["samples_us"] != default_us or own.get("ratio") != 1:
            yield (
                f"{row['gemm']}, {row['variant']}: it is the default's config, but not "
                f"the default's samples at a ratio of 1"
            )


def _calls(document: dict[str, Any]) -> Iterator[str]:
    """The file of call_overhead.py: one row a way of calling."""
    yield from _environment(document)
    for row in document["rows"]:
        given = {"median_us": statistics.median(row["samples_us"]), "min_us": min(row["samples_us"])}
        yield from (f"{row['way']}: {sentence}" for sentence in differing(row, given))


def _complete(document: dict[str, Any], suite: Suite) -> Iterator[str]:
    """Every shape of the suite has a row in every variant that occurs, and no row is of another shape or double."""
    shapes = {str(gemm) for gemm in suite.gemms}
    rows = document["rows"]
    variants = sorted({row["variant"] for row in rows})
    if not variants:
        yield "it has no rows"
    for variant in variants:
        present = {row["gemm"] for row in rows if row["variant"] == variant}
        for gemm in sorted(shapes - present):
            yield f"{gemm} has no row in variant {variant}"
        for gemm in sorted(present - shapes):
            yield f"{gemm} is not in suite {suite.name}"
    keys = Counter((row["gemm"], row["family"], row["variant"], row["config_hash"]) for row in rows)
    for key, count in keys.items():
        if count > 1:
            yield f"{count} rows have the key {key}"


def _rows(document: dict[str, Any]) -> Iterator[str]:
    for number, row in enumerate(document["rows"]):
        name = f"row {number} ({row.get('gemm')}, {row.get('variant')})"
        absent = [field for field in FIELDS if field not in row]
        if absent:
            yield f"{name} lacks {', '.join(absent)}"
        elif row["status"] not in STATUSES:
            yield f"{name} has status {row['status']!r}"
        elif row["status"] == "measured":
            yield from (f"{name}: {sentence}" for sentence in _measured(row))
        elif row["samples_us"] or row["median_us"] is not None or row["baselines"]:
            yield f"{name} is {row['status']} and has figures"
        elif not row.get("message"):
            yield f"{name} is {row['status']} and does not say why"


def _measured(row: dict[str, Any]) -> Iterator[str]:
    if not row["samples_us"] or min(row["samples_us"]) <= 0:
        yield "it is measured and has no samples above 0"
        return
    median = statistics.median(row["samples_us"])
    yield from differs("median_us", row["median_us"], median)
    yield from differs("tflops", row["tflops"], Gemm.parse(row["gemm"]).flops / median / 1e6)
    for name, baseline in row["baselines"].items():
        other = statistics.median(baseline["samples_us"])
        yield from differs(f"median_us of {name}", baseline["median_us"], other)
        yield from differs(f"ratio to {name}", baseline["ratio"], other / median)
    if len(row["races"]) < LEAST_RACES:
        yield f"it was raced {len(row['races'])} times; at least {LEAST_RACES} are published"
    if _races(row) != row["races"]:
        yield "its races are not what its samples give"
    if not isinstance(row["error"], (int, float)) or not 0 <= row["error"] <= 1:
        yield f"its error is {row['error']} of the bound"
    try:
        config = Config.from_json(row["config"])
        if (config.digest, config.family) != (row["config_hash"], row["family"]):
            yield (
                f"config_hash and family are {row['config_hash']}, {row['family']}; the "
                f"config's are {config.digest}, {config.family}"
            )
    except TirgemmError as error:
        yield str(error)


def _races(row: dict[str, Any]) -> list[dict[str, Any]]:
    """The races again from the row's samples, of which each has the next so many; none where they are not all."""
    left = {name: list(baseline["samples_us"]) for name, baseline in row["baselines"].items()}
    left[""] = list(row["samples_us"])
    races = []
    for stored in row["races"]:
        parts = {}
        for name, count in {"": stored["samples"], **{n: e["samples"] for n, e in stored["baselines"].items()}}.items():
            parts[name], left[name] = left[name][:count], left[name][count:]
            if not parts[name]:
                return []
        races.append(race(stored["at"], parts.pop(""), parts))
    return [] if any(left.values()) else races


def _summary(document: dict[str, Any]) -> Iterator[str]:
    ratios: dict[tuple[str, str], list[float]] = {}
    for row in document["rows"]:
        if row["status"] == "measured" and row["samples_us"]:
            for name, baseline in row["baselines"].items():
                ratio = statistics.median(baseline["samples_us"]) / statistics.median(row["samples_us"])
                ratios.setdefault((row["variant"], name), []).append(ratio)
    given = {(v, name): entry for v, baselines in document["summary"].items() for name, entry in baselines.items()}
    if set(given) != set(ratios):
        yield f"the summary is over {sorted(given)}; the rows are over {sorted(ratios)}"
    for key in sorted(set(given) & set(ratios)):
        measured, entry = ratios[key], given[key]
        what = f"of {key[0]} against {key[1]}"
        yield from differs(f"geomean {what}", entry["geomean"], math.prod(measured) ** (1 / len(measured)))
        yield from differs(f"min {what}", entry["min"], min(measured))
        yield from differs(f"count {what}", entry["count"], len(measured))


def _options(arguments: list[str]) -> argparse.Namespace:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--all", action="store_true", help="lower every kernel of evidence again: half an hour")
    made.add_argument("files", nargs="*", type=Path)
    return made.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
