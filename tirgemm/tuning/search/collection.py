"""Collection of records to train a ranking model with: some configs each of many problems.

Of a family that ranks its configs and may be the fastest the first of the ranking are measured, which is where a model
has to be right, some that differ from one of these in one knob, and some drawn from further down; of the others the
default and what is drawn from their spaces. Families whose default is expected to be far behind are left out: the model
has nothing to learn from by how much. Or what is recorded as the fastest, in other environments too.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.errors import InvalidRequest
from tirgemm.families import is_valid
from tirgemm.families.base import Family, WithShortlist, rejected
from tirgemm.families.choice import FAR_BEHIND, defaults_of, promising_us
from tirgemm.gemm import Gemm, Regime
from tirgemm.tuning.records.comparable_times import fastest
from tirgemm.tuning.records.store import Store
from tirgemm.tuning.search.neighbourhood import neighbours

CONFIGS = 16
# Of the configs of a family that ranks them, the share that is the first of its ranking, and that of neighbours of the
# first few; the others are drawn from so many times as many.
RANKED, NEIGHBOURS, DEPTH = 1 / 2, 1 / 4, 4
# Neighbours are of the first so many.
_FIRST = 4
# Of a family without a ranking, or behind, beside one that is neither: its default and others.
UNRANKED = 3
_DRAWS = 200


def configs_to_collect(
    gemm: Gemm, device: Device, regime: Regime, families: Iterable[Family], *, count: int = CONFIGS, seed: int = 0
) -> list[Config]:
    """About ``count`` valid configs, each family's default among them. The same seed draws the same ones."""
    defaults = defaults_of(families, gemm, device, regime)
    times = {family: family.predict_us(gemm, config, device, regime) for family, config in defaults.items()}
    promising = promising_us(times)
    near = [family for family, us in times.items() if us <= FAR_BEHIND * min(times.values())]
    ranking = [family for family in near if times[family] <= promising and isinstance(family, WithShortlist)]
    draw = random.Random(f"{seed} {gemm} {regime}")
    others = len(near) - len(ranking)
    each = max(1, (count - UNRANKED * others) // len(ranking) if ranking else count // others)
    configs: dict[Config, None] = {}
    for family in near:
        configs[defaults[family]] = None
        if family in ranking:
            shortlist = family.shortlist(gemm, device, regime, DEPTH * each)
            first, near_first = round(each * RANKED), round(each * NEIGHBOURS)
            configs |= dict.fromkeys(shortlist[:first])
            known = set(configs)
            around = _neighbours(gemm, device, family, shortlist[:_FIRST], draw)
            configs |= dict.fromkeys(islice((config for config in around if config not in known), near_first))
            rest = [config for config in shortlist[first:] if config not in configs]
            missing = each - first - (len(configs) - len(known))
            configs |= dict.fromkeys(draw.sample(rest, min(missing, len(rest))))
        else:
            wanted = UNRANKED if ranking else each
            configs |= dict.fromkeys(_drawn(gemm, device, family, wanted - 1, draw))
    return list(configs)


def recorded_configs(
    gemm: Gemm, device: Device, regime: Regime, families: Iterable[Family], store: Store, *, count: int = CONFIGS
) -> list[Config]:
    """The ``count`` fastest recorded configs that the families' rules accept, fastest first; those of shipped records
    of another driver or TVM among them.

    What was shipped is ranked by its shipped times even where it has been measured here since, so that a collection
    that goes on has the configs that it began with. Raises InvalidRequest where nothing is recorded.
    """
    offer = store.offer(gemm, device, regime)
    offered = offer.candidates if offer is not None else ()
    shipped = {candidate.config for candidate in offered}
    own = [c for c in store.candidates(gemm, device.key, regime) if c.config not in shipped]
    names = {family.name for family in families}
    ranked = fastest([*offered, *own], len(offered) + len(own))
    configs = [config for config in ranked if config.family in names and is_valid(gemm, config, device)]
    if not configs:
        raise InvalidRequest(f"no config of {gemm} is recorded in {regime} that is still valid; leave out --recorded")
    return configs[:count]


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


def _neighbours(
    gemm: Gemm, device: Device, family: Family, of: Sequence[Config], draw: random.Random
) -> Iterator[Config]:
    """The configs that the family's rules accept of those one knob away from one of ``of``, in random order."""
    space = family.space(gemm, device)
    every = list(dict.fromkeys(config for one in of for config in neighbours(one, space)))
    draw.shuffle(every)
    return (config for config in every if rejected(family, gemm, config, device) is None)
