"""Measurement conditions: the time, the load and the clocks of the machine."""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tirgemm.errors import InvalidRequest

CACHE_VARIABLE = "TIRGEMM_CACHE_MIB"
_MOST_CACHE_MIB = 16384
_FALLBACK_CACHE = 32 << 20
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def now() -> str:
    """The time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def host_conditions(proc: Path = Path("/proc")) -> dict[str, Any]:
    """Load average over a minute, the processors that it is shared among and, where Linux shows it, their mean
    clock."""
    conditions: dict[str, Any] = {"at": now(), "loadavg": round(os.getloadavg()[0], 2), "cpus": os.cpu_count()}
    try:
        text = (proc / "cpuinfo").read_text()
    except OSError:
        return conditions
    clocks = [float(mhz) for mhz in re.findall(r"^cpu MHz\s*: ([\d.]+)", text, re.MULTILINE)]
    if clocks:
        conditions["clock_mhz"] = round(sum(clocks) / len(clocks))
    return conditions


def timed_cache_bytes() -> int:
    """The size of the last-level cache that timing on the CPU assumes: TIRGEMM_CACHE_MIB, else what Linux says. A
    virtual machine is shown all of its host's. Raises InvalidRequest."""
    text = os.environ.get(CACHE_VARIABLE, "")
    if not text:
        return last_level_cache_bytes()
    if not re.fullmatch(r"[0-9]{1,5}", text) or not 1 <= int(text) <= _MOST_CACHE_MIB:
        raise InvalidRequest(
            f"{CACHE_VARIABLE} is {text!r:.80}; it must be a number of MiB from 1 to {_MOST_CACHE_MIB}"
        )
    return int(text) << 20


def last_level_cache_bytes(cpu: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> int:
    """Size of the last-level cache that the first processor uses; 32 MiB where Linux does not say."""
    sizes = [0]
    for file in cpu.glob("index*/size"):
        try:
            size = re.fullmatch(r"(\d+)([KMG]?)", file.read_text().strip())
        except OSError:
            continue
        if size:
            sizes.append(int(size[1]) * _UNITS[size[2]])
    return max(sizes) or _FALLBACK_CACHE
