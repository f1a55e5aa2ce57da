"""Figures of kernels as the pages write them: each with so many digits as it has, thousands apart."""

from __future__ import annotations

import math

NONE = "–"


def us_text(us: float | None) -> str:
    """Microseconds with about four digits; a dash where there are none."""
    return NONE if us is None else f"{us:,.{0 if us >= 1000 else 1 if us >= 100 else 2 if us >= 10 else 3}f}"


def tflops_text(tflops: float | None) -> str:
    """TFLOP/s with three digits; a dash where there are none."""
    if tflops is None:
        return NONE
    digits = 2 - math.floor(math.log10(tflops)) if tflops > 0 else 0
    return f"{tflops:,.{max(digits, 0)}f}"
