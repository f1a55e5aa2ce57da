"""Candidates of one problem whose times are made from their knobs, as a search leaves them: nothing is measured."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from tirgemm.config import Config, Value
from tirgemm.families import FAMILIES
from tirgemm.gemm import Gemm, Regime
from tirgemm.hardware import named_device
from tirgemm.tuning.records import Candidate, SampleSet, Status
from tirgemm.tuning_db import Database
from tirgemm.tuning_db.store import add_new_candidates

DEVICE = named_device("sm_90a")
GEMM = Gemm.parse("129x1031x517:bf16:tn:bias")
REGIME: Regime = "sustained"
DEFAULT = FAMILIES["mma"].default(GEMM, DEVICE, REGIME)
TILES_M, TILES_N, STAGES = (16, 32, 64, 128), (16, 32, 64, 128, 256), (2, 3, 4)
FASTEST_US = 20.0


def config(**knobs: Value) -> Config:
    """A config of ``mma`` with some knobs of its own."""
    return DEFAULT.with_(resident=4, **knobs)


def expected_us(tile_m: int, stages: int) -> float:
    """The time that knobs make: ``tile_m`` matters much, ``stages`` a little, and nothing else at all."""
    return FASTEST_US * math.exp(0.3 * abs(TILES_M.index(tile_m) - 2) + 0.1 * (stages == 2))


def candidate(made: Config, us: float | None = None, gemm: Gemm = GEMM, **more: Any) -> Candidate:
    """A candidate that took ``us``; without, one whose status ``more`` tells."""
    samples = tuple(us * factor for factor in (0.99, 1.0, 1.0, 1.01, 1.02)) if us else ()
    conditions = {"clock_mhz": 1700, "power_w": 650.5, "at": "2026-11-01T12:00:00+00:00", "regime": REGIME}
    sets = (SampleSet(samples, "search", {"torch.matmul": (30.0, 30.0)}, conditions),) if us else ()
    status: dict[str, Any] = {"status": Status.MEASURED, "predicted_us": 25.0, "error": 0.25} if us else {}
    return Candidate(gemm, DEVICE.key, REGIME, made, sample_sets=sets, **(status | more))


def measured(gemm: Gemm = GEMM) -> list[Candidate]:
    """60 measured candidates, a full factorial of three knobs."""
    return [
        candidate(config(tile_m=m, tile_n=n, stages=stages), expected_us(m, stages), gemm)
        for m, n, stages in itertools.product(TILES_M, TILES_N, STAGES)
    ]


FAILED = candidate(
    config(tile_m=256, tile_n=16, stages=2), status=Status.BUILD_FAILED, message="ptxas: 300 registers are too many"
)
WRONG = candidate(config(tile_m=64, tile_n=16, stages=5), status=Status.WRONG, error=7.5, message="7.5 bounds away")
PRUNED = candidate(
    config(tile_m=256, tile_n=256, stages=5),
    status=Status.PRUNED,
    rule="shared_memory",
    message="a block needs 327680 bytes of shared memory; an SM has 232448",
)


def every(gemm: Gemm = GEMM) -> list[Candidate]:
    """All candidates of a problem."""
    return [*measured(gemm), *(each.with_(gemm=gemm) for each in (FAILED, WRONG, PRUNED))]


def record(database: Database, candidates: Sequence[Candidate]) -> None:
    """Record candidates that the database has not, at once."""
    with database.write() as connection:
        add_new_candidates(database, connection, candidates, "")
