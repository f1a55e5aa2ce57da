"""Kernel sets of default configs: a range of m cut by expected times, each part's kernel certified, no search."""

from __future__ import annotations

from collections.abc import Sequence

from tirgemm.artifact.manifest import MAX_KERNELS
from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.errors import Unsupported
from tirgemm.families import Family, is_valid
from tirgemm.families.choice import expected_time_us, ranked_defaults
from tirgemm.families.common.ranking_model import ranking_model
from tirgemm.gemm import Gemm, Range, Regime
from tirgemm.tuning.effort import Effort
from tirgemm.tuning.finish import Finalist
from tirgemm.tuning.kernel_set.partition import Loss, partition
from tirgemm.tuning.kernel_set.sizes import compared_sizes
from tirgemm.tuning.records import KernelRecord
from tirgemm.tuning.set_members import Member, SetPart, set_record
from tirgemm.tuning.tune import Tuning
from tirgemm.tuning.tuning_task import Control, chosen_families

# What a config of a set may be expected to lose at a size: less than by what the model errs.
EXPECTED_LOSS = 0.05


def default_parts(gemm: Gemm, device: Device, regime: Regime) -> list[SetPart]:
    """The parts of a problem's range of m, ascending, each with the default of one of the sizes.

    As few as are expected to lose no more than ``EXPECTED_LOSS`` at any size. Raises Unsupported.
    """
    assert isinstance(gemm.m, Range)
    sizes, problems, defaults = [], [], dict[Config, Family]()
    for size in compared_sizes(gemm.m):
        problem = gemm.with_(m=Range(gemm.m.low, size))
        try:
            families = chosen_families(problem, device, None)
        except Unsupported:
            if size == gemm.m.high:
                raise
            continue
        family, config = ranked_defaults(families, problem, device, regime)[0]
        sizes.append(size)
        problems.append(problem)
        defaults[config] = family
    losses = [_losses(problem, defaults, device, regime) for problem in problems]
    # A kernel must be valid for the largest m that it serves; smaller ones it takes whatever its tiles are.
    refused = {
        (first, last, config)
        for last, problem in enumerate(problems)
        for config in defaults
        if not is_valid(problem, config, device)
        for first in range(last + 1)
    }
    parts, low = [], gemm.m.low
    for segment in partition(losses, list(defaults), tolerance=EXPECTED_LOSS, most=MAX_KERNELS, refused=refused):
        high = sizes[segment.last]
        parts.append(SetPart(gemm.with_(m=Range(low, high)), segment.config))
        low = high + 1
    return parts


def _losses(gemm: Gemm, configs: dict[Config, Family], device: Device, regime: Regime) -> dict[Config, Loss]:
    """What each of the configs is expected to lose at a problem's largest m against the fastest."""
    model = ranking_model(device)
    times = {c: expected_time_us(family, c, gemm, device, regime, model) for c, family in configs.items()}
    best = min(times.values())
    return {config: Loss(us / best, us / best) for config, us in times.items()}


def default_set(whole: Tuning, parts: Sequence[SetPart]) -> KernelRecord:
    """The kernels of the parts, built, certified, timed and stored as the fallback of ``whole``. Raises what ends
    it."""
    whole.raise_if_cancelled()
    if len(parts) == 1:
        return whole.evaluator.certified_default(parts[0].config, last=whole.effort is Effort.NONE)
    for part in parts:
        whole.workbench.build_ahead(part.gemm, part.config)
    try:
        return set_record(whole, [_member(whole, part) for part in parts], trials=0, role="fallback")
    finally:
        for part in parts:
            whole.workbench.forget_ahead(part.gemm)


def _member(whole: Tuning, part: SetPart) -> Member:
    """The certified kernel of one part. Raises what ends it."""
    whole.raise_if_cancelled()
    tuning = Tuning(part.gemm, whole.workbench, whole.regime, seed=whole.seed, control=Control(cancel=whole.end.cancel))
    record = tuning.evaluator.certified_default(part.config, last=whole.effort is Effort.NONE)
    binary = tuning.evaluator.build_of(part.config)
    assert binary is not None
    assert record.certificate is not None
    finalist = Finalist(part.config, binary, whole.store.get_blob(record.artifact_sha256))
    return Member(part.gemm, finalist, record.certificate, record.timings)
