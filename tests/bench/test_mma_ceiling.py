"""The ceiling of mma.sync: its kernels are nothing but mma.sync, and its file is checked."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import mma_ceiling
from benchmarks.history import History
from tests.helpers.scripts import script
from tirgemm.hardware import ARCHITECTURES

check: Any = script("benchmarks/check.py")


@pytest.mark.parametrize(("arch", "kind"), [*zip(ARCHITECTURES, ("f16", "bf16", "f16:acc=f16", "f16"), strict=True)])
def test_kernels_keep_everything_in_registers(arch: str, kind: str) -> None:
    for warps in (8, 16):
        actual = mma_ceiling.compiled(kind, warps, arch).resources[mma_ceiling.SYMBOL]
        assert (actual.spill_bytes, actual.stack_bytes, actual.shared_bytes) == (0, 0, 0)
        assert actual.registers * 32 * warps <= 65536


def _document() -> dict[str, Any]:
    wanted = itertools.product(mma_ceiling.KINDS, mma_ceiling.WARPS, ("sustained", "isolated"))
    origin = {"commit": "c" * 40, "at": "2026-01-02T03:04:05+00:00", "source_sha256": "a" * 64}
    rows = [mma_ceiling.row(*key, 10, [2.0, 4.0, 3.0], 3000 * key[1]) | origin for key in wanted]
    environment = dict.fromkeys(check.ENVIRONMENT, "x")
    return {"suite": mma_ceiling.SUITE, "environment": environment, "rows": rows, "summary": mma_ceiling.best(rows)}


def test_file_is_checked_from_its_samples(tmp_path: Path) -> None:
    path = tmp_path / "mma_ceiling.json"
    document = _document()
    path.write_text(json.dumps(document))
    assert check.faults(path, history=History(Path("/"))) == []
    assert document["summary"]["f16"]["sustained"] == pytest.approx(16 * 3000 / 3.0 * 1e-6)
    del document["rows"][0]["samples_us"][0]
    del document["rows"][-1]
    path.write_text(json.dumps(document))
    assert len(check.faults(path, history=History(Path("/")))) >= 3


def test_operands_are_random_numbers_of_their_dtype() -> None:
    words = mma_ceiling.random_operands("bf16", 512).view(np.uint16).astype(np.uint32)
    values = (words << 16).view(np.float32)
    halves = mma_ceiling.random_operands("f16", 512).view(np.float16).astype(np.float32)
    for actual in (values, halves):
        assert 0.8 < float(actual.std()) < 1.2
        assert np.abs(actual).max() < 8
