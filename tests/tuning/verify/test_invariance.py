"""The invariance test of certificates: kernels of the x86 family pass with one signature; those whose order of
additions depends on m, on the row or on the matrix fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.tuning.verify.tensor_bits import bits_of
from tirgemm.artifact import Signer, Trust, load, pack
from tirgemm.config import Config
from tirgemm.detect import device as detect
from tirgemm.families import FAMILIES
from tirgemm.families.base import rejected
from tirgemm.gemm import Gemm, Range
from tirgemm.tuning.build.compile import build
from tirgemm.tuning.verify.flow import verify
from tirgemm.tuning.verify.host import HostBackend
from tirgemm.tuning.verify.invariance import MOST_ROWS, invariance_report, row_counts

CPU, X86, SIGNER = detect("cpu"), FAMILIES["x86"], Signer.generate()
# k in three blocks, a tail behind whole chunks, an epilogue with every part.
PROBLEM = "37x2100:f32:nt:alpha:beta:bias:act=gelu:invariant"
FUSED = "37x77:f16:nn:out=f32:alpha:beta:act=silu:invariant"
SCALED = "37x77:f32:nt:alpha:bias:invariant"
# Of those configs of the space that the rules accept.
DRAWN = {"1": 1, "7": 2, "129": 3, "1..300": 4}
Function = Callable[..., object]


def loaded(gemm: Gemm, config: Config) -> Function:
    package = pack(build(gemm, config, CPU).contents(gemm, config, CPU), SIGNER)
    function: Function = load(package, trust=Trust.of(SIGNER.public)).raw
    return function


def report(gemm: Gemm, function: Function) -> dict[str, Any]:
    return invariance_report(HostBackend(), gemm, function, seed=3)


def drawn(gemm: Gemm, seed: int) -> Config:
    rng, space = np.random.default_rng(seed), X86.space(gemm, CPU)
    tried = (space.at(int(rng.integers(space.size))) for _ in range(1000))
    return next(config for config in tried if rejected(X86, gemm, config, CPU) is None)


@pytest.mark.parametrize("problem", [PROBLEM, FUSED, SCALED])
def test_kernels_of_every_m_and_config_give_a_row_the_same_bits(problem: str) -> None:
    signatures = {}
    for m in ("1", "2", "3", "7", "16", "64", "129", "1..300"):
        gemm = Gemm.parse(f"{m}x{problem}")
        config = drawn(gemm, DRAWN[m]) if m in DRAWN else X86.default(gemm, CPU, "sustained")
        reported = report(gemm, loaded(gemm, config))
        assert reported["passed"], reported
        signatures[str(config)] = reported["signature"]
    assert len(signatures) >= 4, "configs differ"
    assert len(set(signatures.values())) == 1, signatures


def test_a_kernel_whose_order_depends_on_m_fails() -> None:
    """Both are right, deterministic, and the same for all rows of a call."""
    free = Gemm.parse(f"1..300x{PROBLEM}").with_(invariant=False)
    config = X86.default(free, CPU, "sustained")
    short, long = (loaded(free, config.with_(block_k=block_k)) for block_k in (1024, 256))

    def by_m(a: Any, *arguments: Any) -> None:
        (short if a.shape[0] < 20 else long)(a, *arguments)

    gemm = free.with_(invariant=True)
    sound, wrong = report(gemm, short), report(gemm, by_m)
    assert sound["passed"], sound
    assert not wrong["passed"]
    assert "other bits than at another place or size" in wrong["message"]
    assert report(gemm, long)["signature"] != sound["signature"]


def summed(order: Callable[[int, int, int], bool]) -> Function:
    """A kernel in NumPy of 2-byte inputs with fp32 sums, which adds k backwards where ``order`` says so of the number
    of rows, the matrix and the row."""

    def run(a: Any, b: Any, d: Any) -> None:
        left, right = (bits_of(t, "f16").view(np.float16).astype(np.float32) for t in (a, b))
        out = bits_of(d, "f32")
        left, right, out = (t if t.ndim == 3 else t[None] for t in (left, right, out))
        for matrix, rows in enumerate(left):
            for row, values in enumerate(rows):
                steps = range(len(values))
                total = np.zeros(right.shape[2], np.float32)
                for p in reversed(steps) if order(len(rows), matrix, row) else steps:
                    total += values[p] * right[matrix, p]
                out[matrix, row] = total.view(np.uint32)

    return run


@pytest.mark.parametrize(
    ("order", "passes"),
    [
        (lambda _m, _matrix, _row: False, True),
        (lambda _m, _matrix, _row: True, True),
        (lambda m, _matrix, _row: m > 9, False),
        (lambda _m, _matrix, row: row % 8 == 7, False),
        (lambda _m, matrix, _row: matrix == 1, False),
    ],
)
def test_an_order_may_depend_on_nothing_but_the_problem(order: Callable[[int, int, int], bool], passes: bool) -> None:
    gemm = Gemm.parse("2..40x5x37:f16:nn:out=f32:batch=2:invariant")
    reported = report(gemm, summed(order))
    assert reported["passed"] is passes
    assert (reported["error"] > 1) is not passes
    assert bool(reported["message"]) is not passes


def test_a_kernel_of_one_m_is_tried_at_every_place() -> None:
    gemm = Gemm.parse("9x5x37:f16:nn:out=f32:invariant")
    assert report(gemm, summed(lambda *_: False))["passed"]
    assert not report(gemm, summed(lambda _m, _matrix, row: row == 4))["passed"]


def test_signatures_tell_orders_apart_and_depend_on_no_seed() -> None:
    gemm = Gemm.parse("9x5x37:f16:nn:out=f32:invariant")
    forward, backward = (summed(lambda *_, turned=turned: turned) for turned in (False, True))
    ours = invariance_report(HostBackend(), gemm, forward, seed=3)["signature"]
    assert invariance_report(HostBackend(), gemm.with_(m=3), forward, seed=4)["signature"] == ours
    assert report(gemm, backward)["signature"] != ours


def test_batches_go_up_to_8192_rows_as_far_as_memory_allows() -> None:
    rng = np.random.default_rng(0)
    gemm = Gemm(Range(3, 100_000), 64, 128, invariant=True)
    tried = row_counts(gemm, 1 << 28, rng)
    assert (tried[0], tried[-1]) == (3, MOST_ROWS)
    assert len(tried) > 3
    assert row_counts(gemm, 128 * 50, rng)[-1] == 50
    few = row_counts(gemm, 128, rng)
    assert (few[0], few[-1]) == (3, 3 + 28)
    assert len(few) > 2
    assert row_counts(gemm.with_(m=Range(9000, 9001)), 128, rng) == (9000, 9001)
    assert row_counts(gemm.with_(m=77), 1, rng) == (77,)


@pytest.mark.parametrize("level", ["candidate", "certificate"])
@pytest.mark.parametrize("invariant", [False, True])
def test_certificates_of_invariant_problems_hold_the_test(level: str, invariant: bool) -> None:
    gemm = Gemm(4, 5, 37, layout="nn", out="f32", invariant=invariant)
    function = summed(lambda _m, _matrix, row: row == 3)
    verification = verify(HostBackend(), gemm, function, kernel_sha256="0" * 64, level=level, seed=1)
    held = invariant and level == "certificate"
    assert [test["name"] for test in verification.tests] == ["exact", "normal", *(["invariant"] if held else [])]
    assert verification.passed is not held
