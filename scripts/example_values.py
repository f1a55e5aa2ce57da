"""Replacement of what differs from run to run in the examples of the documentation: ids, times, keys, the machine."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

from tirgemm.detect import device as detect

# Stands for what another example shows, or what is binary; agrees with anything.
ELIDED = "…"
# What the examples call the machine, whatever it is.
CPU_MODEL, CPU_KEY, WORKER = "AMD EPYC 9575F", "cpu:x86-64-v4:amd-epyc-9575f:2:1f0c9a3b", "tuner:4711:1f0c9a3b"


class Normaliser:
    """Replaces what is volatile by what looks the same: the first id of a run is always the same id, and so on."""

    def __init__(self, public_key: str) -> None:
        self._public_key = public_key
        self._seen: dict[str, str] = {}

    def document(self, value: Any) -> Any:
        """A JSON document with the same done to every text in it."""
        return json.loads(self(json.dumps(value, ensure_ascii=False)))

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
        return re.sub(r'"(memory_bytes|clock_mhz|loadavg)": [1-9][\d.]*', _round_machine, text)

    def _named(self, value: str, digits: int) -> str:
        if value in {known[:digits] for known in self._seen.values()}:
            return value  # replaced before
        fresh = hashlib.sha256(f"example {len(self._seen)}".encode()).hexdigest()
        return self._seen.setdefault(value, fresh)[:digits]


def _round_machine(match: re.Match[str]) -> str:
    return f'"{match[1]}": { {"memory_bytes": 2**35, "clock_mhz": 3300, "loadavg": 1.0}[match[1]] }'
