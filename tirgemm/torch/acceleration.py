"""``Acceleration``: the report of a model whose linears kernels compute, which races them and gives the model back."""

from __future__ import annotations

import itertools
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import nn

from tirgemm.device import Device
from tirgemm.errors import InvalidRequest
from tirgemm.gemm import Gemm, Range
from tirgemm.kernel_source import KernelSource, Policy, Preparation, seconds_of
from tirgemm.torch import linear_race, model_race
from tirgemm.torch.kernel_table import KernelTable, table_of
from tirgemm.torch.linear_kernels import REPLACED, CopiedReport, LinearKernels, LinearReport
from tirgemm.torch.linear_module import Linear, restore_linear
from tirgemm.torch.linear_problems import LinearProblems, why_left_alone
from tirgemm.torch.linear_race import excluded_at, lost_rows, nearest_rows, raced_in_graphs, served_modules
from tirgemm.torch.model_race import RacedCall, RacedKernel, chain, dropped, observed_rows
from tirgemm.torch.prepared_call import SLOWER

if TYPE_CHECKING:
    from tirgemm.artifact import Kernel

Call: TypeAlias = "Callable[[], object]"
UNDONE = "undo gave it back"
_lock = threading.RLock()
_entered: list[str] = []


def _unlock_in_child() -> None:
    """The thread that holds the lock is the parent's."""
    global _lock
    _lock = threading.RLock()
    _entered.clear()


os.register_at_fork(after_in_child=_unlock_in_child)


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """One model at a time is replaced, raced or given back: other threads wait. Raises InvalidRequest within a call
    that is raced."""
    with _lock:
        if _entered:
            raise InvalidRequest("a raced call uses accelerate, wait, race or undo; give race what only runs the model")
        _entered.append(threading.current_thread().name)
        try:
            yield
        finally:
            _entered.clear()


@dataclass
class Acceleration:
    """What ``accelerate`` did to a model, or with ``dry_run`` would do: a report that prints, and undoes."""

    dry_run: bool
    _kernels: tuple[LinearKernels, ...] = field(repr=False)
    preparations: tuple[Preparation, ...] = ()
    _replaced: list[nn.Linear] = field(default_factory=list, repr=False)
    _measured: bool | None = False
    _raced: set[str] = field(default_factory=set, repr=False)
    _raced_in_model: set[str] = field(default_factory=set, repr=False)
    dependent_launch: bool = False
    _undone: bool = field(default=False, repr=False)
    _convert: Callable[[nn.Linear], None] | None = field(default=None, repr=False)

    @property
    def linears(self) -> tuple[LinearReport, ...]:
        """Every linear of the model, with the kernels that it has now."""
        return tuple(each.report(self.failures, dry_run=self.dry_run) for each in self._kernels)

    @property
    def replaced(self) -> tuple[LinearReport, ...]:
        """Those that became a ``tirgemm.torch.Linear``."""
        return tuple(linear for linear in self.linears if linear.replaced)

    @property
    def gemms(self) -> tuple[Gemm, ...]:
        """The problems of all linears, each once."""
        return tuple(dict.fromkeys(gemm for linear in self.linears for gemm, _ in linear.problems))

    @property
    def failures(self) -> dict[Gemm, str]:
        """What became of kernels that were to be made and are not, so far."""
        return {gemm: why for preparation in self.preparations for gemm, why in tuple(preparation.failures.items())}

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until no kernel is being made any more, at most so long for each device; whether that is so. Then those
        that have come since are raced, where ``accelerate`` was to. Raises InvalidRequest."""
        patience = None if seconds is None else seconds_of(seconds)
        for preparation in self.preparations:
            preparation.wait(patience)
        done = all(preparation.finished.is_set() for preparation in self.preparations)
        if done:
            with one_at_a_time():
                self._race(all_made=True)
        return done

    def race(self, calls: Call | Iterable[Call], *, graph: bool = False) -> None:
        """Run the model by each of ``calls``, one for each number of rows that it will have, with and without each
        kernel that it uses, and leave PyTorch the rows of those without which one is faster; where one is not faster
        with the rest of its kernels, all of them.

        ``graph`` captures the calls in CUDA graphs, for a model that will run so; without, kernels that lost alone, in
        graphs, are raced again, as what a launch costs the host counts, too. A kernel of a range of rows takes for
        those between two that were raced the decision of the nearer one, by their ratio. Each is made some
        hundred times, and must always do the same: a cache that it makes longer, say, is not for it. Nothing else
        should use the model or the device meanwhile. Graphs that were captured before go on as they are. Raises
        InvalidRequest for no call or what is none, for a graph without a GPU, after ``undo`` and of a dry run, and what
        a call raises.
        """
        given = _listed(calls)
        if graph and not torch.cuda.is_available():
            raise InvalidRequest("graph=True needs a GPU: CUDA graphs are captured there")
        with one_at_a_time():
            if self.dry_run or self._undone:
                why = "undo gave the model back" if self._undone else "dry_run=True replaced nothing"
                raise InvalidRequest(f"race has no kernels to race, as {why}; race what another accelerate returns")
            excluded: dict[Kernel, dict[Range, float]] = {}
            try:
                if not graph:
                    self._take_back()
                linears = self._computed_linears()
                observed = [observed_rows(call, [linear.module for linear in linears]) for call in given]
                if not graph:
                    excluded = self._offer_again(observed)
                kernels = self._raced_kernels(observed, excluded)
                raced = [RacedCall(call, of_call) for call, of_call in zip(given, kernels, strict=True)]
                self._leave(dropped(raced, linears, self._table, model_race.TURNS, graph=graph))
            except BaseException:
                for kernel, rows in excluded.items():
                    self._table.exclude_rows(kernel, rows)
                raise
            finally:
                self._give_back(all_made=all(preparation.finished.is_set() for preparation in self.preparations))
            self._raced_in_model.update(each.kernel.kernel_sha256 for of_call in kernels for each in of_call)

    def _race(self, *, all_made: bool) -> None:
        """Race the kernels that are there and were not raced yet, alone and among the model's other linears, and give
        back linears of which PyTorch is left all rows, but before ``all_made`` none for which a better kernel may
        come."""
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
            return
        self._race_in_order(self._race_alone())
        self._give_back(all_made=all_made)

    def _race_alone(self) -> list[tuple[Kernel, Device]]:
        """Race each kernel on the linears that it computes; those that were raced now."""
        groups: dict[tuple[Gemm, Device], list[nn.Linear]] = {}
        for linear in self._computed_linears():
            for gemm in linear.gemms:
                if linear.device is not None and self._races(gemm, linear.device):
                    groups.setdefault((gemm, linear.device), []).append(linear.module)
        raced = []
        for (gemm, device), modules in groups.items():
            kernel = self._table.find(gemm, device)
            if kernel is None or kernel.kernel_sha256 in self._raced or not (served := served_modules(kernel, modules)):
                continue
            self._raced.add(kernel.kernel_sha256)
            in_graphs = self._table.lost_in_graphs.get(kernel.kernel_sha256, {}).items()
            decided = dict(self._table.excluded_rows(kernel.gemm, device).items() - in_graphs)
            self._table.lost_in_graphs[kernel.kernel_sha256] = lost = lost_rows(kernel, served)
            self._table.exclude_rows(kernel, lost | decided)
            raced.append((kernel, device))
        return raced

    def _race_in_order(self, fresh: Sequence[tuple[Kernel, Device]]) -> None:
        """Race what won alone among all linears that take as many rows, in the model's order."""
        for device in dict.fromkeys(device for _, device in fresh):
            ends = {rows.high for kernel, place in fresh if place == device for rows in linear_race.raced_rows(kernel)}
            for m in sorted(ends):
                linears = [
                    linear
                    for linear in self._computed_linears()
                    if linear.device == device and any(gemm.m_min <= m <= gemm.m_max for gemm in linear.gemms)
                ]
                modules = [linear.module for linear in linears]
                (among,) = self._raced_kernels([[(module, m) for module in modules]])
                raced = tuple(each for each in among if each.rows.high == m)
                # One that computes them all was raced so.
                if raced and len(raced[0].modules) < len(modules):
                    call = RacedCall(chain(m, modules), raced)
                    lost = dropped([call], linears, self._table, linear_race.TURNS, graph=True)
                    self._leave(lost)
                    for each in lost:
                        self._table.lost_in_graphs.setdefault(each.kernel.kernel_sha256, {})[each.rows] = lost[each]

    def _take_back(self) -> None:
        """Replace the linears again that were given back as PyTorch was left all of their rows by races of graphs."""
        for each in self._kernels:
            module, device = each.linear.module, each.linear.device
            in_graphs = device is not None and raced_in_graphs(device)
            plain = type(module) is nn.Linear and not why_left_alone(module)
            if in_graphs and plain and each.reason == SLOWER and self._convert is not None:
                each.reason = ""
                self._replaced.append(module)
                self._convert(module)

    def _offer_again(self, calls: Sequence[Sequence[tuple[nn.Linear, int]]]) -> dict[Kernel, dict[Range, float]]:
        """Offer kernels again to ``calls`` of these modules with so many rows that PyTorch was left by races of graphs;
        what each of the kernels left it before."""
        linears = {id(linear.module): linear for linear in self._computed_linears()}
        excluded: dict[Kernel, dict[Range, float]] = {}
        for module, m in itertools.chain.from_iterable(calls):
            linear = linears.get(id(module))
            if linear is None or linear.device is None or not raced_in_graphs(linear.device):
                continue
            for gemm in [gemm for gemm in linear.gemms if gemm.m_min <= m <= gemm.m_max]:
                if (kernel := self._table.offered(gemm.with_(m=m), linear.device)) is None:
                    continue
                left = self._table.excluded_rows(kernel.gemm, linear.device)
                # What a race of calls has decided since stays.
                in_graphs = self._table.lost_in_graphs.get(kernel.kernel_sha256, {}).items() & left.items()
                again = {rows for rows, _ in in_graphs if rows.low <= m <= rows.high}
                if again:
                    excluded.setdefault(kernel, left)
                    self._table.exclude_rows(kernel, {rows: left[rows] for rows in left if rows not in again})
        return excluded

    def _raced_kernels(
        self,
        calls: Sequence[Sequence[tuple[nn.Linear, int]]],
        excluded: Mapping[Kernel, Mapping[Range, float]] | None = None,
    ) -> list[tuple[RacedKernel, ...]]:
        """The kernels of each of ``calls`` of these modules with so many rows, but no invariant ones. ``excluded`` are
        rows that were left to PyTorch before, with our time over its."""
        linears = {id(linear.module): linear for linear in self._computed_linears()}
        served = [[(self._serving(linears.get(id(module)), m), m, module) for module, m in call] for call in calls]
        counts: dict[Kernel, set[int]] = {}
        modules: dict[tuple[Kernel, int], dict[nn.Linear, None]] = {}
        for kernel, m, module in itertools.chain.from_iterable(served):
            if kernel is not None:
                counts.setdefault(kernel, set()).add(m)
                modules.setdefault((kernel, m), {})[module] = None
        raced = {
            (kernel, m): RacedKernel(
                kernel, rows, tuple(modules[kernel, m]), excluded_at(m, (excluded or {}).get(kernel, {}))
            )
            for kernel, of_kernel in counts.items()
            for m, rows in nearest_rows(kernel, of_kernel).items()
        }
        used = [dict.fromkeys((kernel, m) for kernel, m, _ in call if kernel is not None) for call in served]
        return [tuple(raced[which] for which in of_call) for of_call in used]

    def _serving(self, linear: LinearProblems | None, m: int) -> Kernel | None:
        """The kernel that computes a linear's call with so many rows, where it is one to be raced."""
        if linear is None or linear.device is None:
            return None
        gemm = next((gemm for gemm in linear.gemms if gemm.m_min <= m <= gemm.m_max), None)
        return None if gemm is None or gemm.invariant else self._table.find(gemm.with_(m=m), linear.device)

    def _leave(self, lost: Mapping[RacedKernel, float]) -> None:
        for each, ratio in lost.items():
            left = self._table.excluded_rows(each.kernel.gemm, each.kernel.device)
            self._table.exclude_rows(each.kernel, left | {each.rows: ratio})

    def _give_back(self, *, all_made: bool) -> None:
        ours = {id(linear.module) for linear in self._replaced_linears()}
        for each in self._kernels:
            if id(each.linear.module) not in ours or (each.wanted and not all_made):
                continue
            if each.linear.left_to_pytorch(self._table):
                each.reason = SLOWER
                restore_linear(each.linear.module)
                self._replaced.remove(each.linear.module)

    def _judge_again(self, kernel: Kernel) -> None:
        """Have the next race judge ``kernel``, of which the table will forget what it left to PyTorch: a search may end
        with the very default that it began with."""
        self._raced.discard(kernel.kernel_sha256)
        self._raced_in_model.discard(kernel.kernel_sha256)

    @property
    def _table(self) -> KernelTable:
        """Where the calls of the linears look."""
        return table_of(self.dependent_launch)

    def _replaced_linears(self) -> list[LinearProblems]:
        """Those that are as ``accelerate`` left them: others, as ``parametrize``, may have made them something else."""
        ours = {id(module) for module in self._replaced if type(module) is Linear}
        return [each.linear for each in self._kernels if id(each.linear.module) in ours]

    def _computed_linears(self) -> list[LinearProblems]:
        """Those, and such as were a ``tirgemm.torch.Linear`` before and stay that, whose problems are still theirs."""
        if self.dry_run or self._undone:
            return []
        ours = {id(linear.module) for linear in self._replaced_linears()}
        every = (each.linear for each in self._kernels if each.linear.gemms and not each.linear.other_calls())
        return [one for one in every if id(one.module) in ours or (one.already and type(one.module) is Linear)]

    def _races(self, gemm: Gemm, device: Device) -> bool:
        measured = device.kind == "cuda" if self._measured is None else self._measured
        return measured and not gemm.invariant

    def undo(self) -> None:
        """Give the model back as it was, and make no more kernels. Does nothing the second time."""
        self._cancel()
        with one_at_a_time():
            self._undo()

    def _cancel(self) -> None:
        for preparation in self.preparations:
            preparation.cancel()

    def _undo(self) -> None:
        self._cancel()
        self._undone = True
        ours = {id(module) for module in self._replaced}
        while self._replaced:
            restore_linear(self._replaced.pop())
        for each in self._kernels:
            if id(each.linear.module) in ours:
                each.reason = each.linear.other_class() if isinstance(each.linear.module, Linear) else UNDONE

    def begin(self, source: KernelSource | None, policy: Policy, convert: Callable[[nn.Linear], None]) -> None:
        """Replace the linears that have kernels, race those that are there, and have the others made. Where that fails
        or is interrupted, the model is given back."""
        self._convert = convert
        try:
            for each in self._kernels:
                if not each.reason:
                    self._replaced.append(each.linear.module)
                    convert(each.linear.module)
            self._race(all_made=False)
            wanted: dict[Device, dict[Gemm, None]] = {}
            for each in self._kernels:
                if each.linear.device is not None:
                    wanted.setdefault(each.linear.device, {}).update(dict.fromkeys(each.wanted))
            for device, gemms in wanted.items():
                if source is not None and gemms:
                    preparation = source.prepare(tuple(gemms), device, policy, _arrived(self))
                    self.preparations = (*self.preparations, preparation)
        except BaseException:
            self._undo()
            raise

    def _unraced(self) -> str:
        """What is told of kernels that compute linears now and were not raced with PyTorch."""
        places = [(gemm, each.device) for each in self._computed_linears() if each.device for gemm in each.gemms]
        kernels = dict.fromkeys(filter(None, itertools.starmap(self._table.find, places)))
        raced = self._raced | self._raced_in_model
        unraced = [
            kernel
            for kernel in kernels
            if kernel.kernel_sha256 not in raced and not self._table.excluded_rows(kernel.gemm, kernel.device)
        ]
        if unraced and len(unraced) < len(kernels):
            return f"; {len(unraced)} of {len(kernels)} kernels not raced"
        return "; not raced" if unraced else ""

    def __reduce__(self) -> tuple[type[CopiedReport], tuple[object, ...]]:
        """Copies and pickles as a record, since the linears of a copied model are others."""
        said = self.linears, self.replaced, self.gemms, self.failures, str(self)
        return CopiedReport, (self.dry_run, self.dependent_launch, *said)

    def __str__(self) -> str:
        verb = REPLACED[self.dry_run]
        launched = ", with dependent launches" if self.dependent_launch else ""
        kept = sum(each.linear.already for each in self._kernels)
        already = f", {kept} were already" if kept else ""
        problems = f"{len(self.gemms)} problems{self._unraced()}"
        first = f"{len(self.replaced)} of {len(self.linears)} linears {verb}{already}{launched}; {problems}"
        return "\n".join([first, *map(str, self.linears)])


def _listed(calls: Call | Iterable[Call]) -> list[Call]:
    """The calls that a race was given. Raises InvalidRequest for none, and for what is no call."""
    advice = "give one that runs the model, or one for each number of rows"
    given = list(calls) if isinstance(calls, Iterable) and not callable(calls) else [calls]
    if not given:
        raise InvalidRequest(f"race was given no call; {advice}")
    for each in given:
        if not callable(each):
            raise InvalidRequest(f"race was given {each!r:.80}, which is no call; {advice}")
    return given


def _arrived(report: Acceleration) -> Callable[[Kernel], None]:
    """What a source tells of kernels. It does not hold the model, which may be gone before they come."""
    held, table = weakref.ref(report), report._table

    def arrived(kernel: Kernel) -> None:
        if table.offers_same(kernel):
            return
        if (known := held()) is not None:
            known._judge_again(kernel)
        table.add(kernel)

    return arrived
