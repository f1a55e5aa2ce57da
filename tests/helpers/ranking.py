"""Ranking models of made-up times: the estimates, times what a test says of a config."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from functools import cache
from typing import Any

from tests.computed_once import computed_once
from tirgemm.config import Config
from tirgemm.families.base import rejected
from tirgemm.families.wgmma import Wgmma
from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device
from tirgemm.tuning.ranking_training import ProblemRows, problem_rows, train
from tirgemm.tuning.records import Candidate, SampleSet, Status

H200 = named_device("sm_90a")
PROBLEMS = [
    Gemm.parse(f"{m}x{n}x{k}:f16:nt")
    for m, n, k in (
        (1024, 1024, 1024),
        (512, 2048, 2048),
        (2048, 512, 4096),
        (1536, 1536, 1536),
        (2048, 2048, 2048),
        (4096, 2048, 1024),
        (3072, 3072, 1024),
        (640, 4096, 2048),
    )
]


@cache
def _configs(gemm: Gemm, count: int) -> list[Config]:
    """Random valid configs of ``wgmma``, drawn once for all workers: thousands are rejected."""
    problem = hashlib.sha256(str(gemm).encode()).hexdigest()
    return computed_once(f"ranked-{count}-{problem}", lambda: _drawn(gemm, count))


def _drawn(gemm: Gemm, count: int) -> list[Config]:
    family, draw = Wgmma(), random.Random(str(gemm))
    space = family.space(gemm, H200)
    actual: dict[Config, None] = {}
    # Of the estimate: another model that ships is no reason to learn something else here.
    default = family.shortlist(gemm, H200, "sustained", 1, trained=False)[0]
    for schedule in ("cooperative", "pingpong"):
        for stages in (2, 3, 4):
            actual[default.with_(schedule=schedule, stages=stages)] = None
    while len(actual) < count:
        config = space.at(draw.randrange(space.size))
        if rejected(family, gemm, config, H200) is None:
            actual[config] = None
    return list(actual)


def made_up(gemm: Gemm, factor: Callable[[Config], float], count: int = 40) -> list[Candidate]:
    """Records of random valid configs of ``wgmma``."""
    family = Wgmma()
    return [
        Candidate(
            gemm,
            H200.key,
            "sustained",
            config,
            Status.MEASURED,
            sample_sets=(SampleSet((family.predict_us(gemm, config, H200, "sustained") * factor(config),)),),
        )
        for config in _configs(gemm, count)
    ]


def rows_of(factor: Callable[[Config], float]) -> list[ProblemRows]:
    return problem_rows([candidate for gemm in PROBLEMS for candidate in made_up(gemm, factor)], H200)


def as_estimated(config: Config) -> float:
    del config
    return 1.0


def slow_pingpong(config: Config) -> float:
    return 1.25 if config["schedule"] == "pingpong" else 1.0


@cache
def trained_on(factor: Callable[[Config], float]) -> dict[str, Any]:
    """The document of a model that has learnt these times of PROBLEMS, trained once for all workers."""
    return computed_once(f"model-{factor.__name__}", lambda: train(rows_of(factor), H200, {"records": "made up"}))
