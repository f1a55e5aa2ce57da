"""Replacement of what differs from run to run in the examples of the documentation: ids, times, keys, the machine."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

from tirgemm.detect import device as detect

# Stands for what another example shows, or what is binary; agrees with anything.
ELIDED = "…"
# By how much the race that chose a kernel had it ahead, and by how much at least.
_CHOSEN = re.compile(r"([\d.]+) times as fast as the default, at least ([\d.]+) ")
# What the examples call the machine, whatever it is.
CPU_MODEL, CPU_KEY, WORKER = "AMD EPYC 9575F", "cpu:x86-64-v4:amd-epyc-9575f:2:1f0c9a3b", "tuner:4711:1f0c9a3b"


class Normaliser:
    """Replaces what is volatile by what looks the same: the first id of a run is always the same id, and so on."""

    def __init__(self, public_key: str) -> None:
        self._public_key = public_key
        self._seen: dict[str, str] = {}

    def document(self, value: Any) -> Any:
        """A JSON document with the same done to every text in it, and with times that agree with why a kernel was
        chosen."""
        read = json.loads(self(json.dumps(value, ensure_ascii=False)))
        if isinstance(read, dict) and isinstance(read.get("timings"), dict):
            read["timings"] = as_chosen(read["timings"])
        return read

    def __call__(self, text: str) -> str:
        device = detect("cpu")
        text = text.replace(device.key, CPU_KEY)
        text = text.replace(f'"model": {json.dumps(device.model)}', f'"model": "{CPU_MODEL}"')
        text = text.replace(self._public_key, "ed25519:Zm9yIHRoZSBwdWJsaWMga2V5IG9mIHRoZSBzZXJ2aWNlIQ=")
        text = re.sub(r'"(uuid)": "cpu-[^"]*"', r'"\1": "cpu-1f0c9a3b"', text)
        text = re.sub(r'"features": \[[^\]]*\]', '"features": ["avx2", "avx512f", "f16c", "fma", "…"]', text)
        text = re.sub(r'[^" ]+:\d+:[0-9a-f]{8}(?=")', lambda f: f[0] if f[0] == CPU_KEY else WORKER, text)
        text = re.sub(r"(?<![:.\w])\d+\.\d{3,}\b", lambda match: f"{float(match[0]):.3g}", text)
        text = re.sub(r"\b[0-9a-f]{64}\b", lambda match: self._named(match[0], 12) + ELIDED, text)
        text = re.sub(r"\b[0-9a-f]{16}\b", lambda match: self._named(match[0], 16), text)
        text = re.sub(r"\b20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d", "2026-08-01T12:00:00", text)
        text = re.sub(r"(?<=T12:00:00)\.\d+", lambda match: "." + "0" * (len(match[0]) - 1), text)
        return re.sub(r'"(memory_bytes|clock_mhz|loadavg|cpus)": [1-9][\d.]*', _round_machine, text)

    def _named(self, value: str, digits: int) -> str:
        if value in {known[:digits] for known in self._seen.values()}:
            return value  # replaced before
        fresh = hashlib.sha256(f"example {len(self._seen)}".encode()).hexdigest()
        return self._seen.setdefault(value, fresh)[:digits]


def as_chosen(timings: dict[str, Any]) -> dict[str, Any]:
    """Timings whose figures beside the default are those of the sentence that says why the kernel was chosen. A reader
    expects so, and the second race, of which the figures are, may say something else on a machine that does other work,
    too."""
    selection = timings.get("selection")
    if not isinstance(selection, dict) or (chosen := _CHOSEN.match(selection["reason"])) is None:
        return timings
    ratio, low = map(float, chosen.groups())

    def told(timing: Any) -> Any:
        if not isinstance(timing, dict) or "default" not in timing.get("baselines", {}):
            return timing
        beside = {"median_us": float(f"{ratio * timing['median_us']:.3g}"), "ratio": ratio}
        return timing | {"baselines": timing["baselines"] | {"default": beside}}

    return {name: told(member) for name, member in timings.items()} | {"selection": selection | {"ratio_low": low}}


def _round_machine(match: re.Match[str]) -> str:
    round_values = {"memory_bytes": 2**35, "clock_mhz": 3300, "loadavg": 1.0, "cpus": 2}
    return f'"{match[1]}": {round_values[match[1]]}'
