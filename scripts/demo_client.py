"""The second half of ``make demo``, run where only the ``client`` extra is installed: load, call, check.

usage: demo_client.py URL TRUST_FILE CACHE_DIR DEVICE GEMM...   prints a JSON list, one object a gemm
"""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from tirgemm import Client, Gemm

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
    rng = np.random.default_rng(1)
    host = [rng.standard_normal(gemm.shape(name)).astype(np.float16) for name in ("a", "b")]
    tensors, to_host, synchronise = on_device(host, device)
    error = error_over_bound(gemm, *host, to_host(kernel(*tensors)))
    assert error <= 1, f"{gemm}: the error is {error:.3g} times its bound"
    out = kernel(*tensors)
    times = []
    for _ in range(30):
        began = time.perf_counter()
        kernel(*tensors, out=out)
        synchronise()
        times.append(1e6 * (time.perf_counter() - began))
    timing = kernel.timings.of("sustained")
    assert timing is not None, "the service times what it tunes"
    baselines = {name: beside.median_us for name, beside in timing.baselines.items()}
    return {
        "gemm": str(gemm),
        "config": str(kernel.config),
        "tuned_us": timing.median_us,
        "default_us": baselines.pop("default"),
        "baselines": baselines,
        "error_over_bound": error,
        "default_is_best": kernel.timings.default == str(kernel.config),
        "call_us": float(np.median(times)),
        "certified": bool((kernel.manifest.certificate or {}).get("passed")),
    }


def on_device(host: list[np.ndarray[Any, Any]], device: str) -> tuple[list[Any], Any, Any]:
    """The operands where the kernel runs, a function that brings a result back, and one that waits."""
    if device == "cpu":
        return list(host), np.asarray, lambda: None
    import cupy

    return [cupy.asarray(x) for x in host], cupy.asnumpy, cupy.cuda.get_current_stream().synchronize


def error_over_bound(gemm: Gemm, a: np.ndarray[Any, Any], b: np.ndarray[Any, Any], d: np.ndarray[Any, Any]) -> float:
    """Largest error of an element over sqrt(k) u |row of A| |column of B|, against fp64."""
    a64 = a.astype(np.float64).T if gemm.trans_a else a.astype(np.float64)
    b64 = b.astype(np.float64).T if gemm.trans_b else b.astype(np.float64)
    norms = np.linalg.norm(a64, axis=1)[:, None] * np.linalg.norm(b64, axis=0)[None, :]
    unit = 2.0**-11
    return float(np.max(np.abs(d.astype(np.float64) - a64 @ b64) / (np.sqrt(gemm.k) * unit * norms)))


if __name__ == "__main__":
    sys.exit(main())
