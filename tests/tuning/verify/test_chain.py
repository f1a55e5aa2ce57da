"""The chain test of certificates, on a device of NumPy whose kernels write when the next one has begun: one that waits
for that passes, one that does not fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.tuning.verify.test_verify_host import kernel
from tirgemm.gemm import Gemm
from tirgemm.tuning.verify.chain import CHAINS, STEPS, chain_report, divisor
from tirgemm.tuning.verify.flow import verify
from tirgemm.tuning.verify.host import HostBackend
from tirgemm.tuning.verify.plan import GemmTest

Floats = npt.NDArray[np.float64]
GEMM = Gemm.parse("1..64x24x40:f16:nt")


class QueueingDevice:
    """What a kernel wrote is seen once ``settle`` is called: by a kernel that waits, or by who waits for the device."""

    def __init__(self) -> None:
        self.late: list[Callable[[], None]] = []
        self.chained: list[int] = []

    def settle(self) -> None:
        while self.late:
            self.late.pop(0)()

    def kernel(self, *, waits: bool, factor: float = 1.0) -> Callable[..., None]:
        """D = A B, of one row of A after the other."""

        def run(a: Floats, b: Floats, d: Floats) -> None:
            if waits:
                self.settle()
            product = factor * (a @ b.T)
            self.settle()
            self.late.append(lambda: np.copyto(d, product))

        return run

    def chain(self, problem: GemmTest) -> QueuedChain:
        self.chained.append(problem.m)
        return QueuedChain(self, problem)


class QueuedChain:
    """Buffers of a chain on a ``QueueingDevice``."""

    def __init__(self, device: QueueingDevice, problem: GemmTest) -> None:
        gemm, rng = problem.gemm, np.random.default_rng(problem.seed)
        self.device, self.shapes = device, ((problem.m, gemm.k), (problem.m, gemm.n))
        self.b = rng.standard_normal((gemm.n, gemm.k)) / divisor(gemm)
        self.first = rng.standard_normal((2, problem.m * max(gemm.n, gemm.k)))
        self.buffers = {True: self.first.copy(), False: self.first.copy()}

    def run(self, function: Callable[..., object], *, awaited: bool) -> None:
        buffers = self.buffers[awaited]
        buffers[...] = self.first
        for step in range(STEPS):
            a, d = (
                memory[: rows * columns].reshape(rows, columns)
                for memory, (rows, columns) in zip((buffers[step % 2], buffers[1 - step % 2]), self.shapes, strict=True)
            )
            function(a, self.b, d)
            if awaited:
                self.device.settle()
        self.device.settle()

    def differing(self) -> int:
        return int((self.buffers[True] != self.buffers[False]).sum())

    def sample(self) -> Floats:
        sample: Floats = self.buffers[True][STEPS % 2]
        return sample


class StillChain:
    """A chain of which nothing runs, and so nothing differs."""

    def __init__(self, problem: GemmTest) -> None:
        """Of any problem."""

    def run(self, function: Callable[..., object], *, awaited: bool) -> None:
        """Nothing."""

    def differing(self) -> int:
        return 0

    def sample(self) -> Floats:
        return np.zeros(3)


def test_a_kernel_that_waits_has_the_bits_of_calls_that_are_awaited() -> None:
    device = QueueingDevice()
    report = chain_report(device.chain, GEMM, device.kernel(waits=True), seed=3)
    assert report["passed"], report
    assert (report["name"], report["message"], report["error"]) == ("chain", "", 0.0)
    assert report["sizes"] == device.chained == [1, 5, 17, 64]
    assert report["checked"] == 4 * CHAINS * STEPS


def test_a_kernel_that_begins_before_the_one_ahead_has_ended_fails() -> None:
    device = QueueingDevice()
    report = chain_report(device.chain, GEMM.with_(m=16), device.kernel(waits=False), seed=3)
    assert not report["passed"]
    assert report["error"] > 1
    assert (
        report["message"] == f"m = 16: {CHAINS} of {CHAINS} chains have other bits than calls that wait for one another"
    )


def test_a_chain_without_numbers_says_nothing_and_fails() -> None:
    device = QueueingDevice()
    report = chain_report(device.chain, GEMM, device.kernel(waits=True, factor=float("nan")), seed=3)
    assert not report["passed"]
    assert "do not give numbers" in report["message"]
    assert device.chained == [1]


def test_a_problem_whose_d_no_call_reads_as_a_fails() -> None:
    device = QueueingDevice()
    report = chain_report(device.chain, GEMM.with_(out="f32"), device.kernel(waits=True), seed=3)
    assert not report["passed"]
    assert "certified where D has the dtype of A" in report["message"]
    assert device.chained == []


@pytest.mark.parametrize(
    ("level", "chained", "names"),
    [
        ("certificate", True, ["exact", "normal", "chain"]),
        ("certificate", False, ["exact", "normal"]),
        ("candidate", True, ["exact", "normal"]),
    ],
)
def test_certificates_of_dependent_launches_hold_it(level: str, chained: bool, names: list[str]) -> None:
    gemm = Gemm.parse("9x5x37:f32:nn")
    make_chain = StillChain if chained else None
    verification = verify(
        HostBackend(), gemm, kernel(gemm), kernel_sha256="0" * 64, level=level, seed=1, make_chain=make_chain
    )
    assert [test["name"] for test in verification.tests] == names
    assert verification.passed


def test_chains_are_not_made_of_a_kernel_that_is_wrong() -> None:
    gemm = Gemm.parse("9x5x37:f32:nn")

    def nothing(*_arguments: Any) -> None:
        """D stays NaN."""

    verification = verify(
        HostBackend(), gemm, nothing, kernel_sha256="0" * 64, level="certificate", seed=1, make_chain=StillChain
    )
    assert [test["name"] for test in verification.tests] == ["exact"]
