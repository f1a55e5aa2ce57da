"""The CPU of this machine as a Device: architecture level, features that generated code may use, usable threads."""

from __future__ import annotations

import hashlib
import os
import platform
from itertools import takewhile
from pathlib import Path

from tirgemm.device import Device

# What /proc/cpuinfo calls a feature -> what LLVM calls it; only what changes the code of a matrix multiply.
_FEATURES = {
    "pni": "sse3",
    "ssse3": "ssse3",
    "sse4_1": "sse4.1",
    "sse4_2": "sse4.2",
    "popcnt": "popcnt",
    "cx16": "cx16",
    "avx": "avx",
    "avx2": "avx2",
    "fma": "fma",
    "f16c": "f16c",
    "bmi1": "bmi",
    "bmi2": "bmi2",
    "abm": "lzcnt",
    "movbe": "movbe",
    "avx512f": "avx512f",
    "avx512bw": "avx512bw",
    "avx512cd": "avx512cd",
    "avx512dq": "avx512dq",
    "avx512vl": "avx512vl",
    "avx512_vnni": "avx512vnni",
    "avx512_bf16": "avx512bf16",
    "avx512_fp16": "avx512fp16",
}

# The psABI's micro-architecture levels, each with the one below it.
_LEVELS = (
    ("x86-64-v2", {"sse3", "ssse3", "sse4.1", "sse4.2", "popcnt", "cx16"}),
    ("x86-64-v3", {"avx", "avx2", "fma", "f16c", "bmi", "bmi2", "lzcnt", "movbe"}),
    ("x86-64-v4", {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}),
)


def features_of(flags: frozenset[str]) -> tuple[str, ...]:
    """LLVM's names, sorted, of the /proc/cpuinfo ``flags`` that matter here."""
    return tuple(sorted(llvm for linux, llvm in _FEATURES.items() if linux in flags))


def level_of(features: tuple[str, ...]) -> str:
    """The highest micro-architecture level that ``features`` reach: ``x86-64``, ``x86-64-v2`` ... ``x86-64-v4``."""
    level, have = "x86-64", set(features)
    for name, needs in _LEVELS:
        if not needs <= have:
            break
        level = name
    return level


def describe(
    environment: tuple[tuple[str, str], ...], proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")
) -> Device:
    """The CPU as a Device. ``proc`` and ``cgroup`` are where the kernel shows itself."""
    info = _cpuinfo(proc)
    features = features_of(frozenset(info.get("flags", "").split()))
    model = info.get("model name", platform.processor() or platform.machine() or "CPU")
    arch = level_of(features) if platform.machine() in ("x86_64", "AMD64") else platform.machine()
    identity = f"{platform.node()}/{model}/{','.join(features)}"
    return Device(
        kind="cpu",
        arch=arch,
        model=model,
        units=usable_threads(proc, cgroup),
        memory_bytes=memory_bytes(proc, cgroup),
        features=features,
        uuid="cpu-" + hashlib.sha256(identity.encode()).hexdigest()[:16],
        environment=environment,
    )


def usable_threads(proc: Path, cgroup: Path) -> int:
    """Hardware threads that this process may use: the affinity of its first thread (another may have pinned itself),
    capped by its cgroups' CPU quotas (rounded up)."""
    threads = len(os.sched_getaffinity(os.getpid()))
    quotas = [_words(group / "cpu.max") for group in _groups(proc, cgroup)]  # v2: "QUOTA PERIOD" or "max PERIOD"
    for group in _groups(proc, cgroup, "cpu"):
        quotas.append(_words(group / "cpu.cfs_quota_us") + _words(group / "cpu.cfs_period_us"))
    for quota in quotas:
        if len(quota) == 2 and quota[0].isdigit() and quota[1].isdigit() and int(quota[1]) > 0:
            threads = min(threads, max(1, -(-int(quota[0]) // int(quota[1]))))
    return threads


def memory_bytes(proc: Path, cgroup: Path) -> int:
    """Physical memory, capped by the limits of the process's cgroups."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for line in _lines(proc / "meminfo"):
        if line.startswith("MemTotal:"):
            total = int(line.split()[1]) * 1024
    limits = [group / "memory.max" for group in _groups(proc, cgroup)]
    limits += [group / "memory.limit_in_bytes" for group in _groups(proc, cgroup, "memory")]
    for path in limits:
        limit = _words(path)
        if limit and limit[0].isdigit():
            total = min(total, int(limit[0]))
    return total


def _groups(proc: Path, mounted: Path, controller: str = "") -> list[Path]:
    """The cgroup of this process and those that it is in, up to the root: the limits of each hold. Of v2, or with a
    ``controller`` of that one's hierarchy of v1. A container sees its own as the root; that of a service or a job, as
    systemd and Slurm make them, is below it."""
    root = mounted / controller
    lines = [line.split(":", 2) for line in _lines(proc / "self" / "cgroup")]  # NUMBER:CONTROLLER,...:/GROUP
    paths = (line[2].lstrip("/") for line in lines if len(line) == 3 and controller in line[1].split(","))
    group = root / next(paths, "")
    return [group, *takewhile(lambda parent: parent != root.parent, group.parents)]


def _cpuinfo(proc: Path) -> dict[str, str]:
    """The fields of the first processor."""
    fields: dict[str, str] = {}
    for line in _lines(proc / "cpuinfo"):
        name, colon, value = line.partition(":")
        if not colon:
            break
        fields[name.strip()] = value.strip()
    return fields


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def _words(path: Path) -> list[str]:
    return " ".join(_lines(path)).split()
