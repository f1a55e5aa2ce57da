"""Infinities, NaN, signed zeros and the largest finite numbers give what IEEE arithmetic gives, where it gives it.

Reference: NumPy in fp64, converted to the output's dtype. Operands are small integers but for a few rows and columns
with special values, at the problem's edges among others, so that one element too many, padding that is not zero, or a
zero times what lies behind a row would spread NaN where none belongs. Gaps between rows and guard bands hold NaN.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

from tirgemm.artifact import Trust, load
from tirgemm.detect import devices
from tirgemm.families.wgmma import Wgmma
from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device
from tirgemm.reference.numbers import activate, decode, encode
from tirgemm.tuning.build.binary import Binary
from tirgemm.tuning.verify.host import HostBackend, HostCase, HostOperand
from tirgemm.tuning.verify.plan import GemmTest, layout_of
from tirgemm.tuning.workbench import Workbench
from verification.altered import altered_bench, with_alteration
from verification.cases import Case
from verification.covering import small_cases
from verification.sanitize import chosen

GPUS = [device for device in devices() if device.kind == "cuda" and device.arch == "sm_90a"]
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not GPUS, reason="this machine has no Hopper GPU")]

LARGEST = {"f16": 65504.0, "bf16": 3.3895313892515355e38}
ALPHA, BETA = -2.0, 3.0
CASES = chosen(small_cases(Wgmma(), named_device("sm_90a"), 300, plain=False)) if GPUS else []
Floats = Any


def operands(gemm: Gemm, m: int, seed: int) -> dict[str, Floats]:
    """Values of A (m x k), B (k x n), C and bias as the product means them."""
    rng = np.random.default_rng(seed)
    n, k, batch = gemm.n, gemm.k, gemm.batch
    a = rng.integers(-1, 2, (batch, m, k)).astype(np.float32)
    b = rng.integers(-1, 2, (batch, k, n)).astype(np.float32)
    # fp16 sums lose small addends beside a large one, and fp32 ones overflow in another order than fp64's would.
    large = gemm.acc == "f32" and (gemm.dtype == "f16" or not (gemm.alpha or gemm.beta or gemm.bias))
    largest = LARGEST[gemm.dtype] if large else 1.0
    specials = [np.inf, np.nan, -np.inf, largest, -largest, -0.0]
    # The last column of A's rows and the last row of B's columns lie beside padding; the first and one within besides.
    ends = [k - 1, 0, k // 2]
    for number, value in enumerate(specials):
        row = _spread(number, len(specials), m)
        if row is not None:
            a[:, row, ends[number % 3]] = value
        column = _spread(number, len(specials), n)
        # A row's largest bf16 times a column's would leave nothing of the small integers beside them, in any format.
        if column is not None and (gemm.dtype == "f16" or abs(value) != largest):
            b[:, ends[(number + 1) % 3], column] = value
    if m > 40:
        a[:, 20, :] = -0.0
        a[:, 21, [0, k - 1]] = np.inf, -np.inf
    values = {"a": a, "b": b}
    if gemm.beta:
        values["c"] = rng.integers(-2, 3, (batch, m, n)).astype(np.float32)
        values["c"][:, m // 2, n // 2] = np.inf
        values["c"][:, m // 2, n // 3] = np.nan
    if gemm.bias:
        values["bias"] = rng.integers(-2, 3, (1, 1, n)).astype(np.float32)
        values["bias"][..., n // 4] = -np.inf
    return {name: values[name] for name in gemm.inputs}


def _spread(number: int, count: int, size: int) -> int | None:
    """Where special value ``number`` goes: from the last place backwards and from the first on; None where too few.

    The only place there is takes none: nothing finite would be left.
    """
    if size < 3 * count:
        return size - 1 if number == 0 and size > 1 else None
    return size - 1 - number // 2 if number % 2 == 0 else number // 2


def expected(gemm: Gemm, values: dict[str, Floats]) -> Floats:
    """D in fp64, converted to the output's dtype and back."""
    with np.errstate(invalid="ignore", over="ignore"):
        x = values["a"].astype(np.float64) @ values["b"].astype(np.float64)
        x = x * ALPHA if gemm.alpha else x
        x = x + BETA * values["c"].astype(np.float64) if gemm.beta else x
        x = x + values["bias"].astype(np.float64) if gemm.bias else x
        y = activate(x, gemm.act).astype(np.float32)
        y = np.where(np.isnan(y), np.float32(np.nan), y)
        infinite = np.isinf(y) | np.isnan(y)
        return np.where(infinite, y, decode(encode(np.where(infinite, 0, y), gemm.out), gemm.out))


@pytest.fixture(scope="module")
def bench() -> Iterator[Workbench]:
    with altered_bench(GPUS[0], processes=16) as bench:
        yield bench


@pytest.fixture(scope="module")
def builds(bench: Workbench) -> dict[Case, Future[Binary]]:
    return {case: bench.build(case.gemm, with_alteration(case.config, "")) for case in CASES}


@pytest.fixture(scope="module")
def backend() -> Any:
    from tirgemm.tuning.driver.cuda import Gpu
    from tirgemm.tuning.verify.cuda import CudaBackend

    return CudaBackend(Gpu(GPUS[0]))


@pytest.mark.parametrize("case", CASES, ids=[f"{case.gemm} {case.config.digest}" for case in CASES])
def test_special_values_stay_where_they_belong(
    bench: Workbench, builds: dict[Case, Future[Binary]], backend: Any, case: Case
) -> None:
    gemm = case.gemm
    package = bench.package(gemm, with_alteration(case.config, ""), builds[case].result())
    kernel = load(package, trust=Trust.of(bench.signer.public))
    for m in sorted({gemm.m_max, max(gemm.m_min, gemm.m_max - 37)}):
        values = operands(gemm, m, seed=m)
        host, d = run(backend, kernel.raw, gemm, m, values)
        check(gemm, d, expected(gemm, values))
        assert HostBackend().disturbed(host) == []
    kernel.close()


def run(backend: Any, function: Any, gemm: Gemm, m: int, values: dict[str, Floats]) -> tuple[HostCase, Floats]:
    """D (batch, m, n) in fp64, and every operand's memory after the call."""
    case = backend.prepare(GemmTest(gemm, m, "exact", 0))
    host: dict[str, HostOperand] = {}
    for name, operand in case.operands.items():
        host[name] = HostOperand(layout_of(gemm, name, m))
        if name != "d":
            host[name].fill(values[name])
            backend._gpu.to_device(operand.argument.base, host[name].flat)
    scalars = {"alpha": ALPHA, "beta": BETA}

    def call(*arguments: Any) -> None:
        tensors = arguments[: len(case.operands)]
        function(*tensors, *(scalars[name] for name in gemm.scalars))

    backend.run(case, call)
    backend.forget()
    for name, operand in case.operands.items():
        backend._gpu.to_host(operand.argument.base, host[name].flat)
    d = decode(np.ascontiguousarray(host["d"].product), gemm.out)
    return HostCase(case.problem, host), d


def check(gemm: Gemm, got: Floats, want: Floats) -> None:
    """NaN, both infinities and finite numbers in the same places; finite ones equal but for what fp32 rounds."""
    assert np.isnan(want).any()
    assert np.isfinite(want).any()
    for name, pattern in (("NaN", np.isnan), ("inf", np.isposinf), ("-inf", np.isneginf)):
        wrong = np.argwhere(pattern(got) != pattern(want))
        assert not wrong.size, (
            f"{name}: {len(wrong)} places, first {wrong[0]}: {got[tuple(wrong[0])]}, not {want[tuple(wrong[0])]}"
        )
    finite = np.isfinite(want)
    error = np.abs(got[finite] - want[finite])
    # A transcendental activation and sums of the largest numbers are rounded; small integers are not.
    rounded = {"f32": 2.0**-18, "f16": 2.0**-9, "bf16": 2.0**-7}[gemm.out]
    exact = np.abs(want[finite]) < 4096 if gemm.act in ("none", "relu") else np.zeros(error.shape, bool)
    assert (error[exact] == 0).all()
    assert (error <= rounded * np.abs(want[finite]) + 4e-6).all()
