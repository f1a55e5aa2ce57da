"""Check results files: every median, ratio and summary again from the samples, and that each suite is complete.

usage: check.py [FILE...]     default: every file under benchmarks/results; exit code 1 where anything is wrong
"""

from __future__ import annotations

import gzip
import json
import math
import statistics
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from benchmarks import mma_ceiling  # noqa: E402 - found by the line above
from benchmarks.counted import document as counted  # noqa: E402 - found by the line above
from benchmarks.verification import evidence  # noqa: E402
from tirgemm import Config, Gemm, TirgemmError  # noqa: E402
from tirgemm.tuning.measured_configs import FORMAT as MEASURED_CONFIGS  # noqa: E402
from tirgemm.tuning.measured_configs import MeasuredConfigs  # noqa: E402
from tirgemm.tuning.records import Status  # noqa: E402

STATUSES = {"measured", "skipped", "build_failed", "wrong", "timed_out", "crashed"}
LEAST_ISOLATED = 50
ENVIRONMENT = ("device", "device_key", "python", "tvm", "torch", "tirgemm", "commit", "date")
FIELDS = (
    "gemm", "family", "variant", "config_hash", "config", "status", "samples_us", "median_us", "tflops", "error",
    "clock_mhz", "power_w", "throttled", "workspace_bytes", "artifact_sha256", "baselines",
)  # fmt: skip


def main(arguments: list[str]) -> int:
    paths = [Path(text) for text in arguments] or tracked(HERE / "results")
    wrong = [f"{path}: {sentence}" for path in paths for sentence in problems(path)]
    print("\n".join(wrong) if wrong else f"{len(paths)} results files are right")
    return 1 if wrong else 0


def tracked(results: Path) -> list[Path]:
    """Every results file of a folder, compressed ones and the searches' files too."""
    return sorted([*results.rglob("*.json"), *results.rglob("*.json.gz")])


def problems(path: Path, suites: Path = HERE / "suites") -> list[str]:
    """Every sentence that is wrong about one results file."""
    try:
        document = _load(path)
        if document.get("format") == MEASURED_CONFIGS:
            return _configs(path)
        if document.get("format") == evidence.FORMAT:
            return [*_evidence_head(path, document), *evidence.problems(document)]
        if document["suite"] == "calls":
            return list(_calls(document))
        if document["suite"] == "counters":
            return list(counted.problems(document))
        if document["suite"] == mma_ceiling.SUITE:
            return [*_environment(document), *mma_ceiling.problems(document)]
        suite = json.loads((suites / f"{document['suite']}.json").read_text())
        return [
            *_head(path, document), *_complete(document, suite), *_rows(document), *_streams(document),
            *_pairs(document), *_summary(document),
        ]  # fmt: skip
    except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError) as error:
        return [f"it is not a results file: {error!r}"]


def _head(path: Path, document: dict[str, Any]) -> Iterator[str]:
    name = f"{document['suite']}.{document['regime']}.json"
    if path.name not in (name, f"{name}.gz"):
        yield f"its suite and regime make the name {name}"
    yield from _environment(document)


def _evidence_head(path: Path, document: dict[str, Any]) -> Iterator[str]:
    name = f"{document['family']}.{document['kind']}.json.gz"
    if path.name != name:
        yield f"its family and kind make the name {name}"
    yield from _environment(document)


def _environment(document: dict[str, Any]) -> Iterator[str]:
    for field in ENVIRONMENT:
        if field not in document["environment"]:
            yield f"environment lacks {field}"


def _load(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    document: dict[str, Any] = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
    return document


def _configs(path: Path) -> list[str]:
    """A search's file: it can be read, and every entry that was measured has a time."""
    try:
        found = MeasuredConfigs.load(path)
    except TirgemmError as error:
        return [str(error)]
    bad = [e for e in found.entries if (e.us is not None) != (e.status is Status.MEASURED) or (e.us or 1.0) <= 0]
    return [f"{entry.config} of session {entry.session} is {entry.status} and took {entry.us} us" for entry in bad]


def _streams(document: dict[str, Any]) -> Iterator[str]:
    """The bandwidth of reading alone follows from its samples, and rows name one that was measured."""
    streams = document.get("streams", [])
    for number, stream in enumerate(streams):
        median = statistics.median(stream["samples_us"])
        yield from _differs(f"median_us of stream {number}", stream["median_us"], median)
        yield from _differs(f"read_gbps of stream {number}", stream["read_gbps"], stream["bytes"] / median / 1e3)
    known = {stream["read_gbps"] for stream in streams}
    for row in document["rows"]:
        read = row.get("conditions", {}).get("read_gbps")
        if read is not None and read not in known:
            yield f"{row['gemm']}, {row['variant']}: its read_gbps {read} was not measured in this file"


def _pairs(document: dict[str, Any]) -> Iterator[str]:
    """Rows of one contest hold the same samples of default and baselines; isolated ones are enough."""
    default = {row["gemm"]: row for row in document["rows"] if row["variant"] == "default"}
    for row in document["rows"]:
        name, at = f"{row['gemm']}, {row['variant']}", row.get("conditions", {}).get("at")
        count = len(row["samples_us"])
        if document["regime"] == "isolated" and row["status"] == "measured" and count < LEAST_ISOLATED:
            yield f"{name}: {count} samples are fewer than {LEAST_ISOLATED}"
        other = default.get(row["gemm"], row)
        if at is None or row["variant"] == "default" or other.get("conditions", {}).get("at") != at:
            continue
        expected = {n: b["samples_us"] for n, b in other["baselines"].items()} | {"default": other["samples_us"]}
        differing = [n for n, b in row["baselines"].items() if n in expected and expected[n] != b["samples_us"]]
        if differing:
            yield f"{name}: samples of {', '.join(differing)} differ from the default's row of the same run"


def _calls(document: dict[str, Any]) -> Iterator[str]:
    """The file of call_overhead.py: one row a way of calling."""
    yield from _environment(document)
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
