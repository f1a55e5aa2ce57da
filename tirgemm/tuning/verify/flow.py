"""The verification of one loaded kernel: which cases run, what is compared, and what is reported.

Everything that touches data is a ``Backend``'s: NumPy on the CPU, plain CUDA kernels on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any, Protocol

import numpy as np

from tirgemm.errors import InvalidRequest
from tirgemm.gemm import Gemm
from tirgemm.reference.bound import bound_of, describe
from tirgemm.reference.numbers import Floats
from tirgemm.tuning.verify.chain import MakeChain, chain_report
from tirgemm.tuning.verify.invariance import RowBackend, invariance_report
from tirgemm.tuning.verify.plan import (
    EDGE,
    LEVELS,
    NONLINEAR_SAMPLES,
    SAMPLES,
    TESTS,
    VECTORS,
    GemmTest,
    compares_in_full,
    sizes,
)
from tirgemm.tuning.verify.result import WORST, ComparedElements, Verification, compared

# A quantile: the chance that a right kernel's row exceeds it is below 1e-13 (Hoeffding).
_DEVIATIONS = 8.0


class Backend(RowBackend, Protocol):
    """Data on one device. Cases may be kept from one call to the next."""

    reference: str

    def prepare(self, problem: GemmTest) -> Any:
        """The case of ``problem``: operands filled, NaN around them and between their rows."""
        ...

    def run(self, case: Any, function: Callable[..., object]) -> None:
        """Fill D with NaN, call the kernel, wait for it."""
        ...

    def disturbed(self, case: Any) -> list[str]:
        """Names of the operands that the call changed where it must not: inputs at all, D outside its elements."""
        ...

    def compare(self, case: Any, rows: slice, cols: slice) -> ComparedElements:
        """Every element of D within the rows and columns, of every matrix, against the reference."""
        ...

    def compare_random(self, case: Any, count: int) -> ComparedElements:
        """``count`` random elements of D against the reference."""
        ...

    def dots(self, case: Any, name: str, vector: Floats) -> Floats:
        """``M v`` in fp64 for every matrix M of an operand as the product means it: shape (batch, rows).

        ``vector`` has shape (batch, columns).
        """
        ...

    def norms(self, case: Any, name: str) -> Floats:
        """Euclidean norms of the rows of an operand as the product means it: shape (batch, rows)."""
        ...


def verify(
    backend: Backend,
    gemm: Gemm,
    function: Callable[..., object],
    *,
    kernel_sha256: str,
    level: str,
    seed: int,
    make_chain: MakeChain | None = None,
) -> Verification:
    """Run every test. Stops at the first that fails: a wrong kernel is wrong.

    ``function`` takes the tensors and scalars in call order; a certificate of one whose calls are launched dependently
    needs ``make_chain``. Raises InvalidRequest for an unknown level.
    """
    if level not in LEVELS:
        raise InvalidRequest(f"verification level is {level!r}; it must be one of {', '.join(LEVELS)}")
    tests: list[dict[str, Any]] = []
    for m, test in product(sizes(gemm, level), TESTS):
        tests.append(_one(backend, GemmTest(gemm, m, test, seed), function, level))
        if not tests[-1]["passed"]:
            break
    if gemm.invariant and level == "certificate" and tests[-1]["passed"]:
        tests.append(invariance_report(backend, gemm, function, seed))
    if make_chain is not None and level == "certificate" and tests[-1]["passed"]:
        tests.append(chain_report(make_chain, gemm, function, seed))
    return Verification(
        passed=all(t["passed"] for t in tests),
        error=max(t["error"] for t in tests),
        tests=tuple(tests),
        reference=backend.reference,
        kernel_sha256=kernel_sha256,
    )


def _one(backend: Backend, problem: GemmTest, function: Callable[..., object], level: str) -> dict[str, Any]:
    gemm = problem.gemm
    report: dict[str, Any] = {
        "name": problem.test,
        "m": problem.m,
        "n": gemm.n,
        "k": gemm.k,
        "batch": gemm.batch,
        "seed": problem.seed,
        "bound": describe(gemm, problem.test),
    }
    case = backend.prepare(problem)
    backend.run(case, function)
    disturbed = backend.disturbed(case)
    if disturbed:
        message = f"the kernel wrote outside D's elements: into {', '.join(disturbed)}"
        return report | {"passed": False, "error": WORST, "method": "guard bands", "checked": 0, "message": message}
    method, comparison = _compare(backend, case, compares_in_full(problem, level))
    return report | {
        "passed": not comparison.failures,
        "error": comparison.worst,
        "method": method,
        "checked": comparison.checked,
        "message": comparison.message,
    }


def _compare(backend: Backend, case: Any, in_full: bool) -> tuple[str, ComparedElements]:
    problem: GemmTest = case.problem
    m, n = problem.m, problem.gemm.n
    everything = slice(0, m), slice(0, n)
    if in_full or (m <= EDGE or n <= EDGE):
        return "full", backend.compare(case, *everything)
    edges = backend.compare(case, slice(m - EDGE, m), everything[1])
    edges += backend.compare(case, slice(0, m - EDGE), slice(n - EDGE, n))
    if edges.failures:
        return "edges", edges
    if problem.gemm.act != "none":
        return "edges, sampled", edges + backend.compare_random(case, NONLINEAR_SAMPLES)
    comparison = edges + backend.compare_random(case, SAMPLES)
    return "edges, sampled, freivalds", comparison if comparison.failures else comparison + freivalds(backend, case)


def freivalds(backend: Backend, case: Any) -> ComparedElements:
    """``D x`` against ``alpha A (B x) + beta C x + bias x`` for random vectors x of ones and minus ones, in fp64.

    Integers make it exact. Otherwise the deviation of a row is a sum of its elements' errors with random signs: it
    may be ``_DEVIATIONS`` times the root of the sum of their squared bounds.
    """
    problem: GemmTest = case.problem
    gemm, (alpha, beta) = problem.gemm, problem.scalars
    rng = np.random.default_rng([problem.seed, 0xF4E1])
    tolerance = _row_tolerance(backend, case) if problem.test == "normal" else np.zeros((gemm.batch, problem.m))
    result = ComparedElements(0)
    for _ in range(VECTORS):
        x = rng.choice(np.array([-1.0, 1.0]), size=(gemm.batch, gemm.n))
        want = alpha * backend.dots(case, "a", backend.dots(case, "b", x))
        if gemm.beta:
            want += beta * backend.dots(case, "c", x)
        if gemm.bias:
            want += np.concatenate([backend.dots(case, "bias", row[None]) for row in x])
        rows, worst = compared(backend.dots(case, "d", x), want, tolerance)
        result += replace(rows, at=(*divmod(worst, problem.m), -1))
    return result


def _row_tolerance(backend: Backend, case: Any) -> Floats:
    """(p + q + r + s)^2 <= 4 (p^2 + q^2 + r^2 + s^2), element by element, summed over a row."""
    problem: GemmTest = case.problem
    gemm, (alpha, beta) = problem.gemm, problem.scalars
    bound = bound_of(gemm, problem.test)
    b_squared = (backend.norms(case, "b") ** 2).sum(axis=1, keepdims=True)
    t_squared = alpha**2 * backend.norms(case, "a") ** 2 * b_squared
    if gemm.beta:
        t_squared += beta**2 * backend.norms(case, "c") ** 2
    if gemm.bias:
        t_squared += backend.norms(case, "bias") ** 2
    squares = (bound.per_t * (1 + bound.per_y)) ** 2 * t_squared
    squares += (bound.per_y * backend.norms(case, "d")) ** 2 + gemm.n * bound.floor**2
    tolerance: Floats = _DEVIATIONS * 2 * np.sqrt(squares)
    return tolerance
