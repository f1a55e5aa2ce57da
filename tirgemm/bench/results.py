"""Results files: ``benchmarks/results/<device>/<suite>.<regime>.json``, one row a shape and variant, samples included.

A row names the ``commit`` and the time (``at``) that it was measured at and the source hash of its kernel
(``source_sha256``, docs/results.md). Every figure follows from the samples as they are stored (five digits, to the
nanosecond at most, 50 of a kind and race): ``benchmarks/check.py`` computes it again. ``samples_us`` are those of all
``races`` in their order; each race says how many are its own, and its median and ratios, so that the spread shows.
A path that ends in ``.gz`` is compressed. ``streams`` are the measurements of reading alone, one a run; a row names
the bandwidth of its run.
"""

from __future__ import annotations

import gzip
import json
import re
import statistics
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

from tirgemm._version import __version__
from tirgemm.artifact.regular_file import open_regular, write_whole
from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.errors import InvalidRequest
from tirgemm.gemm import Gemm, Regime
from tirgemm.tuning.measure.conditions import now
from tirgemm.tuning.records import SampleSet

Row: TypeAlias = "dict[str, Any]"
Document: TypeAlias = "dict[str, Any]"

FORMAT = 2
DECIMALS, DIGITS = 3, 5
MAX_SAMPLES = 50
# What programs that measure write, and what ``benchmarks/render.py`` makes of it: a change there changes no kernel.
_OUTPUTS = ("benchmarks/results", "docs", "README.md")
_CONDITIONS = ("at", "swapped", "operand_sets", "temperature_c", "absent", "left_out")


@dataclass(frozen=True, slots=True)
class MeasuredKernel:
    """What was measured: its largest error over the bound, the bytes of its workspace, and the SHA-256 of its artifact
    and of its source."""

    error: float
    workspace_bytes: int
    artifact_sha256: str
    source_sha256: str


def measured_row(
    gemm: Gemm,
    config: Config,
    variant: str,
    races: Sequence[SampleSet],
    kernel: MeasuredKernel,
    conditions: dict[str, Any] | None = None,
) -> Row:
    """The row of a variant that was measured in every race, beside what ran interleaved with it. ``conditions`` are the
    run's."""
    names = sorted({name for samples in races for name, raw in samples.baselines.items() if raw})
    ours = [rounded(samples.samples_us) for samples in races]
    beside = {name: [rounded(samples.baselines.get(name, ())) for samples in races] for name in names}
    first = races[0].conditions
    every = list(chain(*ours))
    median = statistics.median(every)
    throttled = sorted({reason for samples in races for reason in samples.conditions.get("throttled") or ()})
    return _row(gemm, config, variant, "measured", "") | {
        "source_sha256": kernel.source_sha256,
        "at": first.get("at"),
        "races": [
            race(samples.conditions.get("at"), ours[i], {name: raw[i] for name, raw in beside.items() if raw[i]})
            for i, samples in enumerate(races)
        ],
        "samples_us": every,
        "median_us": median,
        "tflops": gemm.flops / median / 1e6,
        "baselines": {
            name: {"samples_us": raw, "median_us": statistics.median(raw), "ratio": statistics.median(raw) / median}
            for name, raw in ((name, list(chain(*parts))) for name, parts in beside.items())
        },
        "error": kernel.error,
        "clock_mhz": first.get("clock_mhz"),
        "power_w": first.get("power_w"),
        "throttled": throttled if "throttled" in first else None,
        "workspace_bytes": kernel.workspace_bytes,
        "artifact_sha256": kernel.artifact_sha256,
        "conditions": conditions or {},
    }


def race_conditions(races: Sequence[SampleSet]) -> dict[str, Any]:
    """What a row says of its races: what they were taken under, and what baselines chose that are tuned first."""
    first = races[0].conditions
    conditions = {
        name: value for one in reversed(races) for name, value in one.conditions.items() if name in _CONDITIONS
    }
    picked = {name: first[name] for name in races[0].baselines if isinstance(first.get(name), dict)}
    conditions |= {"baseline_configs": {name: choice["label"] for name, choice in picked.items()}} if picked else {}
    tried = {name: baseline_candidates(choice) for name, choice in picked.items() if "labels" in choice}
    return conditions | ({"baseline_ways": tried} if tried else {})


def race(at: str | None, ours: list[float], baselines: Mapping[str, list[float]]) -> dict[str, Any]:
    """One race of a row: how many of the samples are its own, its median time, and its ratio to each baseline."""
    median = statistics.median(ours)
    beside = {name: {"samples": len(raw), "ratio": statistics.median(raw) / median} for name, raw in baselines.items()}
    return {"at": at, "samples": len(ours), "median_us": median, "baselines": beside}


def spread(row: Row) -> float:
    """How far the races of a row lie apart: the largest of their median times over the least, less 1."""
    medians: list[float] = [entry["median_us"] for entry in row["races"]]
    return max(medians) / min(medians) - 1


def unmeasured_row(gemm: Gemm, config: Config | None, variant: str, status: str, message: str) -> Row:
    """The row of a shape that failed or was skipped, with the reason."""
    absent = (
        "source_sha256",
        "at",
        "median_us",
        "tflops",
        "error",
        "clock_mhz",
        "power_w",
        "throttled",
        "workspace_bytes",
        "artifact_sha256",
    )
    empty: Row = {"races": [], "samples_us": [], "baselines": {}, "conditions": {}}
    return _row(gemm, config, variant, status, message) | dict.fromkeys(absent) | empty


def baseline_candidates(choice: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Every candidate of a baseline with its microseconds, by the choice that it was timed by."""
    finals, screened = choice["finals_us"], choice["screened_us"]
    return [label | {"us": finals.get(str(i), screened[i])} for i, label in enumerate(choice["labels"])]


def summary(rows: Iterable[Row]) -> dict[str, dict[str, dict[str, float]]]:
    """By variant and baseline: geometric mean and least of the ratios, and how many rows have one."""
    ratios: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        for name, baseline in row["baselines"].items():
            ratios.setdefault(row["variant"], {}).setdefault(name, []).append(baseline["ratio"])
    return {
        variant: {
            name: {"geomean": statistics.geometric_mean(speedups), "min": min(speedups), "count": len(speedups)}
            for name, speedups in sorted(baselines.items())
        }
        for variant, baselines in sorted(ratios.items())
    }


def _torch_settings() -> dict[str, Any]:
    from tirgemm.tuning.measure.baselines.torch_baseline import PINNED  # brings tvm_ffi, which readers do without

    return PINNED


def environment(device: Device, repository: Path | None, commit: str | None = None) -> dict[str, Any]:
    """What the figures were taken on: device, driver, CUDA, TVM, PyTorch, the program's commit, the date.

    ``commit`` is for a copy of the program without its history, which cannot tell.
    """
    torch = version_of("torch")
    return dict(device.environment) | {
        "device": device.model,
        "device_key": device.key,
        "torch": torch,
        "torch_settings": _torch_settings() if torch else None,
        "numpy": version_of("numpy"),
        "tirgemm": __version__,
        "commit": commit or _commit(repository),
        "date": now(),
    }


def measured_at(environment: Mapping[str, Any], source_sha256: str | None, at: str | None = None) -> Row:
    """What every row says of its origin: the program's commit, the time (now), the kernel's source hash."""
    return {"commit": environment.get("commit"), "at": at or now(), "source_sha256": source_sha256}


def device_folder(device: Device) -> str:
    """The folder of a device's results: ``nvidia-h200``, ``amd-epyc-9575f-2`` (threads)."""
    model = re.sub(r"[^a-z0-9]+", "-", device.model.lower()).strip("-")
    return model if device.kind == "cuda" else f"{model}-{device.units}"


class ResultsFile:
    """One results file, written after every row, so that a run that is killed keeps what it has measured."""

    def __init__(self, path: Path, suite: str, regime: Regime, environment: dict[str, Any], *, resume: bool) -> None:
        self.path = path
        self.document: Document = {
            "format": FORMAT,
            "suite": suite,
            "regime": regime,
            "environment": environment,
            "rows": [],
            "summary": {},
        }
        if resume and path.exists():
            old = resumed(path, self.document)
            self.document |= {name: list(old[name]) for name in ("rows", "streams") if name in old}

    @property
    def rows(self) -> list[Row]:
        rows: list[Row] = self.document["rows"]
        return rows

    def find(self, gemm: Gemm, variant: str) -> Row | None:
        """The measured row of a shape and variant."""
        sought = str(gemm), variant, "measured"
        return next((row for row in self.rows if (row["gemm"], row["variant"], row["status"]) == sought), None)

    def put(self, *rows: Row) -> None:
        """Add rows of this run, which are given its commit, in place of those of the same shape and variant, and write
        the file."""
        keys = [(row["gemm"], row["variant"]) for row in rows]
        kept = [old for old in self.rows if (old["gemm"], old["variant"]) not in keys]
        for row in rows:
            row.update({"commit": self.document["environment"].get("commit"), "at": row["at"] or now()})
        self.document["rows"] = [*kept, *rows]
        self.save()

    def add_stream(self, samples: SampleSet) -> float:
        """Record a measurement of reading alone, and of writing where there is one; reading's bandwidth in GB/s."""
        raw = rounded(samples.samples_us)
        nbytes, median = int(samples.conditions["bytes"]), statistics.median(raw)
        stream = {"at": samples.conditions["at"], "bytes": nbytes, "samples_us": raw, "median_us": median}
        stream["read_gbps"] = nbytes / median / 1e3
        if writing := samples.conditions.get("write_us"):
            stream |= {"write_us": rounded(writing), "write_gbps": nbytes / statistics.median(rounded(writing)) / 1e3}
        self.document.setdefault("streams", []).append(stream)
        return nbytes / median / 1e3

    def arrange(self, gemms: Sequence[Gemm], variants: Sequence[str]) -> None:
        """Put the rows into the suite's order, drop those of other shapes, and write the file."""
        order = {str(gemm): number for number, gemm in enumerate(gemms)}
        names = {name: number for number, name in enumerate(variants)}
        kept = [row for row in self.rows if row["gemm"] in order]
        kept.sort(key=lambda row: (order[row["gemm"]], names.get(row["variant"], len(names)), row["variant"]))
        self.document["rows"] = kept
        self.save()

    def save(self) -> None:
        self.document["summary"] = summary(self.rows)
        write(self.path, self.document)


def figures_document(
    suite: str, environment: Mapping[str, Any], rows: Sequence[Row], regime: str | None = None, **more: Any
) -> Document:
    """The document of figures that are of no shape: their rows as they are behind ``more``, with no summary."""
    head = {"format": 1, "suite": suite, "regime": regime or suite, "environment": dict(environment)}
    return head | more | {"rows": list(rows)}


def resumed(path: Path, document: Document) -> Document:
    """The results file that a run goes on with, whose ``document`` has no rows yet. Raises InvalidRequest for one of
    another format, suite, regime or environment."""
    try:
        old, environment = load(path), document["environment"]
        form, rows, before = old["format"], list(old["rows"]), dict(old["environment"])
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidRequest(f"{path} is not a results file, so that nothing can be resumed: {error!r}") from error
    names = (set(before) | set(environment)) - {"date", "commit"}
    changed = sorted(name for name in names if before.get(name) != environment.get(name))
    if form != document["format"]:
        wanted = document["format"]
        raise InvalidRequest(f"{path} has format {form}, not {wanted}: its rows name no commit; leave out --resume")
    if changed or old["regime"] != document["regime"] or old["suite"] != document["suite"]:
        what = ", ".join(f"{name} was {before.get(name)}, is {environment.get(name)}" for name in changed)
        raise InvalidRequest(f"{path} was measured elsewhere ({what or 'another suite or regime'}); leave out --resume")
    return old | {"rows": rows}


def load(path: Path) -> Document:
    """The document of a results file, compressed or not. Raises OSError, ValueError."""
    with open_regular(path) as file:
        data = file.read()
    document: Document = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
    return document


def write(path: Path, document: Document) -> None:
    """Write a results file, compressed where its name says so: the old one stays until the new one is whole."""
    text = dump(document).encode()
    write_whole(path, gzip.compress(text, mtime=0) if path.suffix == ".gz" else text, 0o644)


def dump(document: Document) -> str:
    """JSON with a line for every row and for every other entry."""
    lines = []
    for key, value in document.items():
        if key == "rows" and value:
            rows = ",\n  ".join(json.dumps(row, separators=(",", ":")) for row in value)
            lines.append(f' "rows": [\n  {rows}\n ]')
        else:
            lines.append(f" {json.dumps(key)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _row(gemm: Gemm, config: Config | None, variant: str, status: str, message: str) -> Row:
    return {
        "gemm": str(gemm),
        "family": config.family if config else None,
        "variant": variant,
        "config_hash": config.digest if config else None,
        "config": config.to_json() if config else None,
        "status": status,
        "message": message,
    }


def rounded(samples: Sequence[float]) -> list[float]:
    """The samples to five digits and the nanosecond; of more than ``MAX_SAMPLES``, that many at even distances."""
    count = min(len(samples), MAX_SAMPLES)
    chosen = (float(samples[(2 * number + 1) * len(samples) // (2 * count)]) for number in range(count))
    return [min(round(x, DECIMALS), float(f"{x:.{DIGITS}g}"), key=lambda value: len(str(value))) for x in chosen]


def version_of(package: str) -> str | None:
    """The version of an installed package; None where it is not there."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _commit(repository: Path | None) -> str | None:
    """The commit of the checkout that runs, with ``-dirty`` where files of it are changed that a program may read."""
    if repository is None:
        return None
    written = [f":(top,exclude){path}" for path in _OUTPUTS]
    commit = git_output(repository, "rev-parse", "HEAD")
    changed = git_output(repository, "status", "--porcelain", "--untracked-files=no", "--", ":/", *written)
    if commit is None or changed is None:
        return None
    return f"{commit}-dirty" if changed else commit


def git_output(folder: Path, *arguments: str) -> str | None:
    """What git prints in a folder; None where it fails or is not there."""
    command = ["git", "-C", str(folder), *arguments]
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
