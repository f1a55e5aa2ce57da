"""Covering arrays: few cases that exercise what many do, for slow checks. Pure."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial

from tirgemm.device import Device
from tirgemm.errors import InvalidGemm
from tirgemm.families.base import Family
from tirgemm.families.simt import ladder
from tirgemm.gemm import ACTIVATIONS, DTYPE_BYTES, LAYOUTS, Gemm
from tirgemm.hardware import WARP
from verification.cases import Case, Feature, dtypes, random_cases

# A problem that every rung of the ladder takes: 128 x 128 tiles for more than half of the SMs.
_LADDER = "1100x1160x520:f32:nn"


def covering(
    cases: Sequence[Case], features: Callable[[Case], frozenset[Feature]], cost: Callable[[Case], float]
) -> list[Case]:
    """Cases that together have every feature that any has: each time the one with most new features for its cost."""
    of = {case: features(case) for case in cases}
    missing = frozenset[Feature]().union(*of.values())
    chosen = []
    while missing:
        best = max(cases, key=lambda case: (len(of[case] & missing) / cost(case), len(of[case] & missing)))
        chosen.append(best)
        missing -= of[best]
    return chosen


def paths(case: Case) -> frozenset[Feature]:
    """The knobs that choose code rather than sizes, and what they are combined with: a kernel's ways through its
    source.

    Knobs whose values are words, sharing in a cluster, sets of registers, padding, barriers of a step, and whether k is
    split; together with the operands' layout where they say how operands are loaded or lie in shared memory, and with
    the output's size where they say how D is stored.
    """
    gemm, config = case.gemm, case.config
    words: dict[str, object] = {name: value for name, value in config.knobs if isinstance(value, str)}
    several = {
        name: value > 1
        for name, value in config.knobs
        if name.startswith(("cluster", "split", "registers", "barriers")) and isinstance(value, int)
    }
    if "reduction" in words and not several.get("split", False):
        del words["reduction"]
    features: set[Feature] = {*words.items(), *several.items()}
    features.add(("schedule, cluster", (words.get("schedule"), any(v for n, v in several.items() if n != "split"))))
    features.add(("load, layout", (words.get("load"), gemm.layout)))
    knobs = dict(config.knobs)
    if "pad" in knobs:
        features.add(("pad", knobs["pad"] != 0))
    if "registers" in knobs:
        features.add(("two stages, registers", (knobs["stages"] == 2, several["registers"])))
    if "pipeline" in words:
        features.add(("pipeline, barriers", (words["pipeline"], several["barriers"])))
        features.add(("wide loads, layout, fp32", (int(knobs["vector"]) > 1, gemm.layout, gemm.dtype == "f32")))
    if "copy" in words:
        features.add(("copy, layout", (words["copy"], gemm.layout)))
    if "shared" in words:
        features.add(("shared, layout", (words["shared"], gemm.layout)))
    features.add(("epilogue, schedule", (words.get("epilogue"), words.get("schedule"))))
    features.add(("acc, dtype", (gemm.acc, gemm.dtype)))
    features.add(("range", gemm.m_min < gemm.m_max))
    features.add(("batch", gemm.batch > 1))
    if "swap" in knobs:
        features.add(("swap, epilogue, bytes of D", (config["swap"], words.get("epilogue"), DTYPE_BYTES[gemm.out])))
    return frozenset(features)


def warps(case: Case) -> int:
    """Warps of a block, where the config's knobs say that; a family with other knobs has at least four."""
    knobs = {name: value for name, value in case.config.knobs if isinstance(value, int)}
    if "warps_m" in knobs:
        return knobs["warps_m"] * knobs["warps_n"]
    if "thread_m" in knobs:
        return knobs["block_m"] * knobs["block_n"] // (knobs["thread_m"] * knobs["thread_n"]) // WARP
    return 4


def build_cost(case: Case) -> float:
    """Roughly how long a case takes to compile: by the outputs of a tile, which are unrolled in its epilogue."""
    knobs = dict(case.config.knobs)
    outputs = int(knobs.get("tile_m", 128)) * int(knobs.get("tile_n", 128))
    return 1.0 + outputs / 16384


def small_cases(family: Family, device: Device, count: int, *, plain: bool) -> list[Case]:
    """Random cases of problems that run in a fraction of a millisecond, with every schedule still of use to them.

    ``plain``: without activations or long epilogues, and with enough steps of k that every stage is used several times.
    For the ladder's family there are also its rungs, which choose what no search does.
    """
    draw = partial(_small_gemm, plain=plain, dtypes=dtypes(family, device))
    cases = random_cases(family, device, count, seed=7, draw=draw)
    if family.name == ladder.FAMILY:
        gemm = Gemm.parse(_LADDER)
        cases += [Case(gemm, ladder.config(rung.name, gemm, device)) for rung in ladder.RUNGS]
    return cases


def _small_gemm(rng: random.Random, *, plain: bool, dtypes: tuple[str, ...]) -> Gemm | None:
    """A problem of at most 2^31 flops. Some have tiles for every SM, others are short of them and long in k."""
    many = rng.random() < 0.6
    m, n = (
        (rng.choice((905, 1100, 1290)), rng.choice((1000, 1160, 1003)))
        if many
        else (rng.choice((7, 60, 130)), rng.choice((40, 129, 200)))
    )
    k = rng.choice((520, 712)) if many else rng.choice((1032, 2050, 4104))
    layout, dtype = rng.choice(LAYOUTS), rng.choice(dtypes)
    ranged = rng.random() < 0.2
    text = f"{f'1..{m}' if ranged else m}x{n}x{k}:{dtype}:{layout}"
    text += ":acc=f16" if dtype == "f16" and rng.random() < 0.3 else ""
    columns = {"lda": m if layout[0] == "t" else k, "ldb": k if layout[1] == "t" else n}
    padding = rng.choice((8, 8, 2, 1))
    text += "".join(f":{name}={-(-count // padding) * padding}" for name, count in columns.items())
    text += rng.choice(("", "", "", ":align=4", ":align=8", ":align=2"))
    text += rng.choice(("", "", ":out=f32")) if not text.endswith("align=2") else ""
    text += ":batch=2" if not many and rng.random() < 0.3 else ""
    if not plain:
        text += "".join(f":{part}" for part in ("alpha", "beta", "bias") if rng.random() < 0.3)
        text += f":act={rng.choice(ACTIVATIONS)}" if rng.random() < 0.4 else ""
    text += ":invariant" if rng.random() < 0.2 else ""
    try:
        return Gemm.parse(text)
    except InvalidGemm:
        return None
