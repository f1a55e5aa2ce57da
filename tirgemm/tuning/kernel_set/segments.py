"""``valid_segments``: a range of m in the segments of a kernel set, each with a config that is valid for the largest m
there."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.families import is_valid
from tirgemm.gemm import Gemm
from tirgemm.tuning.kernel_set.partition import Loss, Segment, partition

# Kernels of a set at most, as many as are read (``tirgemm.artifact.manifest.MAX_KERNELS``): a certificate takes about
# a second for each.
MOST_KERNELS = 64


def valid_segments(
    problems: Sequence[Gemm],
    losses: Sequence[Mapping[Config, Loss]],
    configs: Collection[Config],
    device: Device,
    *,
    tolerance: float,
    most: int = MOST_KERNELS,
    refused: Collection[tuple[int, int, Config]] = (),
) -> list[Segment]:
    """``partition`` of the sizes of ``problems``, by rising m, into at most so many segments.

    A kernel must be valid for the largest m that it serves; smaller ones it takes whatever its tiles are. Raises
    InvalidRequest as ``partition``.
    """
    invalid: set[tuple[int, int, Config]] = set()
    while True:
        segments = partition(losses, configs, tolerance=tolerance, most=most, refused={*refused, *invalid})
        wrong = {s.config for s in segments if not is_valid(problems[s.last], s.config, device)}
        if not wrong:
            return segments
        for last, gemm in enumerate(problems):
            of_last = [config for config in wrong if not is_valid(gemm, config, device)]
            invalid |= {(first, last, config) for config in of_last for first in range(last + 1)}
