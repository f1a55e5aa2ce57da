"""Order of additions over k: what the bits of an output depend on beside its inputs.

A problem with ``invariant`` has one order for all its kernels, which follows from n, k, dtypes and architecture: one
family, whose instructions add in their own way, and one cut of k into parts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.families.base import Rule
from tirgemm.gemm import DTYPE_BYTES, Gemm


@dataclass(frozen=True, slots=True)
class Summation:
    """Parts of ``part`` values of k, each summed from zero in the order of k, then added in their order; ``depth`` is k
    with the zeros that the last step is filled up with."""

    part: int
    depth: int


def row_family(gemm: Gemm, device: Device) -> str:
    """The only family that writes invariant kernels of such a problem on such a device, whatever m is.

    No two families have the same bits: tensor cores add the products of an instruction in an order of their own.
    """
    if device.kind == "cpu":
        return "x86"
    if DTYPE_BYTES[gemm.dtype] > 2:
        return "simt"
    return "wgmma" if device.arch == "sm_90a" else "mma"


def refused_rows(family: str, gemm: Gemm, device: Device) -> str | None:
    """Why ``family`` does not write an invariant problem that another family writes, or None."""
    if not gemm.invariant or family == (writer := row_family(gemm, device)):
        return None
    return (
        f"invariant rows have the bits of one family, which for {gemm.dtype} on {device.arch} is {writer}; {family} "
        "adds in another order"
    )


def invariant_rule(of_config: Callable[[Gemm, Config], Summation], of_problem: Callable[[Gemm], Summation]) -> Rule:
    """The rule that an invariant problem's kernels add over k in the problem's order."""

    def check(gemm: Gemm, config: Config, device: Device) -> str | None:  # noqa: ARG001
        if not gemm.invariant or (ours := of_config(gemm, config)) == (fixed := of_problem(gemm)):
            return None
        return (
            f"it adds k in parts of {ours.part}, {ours.depth} with the zeros behind; invariant rows of n = {gemm.n} "
            f"and k = {gemm.k} in parts of {fixed.part}, {fixed.depth} with zeros"
        )

    return Rule("invariant", check)
