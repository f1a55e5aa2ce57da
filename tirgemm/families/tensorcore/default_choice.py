"""Defaults and shortlists of the tensor-core families: cuts of a table and their splits of k, ranked by the analytic
estimate and, where one was trained, by a ranking model, which chooses each cut's other knobs too."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import islice, product
from typing import NamedTuple

import numpy as np

from tirgemm.config import Config, Value
from tirgemm.device import Device
from tirgemm.errors import Unsupported
from tirgemm.families.base import Family, accepted
from tirgemm.families.common.config_columns import ConfigColumns
from tirgemm.families.common.ranking_model import RankingModel, ranking_model
from tirgemm.families.features import expected_us, features
from tirgemm.families.tensorcore.estimate import BlockWork, estimate
from tirgemm.gemm import Gemm, Regime

_SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
# Best-estimated cuts whose variants a model ranks: 0.03 ms each variant.
_RANKED = 12
# The choices of a family's knobs, by name.
Choices = Mapping[str, tuple[Value, ...]]


def ranked(gemm: Gemm, device: Device, regime: Regime, cuts: Iterable[BlockWork], choices: Choices) -> list[BlockWork]:
    """``cuts`` whose tiles are among ``choices`` with every split that is, the best-estimated first; of equal ones the
    first of the table. Splits that make more blocks than two waves are left out."""
    known = estimate(gemm, device, regime)
    rows = [
        (known.us(split_cut), number, split, split_cut)
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


def variants_of(config: Config, alternatives: Mapping[str, Iterable[Value]], choices: Choices) -> Iterator[Config]:
    """``config`` with every combination of the ``alternatives`` of its knobs that are among ``choices``, itself left
    out."""
    values = [dict.fromkeys((config[name], *others)) for name, others in alternatives.items()]
    for combination in product(*values):
        changes = dict(zip(alternatives, combination, strict=True))
        if all(value in choices[name] for name, value in changes.items()):
            other = config.with_(**changes)
            if other != config:
                yield other


class ConfigsOfCuts(NamedTuple):
    """Of a problem the ``usual`` config of each cut, the best-estimated first, and what gives the ``variants`` of one:
    configs that cut the work in the same way."""

    usual: Iterator[Config]
    variants: Callable[[Config], Iterator[Config]]


CutTable = Callable[[Gemm, Device, Regime], ConfigsOfCuts]


def shortlist(
    family: Family, table: CutTable, gemm: Gemm, device: Device, regime: Regime, count: int, *, trained: bool
) -> list[Config]:
    """At most ``count`` configs of different cuts that pass every rule, best first. Raises Unsupported where none does.

    Where ``trained`` and a model covers the problem, it ranks the variants of the first cuts; elsewhere a variant
    stands in where no usual config passes.
    """
    return list(_shortlist(family, table, gemm, device, regime, count, ranking_model(device) if trained else None))


@lru_cache(maxsize=512)
def _shortlist(
    family: Family,
    table: CutTable,
    gemm: Gemm,
    device: Device,
    regime: Regime,
    count: int,
    model: RankingModel | None,
) -> tuple[Config, ...]:
    """A job asks for the same one several times, some milliseconds each."""
    picks: dict[int, Config] = {}
    for number, config in _ordered(family, table(gemm, device, regime), (gemm, device, regime), model):
        if number in picks or config in picks.values():
            continue
        if accepted(family.rules, gemm, config, device):
            picks[number] = config
            if len(picks) == count:
                break
    if not picks:
        raise Unsupported(
            f"{family.name} has no default for {gemm} on {device.name}: every cut of its table breaks a rule"
        )
    return tuple(picks.values())


def _ordered(
    family: Family, cuts: ConfigsOfCuts, problem: tuple[Gemm, Device, Regime], model: RankingModel | None
) -> Iterator[tuple[int, Config]]:
    """Configs with the number of their cut, best first."""
    gemm, device, regime = problem
    known = list(islice(cuts.usual, _RANKED if model is not None and model.covers(family.name, gemm, regime) else 0))
    if known:
        pairs = [(number, config) for number, one in enumerate(known) for config in (one, *cuts.variants(one))]
        columns = ConfigColumns.of([config for _, config in pairs])
        times = expected_us(gemm, columns, features(gemm, columns, device, regime, family), regime, model)
        # Ties by their order, and in fp32: the last bits depend on this machine's vector instructions.
        yield from (pairs[place] for place in np.argsort(times.astype(np.float32), kind="stable"))
    others = list[tuple[int, Config]]()
    for number, one in enumerate(cuts.usual, len(known)):
        others.append((number, one))
        yield number, one
    yield from ((number, config) for number, one in others for config in cuts.variants(one))
