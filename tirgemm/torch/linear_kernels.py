"""``LinearKernels``: the kernels of one linear's problems, and the report of what became of the linear, or of all."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import NoReturn

from tirgemm.errors import InvalidRequest
from tirgemm.gemm import Gemm, Range
from tirgemm.torch.kernel_lookup import BEING_MADE, KernelLookup, role_of
from tirgemm.torch.linear_problems import LinearProblems
from tirgemm.torch.linear_race import MARGIN
from tirgemm.torch.prepared_call import SLOWER

# What a report says of linears, by ``dry_run``.
REPLACED = {False: "replaced", True: "would be replaced"}
_USABLE = ("tuned", "default", BEING_MADE)


@dataclass(frozen=True, slots=True)
class LinearReport:
    """What became of one linear: its ``names`` in the model, the problems of its calls, each with the kernel that is
    there (``tuned``, ``default``, ``being made``) or why there is none, and why it was left alone, if it was, or why
    these are not its problems any more. By ``dry_run`` it would be ``replaced``, and what is missing ``would be made``.
    """

    names: tuple[str, ...]
    problems: tuple[tuple[Gemm, str], ...]
    replaced: bool
    reason: str
    dry_run: bool = False

    def __str__(self) -> str:
        what = f"left alone: {self.reason}"
        if self.replaced:
            what = REPLACED[self.dry_run] + (f", but {self.reason}" if self.reason else "")
        lines = [f"{' = '.join(self.names) or '(the model)'}: {what}"]
        return "\n".join([*lines, *(f"    {gemm}: {kernel}" for gemm, kernel in self.problems)])


@dataclass(frozen=True)
class CopiedReport:
    """What an ``Acceleration`` said when it was copied or pickled, alone or with a model that holds it. It prints the
    same, and belongs to no model: ``wait``, ``race`` and ``undo`` raise InvalidRequest."""

    dry_run: bool
    dependent_launch: bool
    linears: tuple[LinearReport, ...]
    replaced: tuple[LinearReport, ...]
    gemms: tuple[Gemm, ...]
    failures: dict[Gemm, str]
    text: str = field(repr=False)
    preparations: tuple[()] = ()

    def wait(self, seconds: float | None = None) -> NoReturn:
        """Raises InvalidRequest."""
        del seconds
        self._refuse("wait")

    def race(self, calls: object, *, graph: bool = False) -> NoReturn:
        """Raises InvalidRequest."""
        del calls, graph
        self._refuse("race")

    def undo(self) -> NoReturn:
        """Raises InvalidRequest."""
        self._refuse("undo")

    def _refuse(self, method: str) -> NoReturn:
        advice = "accelerate the model again, or make it plain by tirgemm.torch.restore(model)"
        raise InvalidRequest(f"{method}: this report was copied or loaded, and belongs to no model; {advice}")

    def __str__(self) -> str:
        return self.text


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
    """The kernels of one linear's problems: what ``lookup`` has of each, and which are wanted. The table of kernels
    then has what there is."""

    def __init__(self, linear: LinearProblems, lookup: KernelLookup) -> None:
        self.linear, self._table = linear, lookup.table
        device, gemms = linear.device, linear.gemms
        available = {} if device is None else {gemm: lookup.availability(gemm, device) for gemm in gemms}
        self.wanted = [gemm for gemm, availability in available.items() if availability.wanted]
        self._descriptions = {gemm: availability.description for gemm, availability in available.items()}
        usable = any(description in _USABLE for description in self._descriptions.values())
        invariant = any(gemm.invariant for gemm in linear.gemms)
        self.reason = linear.reason or ("" if usable else "no invariant kernel" if invariant else "no kernel")

    def report(self, failures: Mapping[Gemm, str], *, dry_run: bool) -> LinearReport:
        """What became of the linear, with the kernels that it has now, and what others have made of it since."""
        problems = tuple((gemm, self._now(gemm, failures)) for gemm in self._descriptions)
        linear, replaced = self.linear, not self.reason
        if dry_run:
            problems = tuple((gemm, "would be made" if now == BEING_MADE else now) for gemm, now in problems)
        if dry_run or not (replaced or linear.already):
            return LinearReport(linear.names, problems, replaced, self.reason, dry_run)
        if other := linear.other_class():
            return LinearReport(linear.names, problems, False, other)
        reason = ", and ".join(filter(None, (self.reason, linear.other_calls())))
        return LinearReport(linear.names, problems, replaced, reason)

    def _now(self, gemm: Gemm, failures: Mapping[Gemm, str]) -> str:
        device = self.linear.device
        kernel = self._table.find(gemm, device) if device is not None else None
        left = self._table.excluded_rows(gemm, device) if device is not None else {}
        lost = sorted(left.items(), key=itemgetter(0))
        told = ", ".join(f"{_measured(ratio)} for {_counted(rows)} rows{_but(ratio)}" for rows, ratio in lost)
        if kernel is not None:
            return f"{role_of(kernel)}; {SLOWER}, {told}" if left else role_of(kernel)
        if left:
            return f"{SLOWER}, {told}"
        return f"no kernel: {failures[gemm]}" if gemm in failures else self._descriptions[gemm]
