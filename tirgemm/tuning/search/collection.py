"""Collection of records to train a ranking model with: some configs each of many problems.

Of a family that ranks its configs the first of the ranking are measured, which is where a model has to be right, and
some drawn from further down; of the others the default and what is drawn from their spaces. Families whose default is
expected to be far behind are left out: the model has nothing to learn from by how much.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.families.base import Family, WithShortlist, rejected
from tirgemm.families.choice import FAR_BEHIND
from tirgemm.gemm import Gemm, Regime

CONFIGS = 16
# Of the configs of a family that ranks them, the share that is the first of its ranking; the others are drawn from so
# many times as many.
RANKED, DEPTH = 2 / 3, 4
# Of a family without a ranking beside one that has one: its default and others.
UNRANKED = 3
_DRAWS = 200


def configs_to_collect(
    gemm: Gemm, device: Device, regime: Regime, families: Iterable[Family], *, count: int = CONFIGS, seed: int = 0
) -> list[Config]:
    """About ``count`` valid configs, each family's default among them. The same seed draws the same ones."""
    defaults = [(family, family.default(gemm, device, regime)) for family in families]
    times = [family.predict_us(gemm, config, device, regime) for family, config in defaults]
    near = [pair for pair, us in zip(defaults, times, strict=True) if us <= FAR_BEHIND * min(times)]
    ranking = [family for family, _ in near if isinstance(family, WithShortlist)]
    draw = random.Random(f"{seed} {gemm} {regime}")
    others = len(near) - len(ranking)
    each = max(1, (count - UNRANKED * others) // len(ranking) if ranking else count // others)
    configs: dict[Config, None] = {}
    for family, default in near:
        configs[default] = None
        if isinstance(family, WithShortlist):
            configs |= dict.fromkeys(_ranked(family.shortlist(gemm, device, regime, DEPTH * each), each, draw))
        else:
            wanted = UNRANKED if ranking else each
            configs |= dict.fromkeys(_drawn(gemm, device, family, wanted - 1, draw))
    return list(configs)


def _ranked(shortlist: Sequence[Config], count: int, draw: random.Random) -> list[Config]:
    first = round(count * RANKED)
    rest = shortlist[first:]
    return [*shortlist[:first], *draw.sample(rest, min(count - first, len(rest)))]


def _drawn(gemm: Gemm, device: Device, family: Family, count: int, draw: random.Random) -> list[Config]:
    """At most ``count`` configs that the family's rules accept, drawn at random."""
    knobs, valid = family.space(gemm, device).knobs, dict[Config, None]()
    for _ in range(_DRAWS):
        if len(valid) >= count:
            break
        config = Config(family.name, tuple((knob.name, draw.choice(knob.choices)) for knob in knobs))
        if rejected(family, gemm, config, device) is None:
            valid[config] = None
    return list(valid)
