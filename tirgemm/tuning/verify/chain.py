"""Chain test of dependent launches: calls queued behind one another, each of which reads what the one before wrote.

A kernel that begins too early reads old values, or overwrites what is still read. The bits must be those of the same
calls each made when the one before had ended, where no launch can overlap another.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tirgemm.artifact.manifest import CHAIN
from tirgemm.gemm import Gemm
from tirgemm.tuning.verify.plan import GemmTest, sizes
from tirgemm.tuning.verify.result import same_bits_report

STEPS = 8
CHAINS = 20


class Chain(Protocol):
    """Two buffers by turns A and D of calls of one problem, once for calls that overlap and once for those that do
    not."""

    def run(self, function: Callable[..., object], *, awaited: bool) -> None:
        """Fill the buffers as at the first time, then make ``STEPS`` calls; ``awaited``: each waits for the one
        before."""
        ...

    def differing(self) -> int:
        """How many 16-bit words of the last run with waits and of the last without are not the same."""
        ...

    def sample(self) -> npt.NDArray[np.float64]:
        """The first elements of what the last call of the run with waits wrote."""
        ...


# The buffers of a problem on a device that queues calls; operands that are not chained are random, B divided by
# ``divisor``.
MakeChain = Callable[[GemmTest], Chain]


def divisor(gemm: Gemm) -> int:
    """What B is divided by, so that a product of random numbers is about as large as its A: the chain stays finite."""
    return max(1, round(math.sqrt(gemm.k)))


def chain_refusal(gemm: Gemm) -> str:
    """Why calls of a problem cannot be chained; empty where they can."""
    if gemm.out == gemm.dtype:
        return ""
    return f"dependent launches are certified where D has the dtype of A, which the next call reads; {gemm} has not"


def chain_report(make_chain: MakeChain, gemm: Gemm, function: Callable[..., object], seed: int) -> dict[str, Any]:
    """The entry of a certificate's tests; ``sizes`` are the values of m called."""
    called = sizes(gemm, "candidate")
    message, checked = chain_refusal(gemm), 0
    for m in called if not message else ():
        chain = make_chain(GemmTest(gemm, m, "normal", seed))
        chain.run(function, awaited=True)
        sample = chain.sample()
        if not np.isfinite(sample).all():
            message = f"m = {m}: {STEPS} calls in a chain do not give numbers, which could be compared"
        wrong = 0
        for _ in range(CHAINS if not message else 0):
            chain.run(function, awaited=False)
            wrong += chain.differing() > 0
            checked += STEPS
        if wrong:
            message = f"m = {m}: {wrong} of {CHAINS} chains have other bits than calls that wait for one another"
        if message:
            break
    method = f"{CHAINS} chains of {STEPS} dependent launches"
    return same_bits_report(CHAIN, gemm, called, seed, method=method, checked=checked, message=message)
