"""Artifacts for the tests of commands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.helpers.artifact_samples import (
    packed,
)
from tirgemm import Gemm

SHAPE = "33x17x19:f16:nt"

RANGED = "1..40x17x19:f32:tn:alpha:beta:bias"


def artifact(folder: Path, text: str = SHAPE, **changes: Any) -> Path:
    path = folder / "kernel.tirgemm"
    path.write_bytes(packed(Gemm.parse(text), **changes))
    return path
