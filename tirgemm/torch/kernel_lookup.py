"""``KernelLookup``: what a source of kernels has for the problems of a model's linears, each asked for once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from tirgemm.device import Device
from tirgemm.errors import ServiceUnreachable, TirgemmError
from tirgemm.gemm import Gemm
from tirgemm.kernel_source import KernelSource, LookupResult, Policy, lookup_all
from tirgemm.torch.kernel_table import KernelTable, is_tuned
from tirgemm.torch.linear_problems import LinearProblems

if TYPE_CHECKING:
    from tirgemm.artifact import Kernel

BEING_MADE = "being made"
AskedProblem: TypeAlias = "tuple[Gemm, Device]"


@dataclass(frozen=True, slots=True)
class Availability:
    """What there is for a problem: ``tuned``, ``default``, ``being made``, or why there is no kernel; and whether one
    is ``wanted`` of the source."""

    description: str
    wanted: bool


@dataclass(frozen=True, slots=True)
class _SourceAnswer:
    """The source's: its ``kernel``, whether one is wanted, and what to say of the problem where there is none."""

    kernel: Kernel | None
    wanted: bool
    otherwise: str


class KernelLookup:
    """Kernels of ``table``, and those that ``source`` has or may make by ``policy``. For one thread.

    The source is asked by ``ask`` alone, which may wait for a service.
    """

    def __init__(self, source: KernelSource | None, policy: Policy, table: KernelTable) -> None:
        self._source, self._policy, self.table = source, policy, table
        self._answers: dict[AskedProblem, _SourceAnswer] = {}
        self._availabilities: dict[AskedProblem, Availability] = {}
        self._away: ServiceUnreachable | None = None

    def missing(self, linears: Iterable[LinearProblems]) -> list[AskedProblem]:
        """The problems that the source is still to be asked about: those without a tuned kernel."""
        if self._source is None:
            return []
        problems = [(gemm, each.device) for each in linears if each.device is not None for gemm in each.gemms]
        return [each for each in dict.fromkeys(problems) if each not in self._answers and not self._has_tuned(*each)]

    def ask(self, problems: Sequence[AskedProblem]) -> None:
        """Ask the source about problems; nothing is made, and the table stays as it is."""
        if self._source is None:
            return
        for device in dict.fromkeys(device for _, device in problems):
            gemms = [gemm for gemm, place in problems if place == device]
            results = lookup_all(self._source, gemms, device)
            for gemm in gemms:
                self._answers[gemm, device] = self._answer(self._source, gemm, device, results.get(gemm))

    def availability(self, gemm: Gemm, device: Device) -> Availability:
        """What there is for a problem. The table then has what the source has."""
        if (gemm, device) not in self._availabilities:
            self._availabilities[gemm, device] = self._with_source(gemm, device)
        return self._availabilities[gemm, device]

    def _has_tuned(self, gemm: Gemm, device: Device) -> bool:
        kernel = self.table.offered(gemm, device)
        return kernel is not None and is_tuned(kernel)

    def _answer(self, source: KernelSource, gemm: Gemm, device: Device, result: LookupResult) -> _SourceAnswer:
        if isinstance(result, TirgemmError):
            return _SourceAnswer(None, False, f"no kernel: {result}")
        kernel = self.table.offered(gemm, device) if result is None else result
        if kernel is not None and (is_tuned(kernel) or not source.tunes):
            return _SourceAnswer(result, False, "")
        refusal = self._refusal(source, gemm, device)
        return _SourceAnswer(result, refusal is None, BEING_MADE if refusal is None else f"no kernel: {refusal}")

    def _refusal(self, source: KernelSource, gemm: Gemm, device: Device) -> str | None:
        """Why the source makes no kernel; a service that is away is asked once."""
        if self._away is not None:
            return str(self._away)
        try:
            return source.refusal(gemm, device, self._policy)
        except TirgemmError as error:
            self._away = error if isinstance(error, ServiceUnreachable) else None
            return str(error)

    def _with_source(self, gemm: Gemm, device: Device) -> Availability:
        kernel, answer = self.table.offered(gemm, device), self._answers.get((gemm, device))
        if answer is None or (kernel is not None and is_tuned(kernel)):
            return Availability(_description(kernel), False)
        if answer.kernel is not None:
            try:
                if not self.table.offers_same(answer.kernel):  # of which a race may have left rows to PyTorch
                    self.table.add(answer.kernel)
            except TirgemmError as error:
                return Availability(f"no kernel: {error}" if kernel is None else _description(kernel), False)
            kernel = answer.kernel
        return Availability(answer.otherwise if kernel is None else _description(kernel), answer.wanted)


def _description(kernel: Kernel | None) -> str:
    if kernel is None:
        return "no kernel: none is registered, and there is no source of kernels"
    return role_of(kernel)


def role_of(kernel: Kernel) -> str:
    """``tuned`` or ``default``."""
    return "tuned" if is_tuned(kernel) else "default"
