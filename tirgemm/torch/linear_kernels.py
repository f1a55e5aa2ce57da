"""``LinearKernels``: the kernels of one linear's problems, and the report of what became of the linear."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tirgemm.errors import TirgemmError
from tirgemm.gemm import Gemm, Range
from tirgemm.kernel_source import KernelSource, Policy
from tirgemm.torch.kernel_table import KernelTable, is_tuned
from tirgemm.torch.linear_problems import LinearProblems
from tirgemm.torch.linear_race import MARGIN
from tirgemm.torch.prepared_call import SLOWER

if TYPE_CHECKING:
    from tirgemm.artifact import Kernel

BEING_MADE = "being made"
_USABLE = ("tuned", "default", BEING_MADE)


@dataclass(frozen=True, slots=True)
class LinearReport:
    """What became of one linear: its ``names`` in the model, the problems of its calls, each with the kernel that is
    there (``tuned``, ``default``, ``being made``) or why there is none, and why it was left alone, if it was."""

    names: tuple[str, ...]
    problems: tuple[tuple[Gemm, str], ...]
    replaced: bool
    reason: str

    def __str__(self) -> str:
        what = "replaced" if self.replaced else f"left alone: {self.reason}"
        lines = [f"{' = '.join(self.names) or '(the model)'}: {what}"]
        return "\n".join([*lines, *(f"    {gemm}: {kernel}" for gemm, kernel in self.problems)])


def _words(kernel: Kernel | None) -> str:
    if kernel is None:
        return "no kernel: none is registered, and there is no source of kernels"
    return "tuned" if is_tuned(kernel) else "default"


def _measured(ratio: float) -> str:
    return "not raced" if math.isnan(ratio) else f"{ratio:.3f} of its time"


def _counted(rows: Range) -> str:
    return str(rows if rows.low < rows.high else rows.low)


def _but(ratio: float) -> str:
    """Why a kernel lost that took less than PyTorch's time; empty for others."""
    if ratio >= 1 or math.isnan(ratio):
        return ""
    return f", but not {'clearly less' if ratio > 1 - MARGIN else 'in enough turns'}"


class LinearKernels:
    """The kernels of one linear's problems: what was said of each as they were looked up, and which are wanted.

    What ``source`` has is added to ``table``.
    """

    def __init__(self, linear: LinearProblems, source: KernelSource | None, policy: Policy, table: KernelTable) -> None:
        self.linear, self._table = linear, table
        self.wanted: list[Gemm] = []
        self._said = {gemm: self._looked_up(gemm, source, policy) for gemm in linear.gemms}
        usable = any(words in _USABLE for words in self._said.values())
        invariant = any(gemm.invariant for gemm in linear.gemms)
        self.reason = linear.reason or ("" if usable else "no invariant kernel" if invariant else "no kernel")

    def report(self, failures: Mapping[Gemm, str]) -> LinearReport:
        """What became of the linear, with the kernels that it has now."""
        problems = tuple((gemm, self._now(gemm, failures)) for gemm in self._said)
        return LinearReport(self.linear.names, problems, not self.reason, self.reason)

    def _now(self, gemm: Gemm, failures: Mapping[Gemm, str]) -> str:
        device = self.linear.device
        kernel = self._table.find(gemm, device) if device is not None else None
        left = self._table.excluded_rows(gemm, device) if device is not None else {}
        told = ", ".join(f"{_measured(ratio)} for {_counted(rows)} rows{_but(ratio)}" for rows, ratio in left.items())
        if kernel is not None:
            return f"{_words(kernel)}; {SLOWER}, {told}" if left else _words(kernel)
        if left:
            return f"{SLOWER}, {told}"
        return f"no kernel: {failures[gemm]}" if gemm in failures else self._said[gemm]

    def _looked_up(self, gemm: Gemm, source: KernelSource | None, policy: Policy) -> str:
        """What there is for one problem, which the table of kernels then has; what is to be made is ``wanted``."""
        device = self.linear.device
        if device is None:
            return self.linear.reason
        kernel = self._table.find(gemm, device)
        try:
            if source is not None and (kernel is None or not is_tuned(kernel)):
                stored = source.lookup(gemm, device)
                if stored is not None:
                    self._table.add(stored)
                    kernel = stored
            if source is None or (kernel is not None and (is_tuned(kernel) or not source.tunes)):
                return _words(kernel)
            refusal = source.refusal(gemm, device, policy)
        except TirgemmError as error:
            return _words(kernel) if kernel is not None else f"no kernel: {error}"
        if refusal is None:
            self.wanted.append(gemm)
        if kernel is not None:
            return _words(kernel)
        return BEING_MADE if refusal is None else f"no kernel: {refusal}"
