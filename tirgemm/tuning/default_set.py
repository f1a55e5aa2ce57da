"""Kernel sets of default configs: a range of m cut by expected times, each part's kernel certified, no search."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Collection, Sequence
from functools import partial

from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.errors import RevokedKernel, Unsupported
from tirgemm.families import Family
from tirgemm.families.choice import ranked_defaults
from tirgemm.gemm import Gemm, Range, Regime
from tirgemm.tuning.effort import Effort
from tirgemm.tuning.finish import Finalist, mark_failed
from tirgemm.tuning.kernel_set.losses import losses_everywhere
from tirgemm.tuning.kernel_set.partition import valid_segments
from tirgemm.tuning.kernel_set.sizes import compared_sizes, cut_sizes
from tirgemm.tuning.records import KernelRecord
from tirgemm.tuning.records.row_signatures import RowsDiffer
from tirgemm.tuning.set_members import MOST_CUTS, Member, SetPart, set_record, valid_parts
from tirgemm.tuning.tune import Tuning
from tirgemm.tuning.tuning_task import Control, chosen_families

# What a config of a set may be expected to lose at a size: less than by what the model errs.
EXPECTED_LOSS = 0.04
# Kernels of a set of defaults at most, fewer than of one that was searched: its user waits for the certificates.
MOST_DEFAULTS = 44


def default_parts(gemm: Gemm, device: Device, regime: Regime, without: Collection[Config] = ()) -> list[SetPart]:
    """The parts of a problem's range of m, ascending, each with the default of one of the sizes.

    As few as are expected to lose no more than ``EXPECTED_LOSS`` at any size, and at most ``MOST_DEFAULTS``; the
    whole range with its default where no others are valid. Configs in ``without`` are passed over. Raises Unsupported.
    """
    assert isinstance(gemm.m, Range)
    defaults = size_defaults(gemm, device, regime)
    problems = list(defaults)
    configs = list(dict.fromkeys(config for _, config in defaults.values() if config not in without))
    losses = losses_everywhere(problems, configs, {}, device, regime)
    cut = partial(valid_segments, problems, losses, configs, device, tolerance=EXPECTED_LOSS, most=MOST_DEFAULTS)
    return valid_parts(gemm, device, problems, cut) or [SetPart(gemm, defaults[gemm][1])]


def size_defaults(gemm: Gemm, device: Device, regime: Regime) -> dict[Gemm, tuple[Family, Config]]:
    """The problems at the sizes at which a range is cut, by rising m, each with its default.

    Where the sizes that are compared, below and above, have defaults of one family, between them it alone is asked.
    Raises Unsupported.
    """
    assert isinstance(gemm.m, Range)
    compared, families = set(compared_sizes(gemm.m)), dict[int, tuple[Family, ...]]()
    defaults: dict[int, tuple[Family, Config]] = {}
    for size in cut_sizes(gemm.m):
        problem = gemm.with_(m=Range(gemm.m.low, size))
        try:
            families[size] = chosen_families(problem, device, None)
        except Unsupported:
            if size == gemm.m.high:
                raise
            continue
        if size in compared:
            defaults[size] = ranked_defaults(families[size], problem, device, regime)[0]
    known = sorted(defaults)
    for size in families:
        if size not in defaults:
            place = bisect(known, size)
            beside = {defaults[near][0] for near in known[max(0, place - 1) : place + 1]}
            asked = [family for family in families[size] if family in beside] or families[size]
            defaults[size] = ranked_defaults(asked, gemm.with_(m=Range(gemm.m.low, size)), device, regime)[0]
    return {gemm.with_(m=Range(gemm.m.low, size)): defaults[size] for size in sorted(defaults)}


def default_set(whole: Tuning, parts: Sequence[SetPart]) -> KernelRecord:
    """The kernels of the parts, built, certified, timed and stored as the fallback of ``whole``.

    One that is revoked, or gives a row other bits than those that are stored, as each is for its part, is recorded as
    wrong, and the range cut by the other defaults. Raises what else ends it, and what did at the default number
    ``MOST_CUTS`` that is so.
    """
    whole.raise_if_cancelled()
    made: dict[SetPart, Member] = {}
    odd: set[Config] = set()
    begun = set[Gemm]()
    try:
        while len(parts) > 1:
            waiting = [part for part in parts if part not in made]
            for part in waiting:
                begun.add(part.gemm)
                whole.workbench.build_ahead(part.gemm, part.config)
            error = _stored(whole, waiting, made, odd)
            if error is None:
                return set_record(whole, [made[part] for part in parts], trials=0, role="fallback")
            if len(odd) == MOST_CUTS:
                raise error
            parts = default_parts(whole.gemm, whole.device, whole.regime, odd)
    finally:
        for gemm in begun:
            whole.workbench.forget_ahead(gemm)
    return whole.evaluator.certified_default(parts[0].config, last=whole.effort is Effort.NONE)


def _stored(
    whole: Tuning, parts: Sequence[SetPart], made: dict[SetPart, Member], odd: set[Config]
) -> RowsDiffer | RevokedKernel | None:
    """Certify and store parts, which go into ``made``, up to the first that is revoked or whose rows have other bits,
    which is returned; its config is recorded as wrong and goes into ``odd``. Raises what else ends it."""
    for part in parts:
        whole.raise_if_cancelled()
        control = Control(cancel=whole.end.cancel)
        tuning = Tuning(part.gemm, whole.workbench, whole.regime, seed=whole.seed, control=control)
        try:
            made[part] = _member(tuning, part, last=whole.effort is Effort.NONE)
        except (RowsDiffer, RevokedKernel) as error:
            if isinstance(error, RowsDiffer) and not error.expected:  # the stored set contradicts itself
                raise
            mark_failed(tuning, part.config, error)
            odd.add(part.config)
            return error
    return None


def _member(tuning: Tuning, part: SetPart, *, last: bool) -> Member:
    """The certified kernel of one part. Raises what ends it."""
    record = tuning.evaluator.certified_default(part.config, last=last)
    binary = tuning.evaluator.build_of(part.config)
    assert binary is not None
    assert record.certificate is not None
    finalist = Finalist(part.config, binary, tuning.store.get_blob(record.artifact_sha256))
    return Member(part.gemm, finalist, record.certificate, record.timings)
