"""The second half of ``make demo``, run where only the ``client`` extra is installed: load, call, check.

usage: demo_client.py URL TRUST_FILE CACHE_DIR DEVICE GEMM...   prints a JSON list, one object a gemm
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

from tirgemm import Client, Gemm
from tirgemm import _trial as trial
from tirgemm.artifact import Kernel

FORBIDDEN = ("tvm", "xgboost", "sqlalchemy", "fastapi", "ray")


def main() -> int:
    url, trust_file, cache, device, *gemms = sys.argv[1:]
    present = [name for name in FORBIDDEN if importlib.util.find_spec(name)]
    assert not present, f"the client environment must not have {present}"
    client = Client(url, trust=Path(trust_file), cache_dir=Path(cache))
    rows = [measured(client, Gemm.parse(text), device) for text in gemms]
    json.dump(rows, sys.stdout)
    return 0


def measured(client: Client, gemm: Gemm, device: str) -> dict[str, Any]:
    kernel = client.kernel(gemm, device=device)
    tried = trial.run(kernel, seed=1)
    assert tried.passed, f"{gemm}: the error is {tried.error:.3g} times its bound"
    timing = kernel.timings.of("sustained")
    assert timing is not None, "the service times what it tunes"
    baselines = {name: beside.median_us for name, beside in timing.baselines.items()}
    return {
        "gemm": str(gemm),
        "config": str(kernel.config),
        "tuned_us": timing.median_us,
        "default_us": baselines.pop("default"),
        "baselines": baselines,
        "error_over_bound": tried.error,
        "why_default": why_default(kernel),
        "busy": timing.busy,
        "call_us": tried.median_us,
        "certified": bool((kernel.manifest.certificate or {}).get("passed")),
    }


def why_default(kernel: Kernel) -> str:
    """Why the search chose the default, in a sentence; empty where it chose something else."""
    return kernel.timings.reason or "the default stays" if kernel.timings.default == str(kernel.config) else ""


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:  # the demo that started it says so
        sys.exit(130)
