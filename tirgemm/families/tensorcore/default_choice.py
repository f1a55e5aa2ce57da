"""Default of a tensor-core family: the best-estimated cut of its table, and its split of k, that passes every rule."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.errors import Unsupported
from tirgemm.families.base import Rule, accepted
from tirgemm.families.tensorcore.estimate import BlockWork, Estimate
from tirgemm.gemm import Gemm, Regime

_SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
# The choices of a family's knobs, by name.
Choices = Mapping[str, tuple[object, ...]]


def ranked(gemm: Gemm, device: Device, regime: Regime, cuts: Iterable[BlockWork], choices: Choices) -> list[BlockWork]:
    """``cuts`` whose tiles are among ``choices`` with every split that is, the best-estimated first; of equal ones the
    first of the table. Splits that make more blocks than two waves are left out."""
    estimate = Estimate(gemm, device, regime)
    rows = [
        (estimate.us(split_cut), number, split, split_cut)
        for number, cut in enumerate(cuts)
        if cut.tile_m in choices["tile_m"] and cut.tile_n in choices["tile_n"]
        for split in _SPLITS
        if split == 1 or (split in choices["split"] and blocks(gemm, cut) * split <= 2 * cut.resident * device.units)
        for split_cut in (cut._replace(split=split),)
    ]
    return [cut for *_, cut in sorted(rows)]


def blocks(gemm: Gemm, cut: BlockWork) -> int:
    """How many tiles D is cut into."""
    return -(-gemm.m_max // cut.tile_m) * -(-gemm.n // cut.tile_n) * gemm.batch


def first_valid(family: str, configs: Iterator[Config], rules: Sequence[Rule], gemm: Gemm, device: Device) -> Config:
    """The first config that passes every rule. Raises Unsupported where none does."""
    for config in configs:
        if accepted(rules, gemm, config, device):
            return config
    raise Unsupported(f"{family} has no default for {gemm} on {device.name}: every cut of its table breaks a rule")
