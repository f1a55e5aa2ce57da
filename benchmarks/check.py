"""Check results files: every median, ratio and summary again from the samples, and that each suite is complete.

usage: check.py [FILE...]     default: every file under benchmarks/results; exit code 1 where anything is wrong
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tirgemm import Config, Gemm, TirgemmError

HERE = Path(__file__).resolve().parent
STATUSES = {"measured", "skipped", "build_failed", "wrong", "timed_out", "crashed"}
ENVIRONMENT = ("device", "device_key", "python", "tvm", "torch", "tirgemm", "commit", "date")
FIELDS = (
    "gemm", "family", "variant", "config_hash", "config", "status", "samples_us", "median_us", "tflops", "error",
    "clock_mhz", "power_w", "throttled", "workspace_bytes", "artifact_sha256", "baselines",
)  # fmt: skip


def main(arguments: list[str]) -> int:
    paths = [Path(text) for text in arguments] or sorted((HERE / "results").rglob("*.json"))
    wrong = [f"{path}: {sentence}" for path in paths for sentence in problems(path)]
    print("\n".join(wrong) if wrong else f"{len(paths)} results files are right")
    return 1 if wrong else 0


def problems(path: Path, suites: Path = HERE / "suites") -> list[str]:
    """Every sentence that is wrong about one results file."""
    try:
        document = json.loads(path.read_text())
        if document["suite"] == "calls":
            return list(_calls(document))
        suite = json.loads((suites / f"{document['suite']}.json").read_text())
        return [*_head(path, document), *_complete(document, suite), *_rows(document), *_summary(document)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return [f"it is not a results file: {error!r}"]


def _head(path: Path, document: dict[str, Any]) -> Iterator[str]:
    name = f"{document['suite']}.{document['regime']}.json"
    if path.name != name:
        yield f"its suite and regime make the name {name}"
    for field in ENVIRONMENT:
        if field not in document["environment"]:
            yield f"environment lacks {field}"


def _calls(document: dict[str, Any]) -> Iterator[str]:
    """The file of call_overhead.py: one row a way of calling."""
    for field in ENVIRONMENT:
        if field not in document["environment"]:
            yield f"environment lacks {field}"
    for row in document["rows"]:
        if not math.isclose(row["median_us"], statistics.median(row["samples_us"]), rel_tol=1e-9):
            yield f"{row['way']}: median_us is {row['median_us']}, of the samples {statistics.median(row['samples_us'])}"
        if row["min_us"] != min(row["samples_us"]):
            yield f"{row['way']}: min_us is {row['min_us']}, of the samples {min(row['samples_us'])}"


def _complete(document: dict[str, Any], suite: dict[str, Any]) -> Iterator[str]:
    """Every shape of the suite has a row in every variant that occurs, and no row is of another shape or double."""
    shapes = {str(Gemm.parse(text)) for text in suite["gemms"]}
    rows = document["rows"]
    variants = sorted({row["variant"] for row in rows})
    if not variants:
        yield "it has no rows"
    for variant in variants:
        found = {row["gemm"] for row in rows if row["variant"] == variant}
        for gemm in sorted(shapes - found):
            yield f"{gemm} has no row in variant {variant}"
        for gemm in sorted(found - shapes):
            yield f"{gemm} is not in suite {suite['name']}"
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
    yield from _differs("median_us", row["median_us"], median)
    yield from _differs("tflops", row["tflops"], Gemm.parse(row["gemm"]).flops / median / 1e6)
    for name, baseline in row["baselines"].items():
        other = statistics.median(baseline["samples_us"])
        yield from _differs(f"median_us of {name}", baseline["median_us"], other)
        yield from _differs(f"ratio to {name}", baseline["ratio"], other / median)
    if not isinstance(row["error"], (int, float)) or not 0 <= row["error"] <= 1:
        yield f"its error is {row['error']} of the bound"
    try:
        config = Config.from_json(row["config"])
        if (config.digest, config.family) != (row["config_hash"], row["family"]):
            yield f"config_hash and family are {row['config_hash']}, {row['family']}; the config's are {config.digest}, {config.family}"
    except TirgemmError as error:
        yield str(error)


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
        found, entry = ratios[key], given[key]
        what = f"of {key[0]} against {key[1]}"
        yield from _differs(f"geomean {what}", entry["geomean"], math.prod(found) ** (1 / len(found)))
        yield from _differs(f"min {what}", entry["min"], min(found))
        yield from _differs(f"count {what}", entry["count"], len(found))


def _differs(what: str, given: object, computed: float) -> Iterator[str]:
    if not isinstance(given, (int, float)) or not math.isclose(given, computed, rel_tol=1e-9):
        yield f"{what} is {given}; the samples give {computed}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
